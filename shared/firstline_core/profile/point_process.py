"""Measures a point in a process of its own; `measure_point` runs in that process."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from firstline_core.profile.measure_point import Job
from firstline_core.profile.profile import REASON_CHARACTERS, Point, Refused
from firstline_core.runtime.child import ChildFailed, run_python

_LIMIT_S = 120.0


def measure_in_process(job: Job, must_end: Callable[[], str] = lambda: "") -> Point | Refused:
    """Measures one point and returns it, or the reason why it could not be measured; blocks.

    Args:
        job: the point.
        must_end: see `run_python`.

    Raises:
        Interrupted: it had to end.
    """
    try:
        output = run_python(
            ("-m", "firstline_core.profile.measure_point"),
            msgspec.json.encode(job),
            limit_s=_LIMIT_S + 10 * job.seconds + job.heat_s,
            must_end=must_end,
        )
        return msgspec.json.decode(output, type=Point)
    except ChildFailed as error:
        return Refused(job.key, str(error)[:REASON_CHARACTERS])
    except msgspec.MsgspecError as error:
        return Refused(job.key, f"The output of its process is no point: {error}."[:REASON_CHARACTERS])
