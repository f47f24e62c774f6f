"""How old promises are, on a device whose wall clock cannot be trusted.

Each process has one timeline: the wall clock at its start, advanced by the monotonic clock. It begins after the newest
stored time, so a device that boots in 1970, or with the time at which it was switched off, continues from there. A
clock that is set back changes nothing. A clock that is set ahead shows how long the device was off: the timeline jumps,
records of earlier processes become older by the jump, and records of this process do not.

The stored times of this process's records are then corrected. Otherwise the next process would take promises and
answers of a minute ago for days old.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import islice, takewhile

from firstline_core.clock import EARLIEST_PLAUSIBLE_WALL_S, Clock

CHECK_CLOCK_EVERY_S = 20.0
"""How often `check_clock` must be called at least while a promise waits."""
LEAST_JUMP_S = 60.0
"""Smaller corrections of the wall clock are ignored: clocks are corrected by less all the time."""

_APART_S = 0.001
"""The gap between the times of earlier processes and of this one, which tells their records apart."""


@dataclass(frozen=True, slots=True)
class ClockJump:
    """The times that this process stored from `from_s` to `until_s`, both included, are too early by `by_s`."""

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
        self.load(0.0, ())

    def load(self, newest_wall_s: float, created: Iterable[tuple[str, float]]) -> None:
        """Reads the ages of the promises of earlier processes.

        Args:
            newest_wall_s: the newest stored time.
            created: request ids and their wall times, oldest first.
        """
        self._began_s = self._clock.monotonic_s()
        # A clock with an earlier time was never set.
        self._began_wall_s = max(EARLIEST_PLAUSIBLE_WALL_S, newest_wall_s + _APART_S, self._clock.wall_s())
        self._started_s = {request_id: self._began_s - (self._began_wall_s - then_s) for request_id, then_s in created}

    def wall_s(self) -> float:
        """The present time on this process's timeline."""
        return self._began_wall_s + (self._clock.monotonic_s() - self._began_s)

    def check_clock(self) -> ClockJump | None:
        """Compares the timeline with the wall clock; returns the correction if the clock was set ahead, else None."""
        until_s = self.wall_s()
        by_s = self._clock.wall_s() - until_s
        if by_s <= LEAST_JUMP_S:
            return None
        jump = ClockJump(self._began_wall_s, until_s, by_s)
        self._began_wall_s += by_s
        self._started_s = {
            request_id: started_s - by_s if started_s < self._began_s else started_s
            for request_id, started_s in self._started_s.items()
        }
        return jump

    def __contains__(self, request_id: object) -> bool:
        return request_id in self._started_s

    def start(self, request_id: str) -> None:
        """Adds a promise that is made now, unless it is there already."""
        self._started_s.setdefault(request_id, self._clock.monotonic_s())

    def remove(self, request_id: str) -> None:
        self._started_s.pop(request_id, None)

    def age_s(self, request_id: str) -> float:
        """A promise's age in seconds; 0 if there is none."""
        now_s = self._clock.monotonic_s()
        return max(0.0, now_s - self._started_s.get(request_id, now_s))

    def oldest_s(self) -> float:
        """The age of the oldest promise in seconds; 0 if there are no promises."""
        return self.age_s(next(iter(self._started_s), ""))

    def at_least(self, age_s: float, limit: int) -> list[str]:
        """Returns the ids of promises that are at least `age_s` old, oldest first, at most `limit`."""
        latest_s = self._clock.monotonic_s() - age_s
        old = takewhile(lambda born: born[1] <= latest_s, self._started_s.items())
        return [request_id for request_id, _ in islice(old, limit)]
