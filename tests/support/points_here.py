"""Measures the points of profiles in the test's own process, because to start a process takes longer than a point."""

from __future__ import annotations

from msgspec.structs import replace

from firstline_core.errors import FirstlineError
from firstline_core.profile.measure_point import Job, measure
from firstline_core.profile.profile import Point, Refused


def measure_here(job: Job) -> Point | Refused:
    """Measures one point, as `measure_in_process` does in a process of its own."""
    try:
        point = measure(job)
    except FirstlineError as error:
        return Refused(job.key, "", error.message)
    return replace(point, heat_limit_s=job.heat_s, alone=job.alone, given_s=job.seconds)
