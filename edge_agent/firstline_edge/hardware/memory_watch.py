"""When memory is looked at again before the next reading of everything: it may be gone long before a part is hot."""

from __future__ import annotations

import math
from collections.abc import Sequence

FASTEST_BYTES_PER_S = 1 << 30
"""A neighbour is reckoned to take so much; of one that is near a low the least pause decides."""
LEAST_S = 0.1
"""A look starts a thread and reads some small files: more often, a small board would feel it."""


class MemoryWatch:
    """Of one device.

    Args:
        lows_bytes: of memory that is left: where less is, somebody acts; none for nobody.
    """

    def __init__(self, lows_bytes: Sequence[float] = ()) -> None:
        self._lows_bytes = tuple(low for low in lows_bytes if low > 0)

    def passed(self, left_bytes: float | None) -> int:
        """How many of the lows so much is below; none where nobody measures it."""
        return 0 if left_bytes is None else sum(left_bytes < low for low in self._lows_bytes)

    def pause_s(self, left_bytes: float | None) -> float:
        """Seconds until the next look: what a neighbour takes down to the next low, `LEAST_S` at least.

        Infinite where there is no such low.
        """
        if left_bytes is None:
            return math.inf
        above = [left_bytes - low for low in self._lows_bytes if left_bytes >= low]
        return max(LEAST_S, min(above) / FASTEST_BYTES_PER_S) if above else math.inf
