"""Learned durations of a model's batches, in threads and on the event loop. Pure; bounded memory."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping

LOOP_LIMIT_S = 0.001
"""A batch that is expected to take this long or longer runs in a thread."""

# Weight of the newest batch in the running mean of its size; an outlier counts as at most twice the mean.
_SMOOTHING, _MOST_SLOWER = 0.2, 2.0
# Required gain in throughput of a batch of twice the size; a smaller gain only increases latency.
GAIN = 1.05
# Sizes without a gain are tried again after this many batches: models and machines change.
_RETRY_BATCHES = 500

WINDOW = 32
"""Batches in threads that are looked at together."""

# Pause before a model that became too slow for the loop is tried there again, if it was quick when it was loaded.
_RETRY_S = 10.0
# A longer run is not due to a disturbance of the machine: the model has become slow.
_SLOW_S = 0.1
# A model comes to the loop only with a margin, so that one at the limit stays where it is.
_RETURN_S = 0.8 * LOOP_LIMIT_S
# Batches of the window that have to be that quick. Not most: in a thread a batch may wait for the interpreter's lock.
_QUICK = WINDOW // 4


def runs_on_loop(expected_s: float) -> bool:
    """Returns whether a batch runs on the event loop; otherwise it runs in a thread.

    Handing a batch to a thread and its result back takes some hundred microseconds: a shorter batch costs less than
    that. A longer one would hold up everything else on the loop.

    Args:
        expected_s: the expected time of the batch in seconds, from measurements; infinite without one.
    """
    return expected_s < LOOP_LIMIT_S


class BatchTimes:
    """Seconds per row, for batches of 1, 2, 3-4, 5-8, ... rows.

    A table instead of a linear fit: real models have steps (caches, vector widths, several runs for one large request),
    and in a table one size does not distort another. For an unknown size no gain by batching is assumed: a batch takes
    as long as its parts one after the other.

    Args:
        batch: the most rows that gain by running together, for a model that declares it; None to learn it.
    """

    __slots__ = ("_batches", "_seconds_per_row", "_tried", "_worthwhile", "batch", "ended_s")

    def __init__(self, batch: int | None = None) -> None:
        self.batch = batch
        self._seconds_per_row: dict[int, float] = {}  # by power of two
        self._tried: dict[int, int] = {}  # number of batches at the last run of this size
        self._worthwhile: dict[int, int] = {}  # found rows by the most rows, until the next batch
        self._batches = 0
        self.ended_s = float("-inf")

    @property
    def known(self) -> bool:
        """Returns whether any batch ran."""
        return bool(self._seconds_per_row)

    def expect(self, seconds: Mapping[int, float]) -> None:
        """Adds measured durations by number of rows, before any batch ran."""
        for rows, each in seconds.items():
            self._seconds_per_row.setdefault(size_of(rows), each / rows)
            self._tried.setdefault(size_of(rows), self._batches)
        self._worthwhile.clear()

    def observe(self, rows: int, seconds: float, now_s: float) -> None:
        """Learns from a batch that ended."""
        self.ended_s = now_s
        size, newest = size_of(rows), seconds / rows
        before = self._seconds_per_row.get(size) or newest  # a coarse clock may have measured 0
        self._seconds_per_row[size] = before + _SMOOTHING * (min(newest, _MOST_SLOWER * before) - before)
        self._count(size)

    def scale(self, rows: int, factor: float) -> None:
        """Adds a batch that changes the duration of its size by a factor."""
        size = size_of(rows)
        self._seconds_per_row[size] = self.seconds(rows) / rows * factor
        self._count(size)

    def _count(self, size: int) -> None:
        self._batches += 1
        self._tried[size] = self._batches
        self._worthwhile.clear()

    def has_tried(self, rows: int) -> bool:
        """Returns whether a batch of this size ran or was measured."""
        return size_of(rows) in self._tried

    def seconds(self, rows: int) -> float:
        """Returns the expected duration of a batch; 0 for an unknown model."""
        size = size_of(rows)
        each = self._seconds_per_row.get(size)
        if each is not None:
            return rows * each
        smaller = [known for known in self._seconds_per_row if known <= size]
        if smaller:
            return rows * self._seconds_per_row[max(smaller)]
        # Only larger batches ran: a smaller one takes at most as long.
        return min((each * 2**known for known, each in self._seconds_per_row.items()), default=0.0)

    def worthwhile_rows(self, max_rows: int) -> int:
        """Returns the largest batch, up to `max_rows`, with notably more throughput than one of half its size.

        A size that was not tried recently counts as such.
        """
        if max_rows not in self._worthwhile:  # several requests are placed between two batches
            self._worthwhile[max_rows] = self._find_worthwhile(max_rows)
        return self._worthwhile[max_rows]

    def _find_worthwhile(self, max_rows: int) -> int:
        if self.batch is not None:
            max_rows = min(max_rows, self.batch)
        size, largest = 0, size_of(max_rows)
        while size < largest:
            each, doubled = self._seconds_per_row.get(size), self._seconds_per_row.get(size + 1)
            fresh = self._batches - self._tried.get(size + 1, 0) < _RETRY_BATCHES
            if doubled is None or not fresh:
                size += 1
                break  # one unknown step at a time
            if each is not None and each < GAIN * doubled:
                break
            size += 1
        return min(max_rows, 1 << size)


def size_of(rows: int) -> int:
    """Returns the exponent of the next power of two."""
    return (rows - 1).bit_length() if rows > 1 else 0


class LoopTimes:
    """How long batches of one loaded model take on the event loop. Batches in threads are learned from separately.

    Args:
        measured: seconds of batches when the model was loaded, by rows; empty if it was not measured.
        now_s: the present, monotonic.
        batch: see `BatchTimes`.

    Attributes:
        measured: the same, or the times of live batches once those show that the model is quick.
    """

    __slots__ = ("_batch", "_in_threads", "_retry_s", "_times", "measured")

    def __init__(self, measured: Mapping[int, float], now_s: float, batch: int | None = None) -> None:
        self.measured = measured
        self._batch = batch
        self._in_threads: deque[tuple[int, float]] = deque(maxlen=WINDOW)
        self._expect(now_s)

    def quick_s(self, rows: int) -> float | None:
        """Returns the expected seconds of a batch on the loop; None if it has to run in a thread."""
        if not self.measured:
            return None
        seconds = self._times.seconds(rows)
        return seconds if runs_on_loop(seconds) else None

    def retry_if_due(self, now_s: float) -> None:
        """Forgets what was learned on the loop if a model that was too slow there is due for another try."""
        if self.measured and now_s >= self._retry_s:
            self._expect(now_s)

    def seconds(self, rows: int) -> float:
        """Returns the expected seconds of a batch on the loop, whether or not it may run there."""
        return self._times.seconds(rows)

    def worthwhile_rows(self, max_rows: int) -> int:
        """Returns the largest batch, up to `max_rows`, that is within the limit of the loop.

        Each batch saves the costs of one more, which are more than the time of a quick model.
        """
        rows = max_rows if self._batch is None else min(max_rows, self._batch)
        while rows > 1 and not runs_on_loop(self._times.seconds(rows)):
            rows //= 2
        return rows

    def observe(self, rows: int, seconds: float, now_s: float) -> None:
        """Learns from a batch that ran on the loop."""
        if seconds > _SLOW_S:
            self._times = BatchTimes(self._batch)
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
        self._times = BatchTimes(self._batch)
        self._times.expect(self.measured)
