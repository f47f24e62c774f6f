"""Measures the points of profiles in the test's own process, because to start a process takes longer than a point."""

from collections.abc import Callable

from firstline_core.errors import FirstlineError
from firstline_core.profile.measure import Job
from firstline_core.profile.measure_point import measure
from firstline_core.profile.profile import Point
from firstline_core.runtime.child import ChildFailed


def measure_here(job: Job, must_end: Callable[[], str]) -> Point:
    """Measures one point, as `measure_in_process` does in a process of its own."""
    try:
        return measure(job)
    except FirstlineError as error:
        raise ChildFailed(error.message) from error
