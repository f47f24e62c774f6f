"""How long batches of a model take on the event loop; see `base.runs_on_loop`."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping

from firstline_core.runtime.base import LOOP_LIMIT_S, runs_on_loop
from firstline_core.runtime.batch_times import BatchTimes

WINDOW = 32
"""Batches in threads that are looked at together."""

# A model that became too slow for the loop is tried there again after so long, if it was quick when it was loaded.
_RETRY_S = 10.0
# A longer run is no disturbance by the machine: the model has become slow.
_SLOW_S = 0.1
# A model comes to the loop only with a margin, so that one at the limit stays where it is.
_RETURN_S = 0.8 * LOOP_LIMIT_S
# So many of the window have to be that quick. Not most: in a thread a batch may wait for the interpreter's lock.
_QUICK = WINDOW // 4


class LoopTimes:
    """How long batches of one loaded model take on the event loop. Batches in threads are learned from separately.

    Args:
        measured: seconds of batches when the model was loaded, by rows; empty if it was not measured.
        now_s: the present, monotonic.

    Attributes:
        measured: the same, or the times of live batches once those show that the model is quick.
    """

    __slots__ = ("_in_threads", "_retry_s", "_times", "measured")

    def __init__(self, measured: Mapping[int, float], now_s: float) -> None:
        self.measured = measured
        self._in_threads: deque[tuple[int, float]] = deque(maxlen=WINDOW)
        self._expect(now_s)

    def seconds(self, rows: int, now_s: float) -> float | None:
        """Returns the expected seconds of a batch on the loop, or None if it has to run in a thread."""
        if not self.measured:
            return None
        expected_s = self._times.seconds(rows)
        if runs_on_loop(expected_s):
            return expected_s
        if now_s >= self._retry_s:
            self._expect(now_s)
        return None

    def expected_s(self, rows: int) -> float:
        """Returns the expected seconds of a batch on the loop, whether or not it may run there."""
        return self._times.seconds(rows)

    def worthwhile_rows(self, max_rows: int) -> int:
        """Returns the largest batch, up to `max_rows`, that gains by its size and is within the limit of the loop."""
        rows = self._times.worthwhile_rows(max_rows)
        while rows > 1 and not runs_on_loop(self._times.seconds(rows)):
            rows //= 2
        return rows

    def observe(self, rows: int, seconds: float, now_s: float) -> None:
        """Learns from a batch that ran on the loop."""
        if seconds > _SLOW_S:
            self._times = BatchTimes()
            self._retry_s = now_s + _RETRY_S
        self._times.observe(rows, seconds, now_s)

    def observe_in_thread(self, rows: int, seconds: float, now_s: float) -> None:
        """Learns from a batch that ran in a thread.

        A machine that is busy while a model is loaded makes a quick model look slow. Live batches correct that.
        """
        if runs_on_loop(self.measured.get(1, 0.0)):
            return
        self._in_threads.append((rows, seconds))
        if len(self._in_threads) < WINDOW or sum(took_s < _RETURN_S for _, took_s in self._in_threads) < _QUICK:
            return
        least_s: dict[int, float] = {}
        for size, took_s in self._in_threads:
            least_s[size] = min(took_s, least_s.get(size, took_s))
        self.measured = least_s
        self._expect(now_s)

    def _expect(self, now_s: float) -> None:
        self._retry_s = now_s + _RETRY_S
        self._times = BatchTimes()
        self._times.expect(self.measured)
