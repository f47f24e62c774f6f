"""Of several ways to run one model, which: with how many threads, by which provider."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypeVar

_AS_GOOD = 1.05
"""A way with more threads has to be quicker by more than this: threads are other models' too."""

Way = TypeVar("Way")


def quickest(ways: Iterable[Way], costs: Callable[[Way], tuple[float, int]]) -> Way:
    """The quickest way; of those that are as good, the one with the fewest threads.

    Args:
        ways: at least one.
        costs: milliseconds of a row, and threads (0 for as many as the runtime likes).
    """
    listed = [(*costs(way), way) for way in ways]
    least_ms = min(ms for ms, _, _ in listed)
    near = [one for one in listed if one[0] <= _AS_GOOD * least_ms]
    return min(near, key=lambda one: (one[1] or 1024, one[0]))[2]
