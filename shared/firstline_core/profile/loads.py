"""How long a query takes on a machine that is more or less busy: cores and clocks that rest are slow to wake. Pure.

A profile knows three loads: a light one, half of what a server can do, and back to back. Between them what a server
does in a second is taken to grow straight with the load, and below the lightest not to change: nobody looked there.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from firstline_core.profile.profile import HALF_LOAD, Point

_MOST_TIMES = 100.0
"""Nothing makes a query slower, or quicker, by more; a profile that says so is no reason to stop."""
_QUICKEST = 0.6
"""Of what a query takes at half load, the least that it is taken to take at full load: by half (`HALF_LOAD`) and less,
queues would grow without end before it."""
_BUSIEST = 0.9
"""Of the time, the most that a light load is taken to keep a server busy, for the same reason."""


class Times(NamedTuple):
    """Of a query that found a server free, and of one that had to wait."""

    rested: float
    queued: float


def times_at(load: float, point: Point) -> Times:
    """How many times what `point.rested` and `point.queued` say, which is of half load, a query takes under a load.

    Args:
        load: as a share of what servers can do that never rest; from 1 on queries are back to back.
        point: without `light`, less than half load is as half.
    """
    queued = point.queued or point.query
    full = min(max(times(point.query.usual_ms, queued.usual_ms), _QUICKEST), 1.0)
    if point.light is None:
        lightest, rested, waited = 0.0, 1.0, 1.0
    else:
        lightest = point.light.load
        most = _BUSIEST * full / lightest
        rested = min(times(point.light.rested_ms, point.rested.usual_ms), most)
        waited = min(times(point.light.queued_ms, queued.usual_ms, unknown=rested), most)
    loads = (lightest, HALF_LOAD, 1.0)
    return Times(*(1 / float(np.interp(load, loads, (1 / light, 1.0, 1 / full))) for light in (rested, waited)))


def times(taken_ms: float | None, usual_ms: float, unknown: float = 1.0) -> float:
    """How many times the usual; `unknown` where there were too few to tell."""
    if taken_ms is None or usual_ms <= 0:
        return unknown
    return min(max(taken_ms / usual_ms, 1 / _MOST_TIMES), _MOST_TIMES)
