"""How old promises are, on a device whose wall clock cannot be trusted. No I/O.

An age is measured with the monotonic clock while this process runs; what an earlier one left starts with the age that
wall time gives it. Wall time as it is used and stored never goes back below the newest that was seen, so that a device
that boots in 1970 does not make its new promises look half a century old once its clock is set.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice, takewhile

from firstline_core.clock import EARLIEST_PLAUSIBLE_WALL_S, Clock


class Ages:
    """When each promise was made, oldest first.

    Args:
        clock: its monotonic and wall time.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        # A clock that says less was never set; at first there is nothing better to go by.
        self._newest_wall_s = EARLIEST_PLAUSIBLE_WALL_S
        self._born_s: dict[str, float] = {}

    def learn(self, newest_wall_s: float, created: Iterable[tuple[str, float]]) -> None:
        """Takes over what an earlier process left.

        Args:
            newest_wall_s: the newest that it stored.
            created: request ids and their wall times, oldest first.
        """
        self.wall_s(newest_wall_s)
        now_s, wall_s = self._clock.monotonic_s(), self.wall_s(self._clock.wall_s())
        self._born_s = {request_id: now_s - (wall_s - then_s) for request_id, then_s in created}

    def wall_s(self, said_s: float) -> float:
        """That wall time, or the newest one seen where it is later."""
        self._newest_wall_s = max(self._newest_wall_s, said_s)
        return self._newest_wall_s

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
