"""Learned durations of a model's batches. Pure; bounded memory."""

from __future__ import annotations

from collections.abc import Mapping

# Weight of the newest batch in the running mean of its size; an outlier counts as at most twice the mean.
_SMOOTHING, _HICCUP = 0.2, 2.0
# Required gain in throughput of a batch of twice the size; a smaller gain only increases latency.
GAIN = 1.05
# Sizes without a gain are tried again after this many batches: models and machines change.
_RETRY_BATCHES = 500


class BatchTimes:
    """Seconds per row, for batches of 1, 2, 3-4, 5-8, ... rows.

    A table instead of a linear fit: real models have steps (caches, vector widths, several runs for one large request),
    and in a table one size does not distort another. For an unknown size no gain by batching is assumed: a batch takes
    as long as its parts one after the other.
    """

    __slots__ = ("_batches", "_seconds_per_row", "_tried", "ended_s")

    def __init__(self) -> None:
        self._seconds_per_row: dict[int, float] = {}  # by power of two
        self._tried: dict[int, int] = {}  # number of batches at the last run of this size
        self._batches = 0
        self.ended_s = float("-inf")

    @property
    def known(self) -> bool:
        """Returns whether any batch ran."""
        return bool(self._seconds_per_row)

    def expect(self, seconds: Mapping[int, float]) -> None:
        """Adds measured durations by number of rows, before any batch ran."""
        for rows, each in seconds.items():
            self._seconds_per_row.setdefault(_size_of(rows), each / rows)
            self._tried.setdefault(_size_of(rows), self._batches)

    def observe(self, rows: int, seconds: float, now_s: float) -> None:
        """Learns from a batch that ended."""
        self.ended_s = now_s
        size, newest = _size_of(rows), seconds / rows
        before = self._seconds_per_row.get(size, newest)
        self._seconds_per_row[size] = before + _SMOOTHING * (min(newest, _HICCUP * before) - before)
        self._batches += 1
        self._tried[size] = self._batches

    def scale(self, rows: int, factor: float) -> None:
        """Adds a batch that changes the duration of its size by a factor."""
        size = _size_of(rows)
        self._seconds_per_row[size] = self.seconds(rows) / rows * factor
        self._batches += 1
        self._tried[size] = self._batches

    def has_tried(self, rows: int) -> bool:
        """Returns whether a batch of this size ran or was measured."""
        return _size_of(rows) in self._tried

    def seconds(self, rows: int) -> float:
        """Returns the expected duration of a batch; 0 for an unknown model."""
        size = _size_of(rows)
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
        size, largest = 0, _size_of(max_rows)
        while size < largest:
            each, doubled = self._seconds_per_row.get(size), self._seconds_per_row.get(size + 1)
            fresh = self._batches - self._tried.get(size + 1, 0) < _RETRY_BATCHES
            if each is None or doubled is None or not fresh:
                size += 1
                break  # one unknown step at a time
            if each < GAIN * doubled:
                break
            size += 1
        return min(max_rows, 1 << size)


def _size_of(rows: int) -> int:
    """Returns the exponent of the next power of two."""
    return (rows - 1).bit_length() if rows > 1 else 0
