"""How old promises are, on a device whose wall clock cannot be trusted. No I/O.

Within a process there is one timeline: the wall clock as it was at the start, carried on by the monotonic one. It
begins after the newest time that is stored, so that a device that boots in 1970, or with the time at which it was
switched off, goes on from there. A clock that is set back changes nothing. One that is set ahead says how long the
device was off: the timeline leaps, what earlier processes left is older by that, and what this one made is not.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import islice, takewhile

from firstline_core.clock import EARLIEST_PLAUSIBLE_WALL_S, Clock

LOOK_EVERY_S = 20.0
"""While something waits, that often at least somebody should `look` at the wall clock."""
LEAST_JUMP_S = 60.0
"""Clocks are corrected by less all the time."""

_APART_S = 0.001
"""Between what earlier processes stored and what this one does, so that times tell them apart."""


@dataclass(frozen=True, slots=True)
class ClockJump:
    """What this process stored from `from_s` to `until_s`, both included, belongs `by_s` later."""

    from_s: float
    until_s: float
    by_s: float


class Timeline:
    """When each promise was made, oldest first.

    Args:
        clock: its monotonic and wall time.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.learn(0.0, ())

    def learn(self, newest_wall_s: float, created: Iterable[tuple[str, float]]) -> None:
        """Takes over what an earlier process left.

        Args:
            newest_wall_s: the newest that it stored.
            created: request ids and their wall times, oldest first.
        """
        self._began_s = self._clock.monotonic_s()
        # A clock that says less was never set; at first there is nothing better to go by.
        self._began_wall_s = max(EARLIEST_PLAUSIBLE_WALL_S, newest_wall_s + _APART_S, self._clock.wall_s())
        self._born_s = {request_id: self._began_s - (self._began_wall_s - then_s) for request_id, then_s in created}

    def wall_s(self) -> float:
        """Now, on this process's timeline."""
        return self._began_wall_s + (self._clock.monotonic_s() - self._began_s)

    def look(self) -> ClockJump | None:
        """Compares with the wall clock; what must be stored anew where it was set ahead, else None."""
        until_s = self.wall_s()
        by_s = self._clock.wall_s() - until_s
        if by_s <= LEAST_JUMP_S:
            return None
        leap = ClockJump(self._began_wall_s, until_s, by_s)
        self._began_wall_s += by_s
        self._born_s = {
            request_id: born_s - by_s if born_s < self._began_s else born_s
            for request_id, born_s in self._born_s.items()
        }
        return leap

    def __contains__(self, request_id: object) -> bool:
        return request_id in self._born_s

    def ids(self) -> set[str]:
        """Of all promises."""
        return set(self._born_s)

    def start(self, request_id: str) -> None:
        """Made now, if it is not known."""
        self._born_s.setdefault(request_id, self._clock.monotonic_s())

    def forget(self, request_id: str) -> None:
        self._born_s.pop(request_id, None)

    def of(self, request_id: str) -> float:
        """Seconds; 0 where it is not known."""
        now_s = self._clock.monotonic_s()
        return max(0.0, now_s - self._born_s.get(request_id, now_s))

    def oldest_s(self) -> float:
        """Seconds; 0 where there is none."""
        return self.of(next(iter(self._born_s), ""))

    def over(self, age_s: float, limit: int) -> list[str]:
        """The ids that are at least so old, oldest first."""
        latest_s = self._clock.monotonic_s() - age_s
        old = takewhile(lambda born: born[1] <= latest_s, self._born_s.items())
        return [request_id for request_id, _ in islice(old, limit)]
