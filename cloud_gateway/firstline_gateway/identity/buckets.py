"""Token buckets: a rate limit with room for a burst."""

from __future__ import annotations

from collections import OrderedDict

# Whoever comes beyond it makes the one that was heard of longest ago start with a full bucket.
_KEYS_LIMIT = 65_536


class Buckets:
    """One bucket for each key (an address, a principal), made full when the key is first seen."""

    def __init__(self) -> None:
        self._levels: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def take(self, key: str, now_s: float, *, per_s: float, burst: float) -> float:
        """Takes one from a key's bucket.

        Args:
            key: whose bucket.
            now_s: monotonic time.
            per_s: tokens added each second.
            burst: capacity in tokens; at least 1.

        Returns:
            0 where there was one; otherwise the seconds until there is, and nothing was taken.
        """
        level, when_s = self._levels.get(key, (burst, now_s))
        level = min(burst, level + (now_s - when_s) * per_s)
        if level < 1:
            return (1 - level) / per_s
        self._levels[key] = level - 1, now_s
        self._levels.move_to_end(key)
        if len(self._levels) > _KEYS_LIMIT:
            self._levels.popitem(last=False)
        return 0.0

    def give_back(self, key: str) -> None:
        """Returns what `take` took."""
        if key in self._levels:
            level, when_s = self._levels[key]
            self._levels[key] = level + 1, when_s
