"""What a model is known to take for a batch: as measured when it was loaded, until live batches show that it is small.

A machine that is busy while a model is loaded makes a small one look large, and it would stay off the event loop for as
long as it is loaded. The other way round nothing is to be done here: a model that becomes slow leaves the loop by what
its batches take there (`serving/scheduling/inline.py`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping

from firstline_gateway.serving.scheduling.inline import INLINE_S

# So much less than what makes a model leave the loop: one in between stays where it is.
RETURN_S = 0.8 * INLINE_S
WINDOW = 32
"""Batches that are looked at together."""
# So many of them have to be that quick. Not most: in a thread a batch may wait for the interpreter's lock.
_QUICK = WINDOW // 4


class LiveTimes:
    """Of one loaded model.

    Args:
        measured: seconds that batches took when it was loaded, by their rows; nothing where it was not measured.
    """

    __slots__ = ("_latest", "measured")

    def __init__(self, measured: Mapping[int, float]) -> None:
        self.measured = measured
        self._latest: deque[tuple[int, float]] | None = None
        if measured.get(1, 0.0) > INLINE_S:
            self._latest = deque(maxlen=WINDOW)

    def observe(self, rows: int, seconds: float) -> None:
        """Learns from a batch that ran in a thread; `measured` is another mapping once they show a small model."""
        if self._latest is None:
            return
        self._latest.append((rows, seconds))
        if len(self._latest) < WINDOW or sum(took_s < RETURN_S for _, took_s in self._latest) < _QUICK:
            return
        least_s: dict[int, float] = {}
        for size, took_s in self._latest:
            least_s[size] = min(took_s, least_s.get(size, took_s))
        self.measured, self._latest = least_s, None
