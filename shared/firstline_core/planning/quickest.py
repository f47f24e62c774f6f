"""Chooses the provider and the number of threads to run a model with."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypeVar

_AS_GOOD = 1.05
"""More threads have to be faster by more than this, because other models need threads too."""

Way = TypeVar("Way")


def quickest(ways: Iterable[Way], costs: Callable[[Way], tuple[float, int]]) -> Way:
    """Returns the fastest way; of those that are nearly as fast, the one with the fewest threads.

    Args:
        ways: at least one.
        costs: milliseconds of a row, and threads (0 for the runtime's default).
    """
    listed = [(*costs(way), way) for way in ways]
    least_ms = min(ms for ms, _, _ in listed)
    near = [one for one in listed if one[0] <= _AS_GOOD * least_ms]
    return min(near, key=lambda one: (one[1] or 1024, one[0]))[2]
