"""A token bucket. Pure: times are passed in."""

from __future__ import annotations

import math

_ROUNDING = 1e-9  # tolerates rounding: five fifths are a whole token


class TokenBucket:
    """A bucket that is refilled with time and by events, and from which one token is taken at a time.

    Args:
        burst: capacity; the bucket starts full.
        per_second: rate of refill.
    """

    def __init__(self, burst: float, per_second: float = 0.0) -> None:
        self._burst = self._tokens = burst
        self._per_second = per_second
        self._at_s: float | None = None

    def earn(self, share: float) -> None:
        """Adds a fraction of a token."""
        self._tokens = min(self._burst, self._tokens + share)

    def take(self, now_s: float) -> bool:
        """Takes one token if available."""
        self._refill(now_s)
        if self._tokens < 1 - _ROUNDING:
            return False
        self._tokens = max(0.0, self._tokens - 1)
        return True

    def wait_s(self, now_s: float) -> float:
        """Returns the seconds until the next token without further events; infinite without a refill rate."""
        self._refill(now_s)
        if self._tokens >= 1 - _ROUNDING:
            return 0.0
        return (1 - self._tokens) / self._per_second if self._per_second else math.inf

    def _refill(self, now_s: float) -> None:
        if self._at_s is not None:
            self.earn(max(0.0, now_s - self._at_s) * self._per_second)
        self._at_s = now_s
