"""When what failed may be tried again: exponential backoff with full jitter, for many things at once. No I/O."""

from __future__ import annotations

import random
from collections.abc import Hashable
from typing import Generic, TypeVar

from firstline_core.clock import Clock
from firstline_core.protocol.backoff import full_jitter_s

K = TypeVar("K", bound=Hashable)


class Backoffs(Generic[K]):
    """One wait for each key that failed; each further failure doubles the nominal one.

    Args:
        clock: its monotonic time.
        rng: for the jitter.
        base_s: nominal wait after the first failure.
        max_s: cap of the nominal wait, and of what a far side may ask for.
    """

    def __init__(self, clock: Clock, rng: random.Random, *, base_s: float, max_s: float) -> None:
        self._clock = clock
        self._rng = rng
        self._base_s = base_s
        self._max_s = max_s
        self._failures: dict[K, int] = {}
        self._not_before_s: dict[K, float] = {}

    def __contains__(self, key: object) -> bool:
        """Whether it ever was to wait, and has not succeeded since."""
        return key in self._not_before_s

    def failed(self, key: K, at_least_s: float = 0.0) -> None:
        """Makes it wait: as long as was asked for, within the cap, and the drawn time on top."""
        failures = self._failures.get(key, 0)
        self._failures[key] = failures + 1
        drawn_s = full_jitter_s(self._rng, failures, base_s=self._base_s, max_s=self._max_s)
        self.hold(key, min(at_least_s, self._max_s) + drawn_s)

    def hold(self, key: K, wait_s: float) -> None:
        """Makes it wait without a failure."""
        self._not_before_s[key] = self._clock.monotonic_s() + wait_s

    def succeeded(self, key: K) -> None:
        """Forgets it."""
        self._failures.pop(key, None)
        self._not_before_s.pop(key, None)

    def release(self) -> None:
        """Ends every wait; what failed has failed all the same."""
        self._not_before_s = dict.fromkeys(self._not_before_s, self._clock.monotonic_s())

    def failing(self) -> set[K]:
        """The keys whose latest try failed, waiting or not."""
        return set(self._failures)

    def clear(self) -> None:
        """Forgets all."""
        self._failures.clear()
        self._not_before_s.clear()

    def waiting(self) -> dict[K, float]:
        """The keys that must not be tried now, with the seconds left to each."""
        now_s = self._clock.monotonic_s()
        return {key: then_s - now_s for key, then_s in self._not_before_s.items() if then_s > now_s}
