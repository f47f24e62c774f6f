"""A token bucket: what may be done now and then, and not without end. Pure: times are handed in."""

from __future__ import annotations

import math

_ROUNDING = 1e-9  # so that five fifths are a whole


class TokenBucket:
    """Tokens that come by the second, or with each event that earns a share of one, and are spent one at a time.

    Args:
        burst: tokens kept at most; it starts full, so that the first minute is no worse than the others.
        per_second: tokens that come by themselves.
    """

    __slots__ = ("_at_s", "_burst", "_per_second", "_tokens")

    def __init__(self, burst: float, per_second: float = 0.0) -> None:
        self._burst = self._tokens = burst
        self._per_second = per_second
        self._at_s: float | None = None

    def earn(self, share: float) -> None:
        """Adds a share of a token."""
        self._tokens = min(self._burst, self._tokens + share)

    def take(self, now_s: float) -> bool:
        """Spends one, where there is one."""
        self._refill(now_s)
        if self._tokens < 1 - _ROUNDING:
            return False
        self._tokens = max(0.0, self._tokens - 1)
        return True

    def wait_s(self, now_s: float) -> float:
        """Seconds until there is one, if none is earned; infinite where none comes by itself."""
        self._refill(now_s)
        if self._tokens >= 1 - _ROUNDING:
            return 0.0
        return (1 - self._tokens) / self._per_second if self._per_second else math.inf

    def _refill(self, now_s: float) -> None:
        if self._at_s is not None:
            self.earn(max(0.0, now_s - self._at_s) * self._per_second)
        self._at_s = now_s
