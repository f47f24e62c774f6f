"""How long batches of one model take, learned from those that ran. Pure; bounded memory."""

from __future__ import annotations

from collections.abc import Mapping

# Weight of the newest batch in the running mean of its size; one hiccup counts as twice the mean at most.
_SMOOTHING, _HICCUP = 0.2, 2.0
# A batch twice as large has to bring so much more a second; below, it would only make everybody in it wait longer.
GAIN = 1.05
# Sizes that nothing smaller recommends are tried again after so many batches: models and machines change.
_RETRY_BATCHES = 500


class BatchTimes:
    """Seconds a row, for batches of 1, 2, 3-4, 5-8, ... rows.

    A table instead of a line through the points: real models have steps (caches, vector widths, several runs for one
    large request), and a table is never wrong about a size because of another one. Where a size was never seen,
    nothing is taken to be gained by batching: a batch takes no longer than its parts one after the other.
    """

    __slots__ = ("_batches", "_seconds_per_row", "_tried", "ended_s")

    def __init__(self) -> None:
        self._seconds_per_row: dict[int, float] = {}  # by the power of two
        self._tried: dict[int, int] = {}  # how many batches had run when this size last did
        self._batches = 0
        self.ended_s = float("-inf")

    @property
    def known(self) -> bool:
        """Whether any batch ran."""
        return bool(self._seconds_per_row)

    def expect(self, seconds: Mapping[int, float]) -> None:
        """Takes what batches were measured to take, by their rows, before any ran."""
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
        """A batch ran, and what its size takes is now taken to be so many times what it was."""
        size = _size_of(rows)
        self._seconds_per_row[size] = self.seconds(rows) / rows * factor
        self._batches += 1
        self._tried[size] = self._batches

    def has_tried(self, rows: int) -> bool:
        """Whether a batch of the size of these rows ran, or was measured."""
        return _size_of(rows) in self._tried

    def seconds(self, rows: int) -> float:
        """What a batch is expected to take; 0 where nothing is known of the model."""
        size = _size_of(rows)
        each = self._seconds_per_row.get(size)
        if each is not None:
            return rows * each
        smaller = [known for known in self._seconds_per_row if known <= size]
        if smaller:
            return rows * self._seconds_per_row[max(smaller)]
        # Only larger ones ran: it takes no longer than they did.
        return min((each * 2**known for known, each in self._seconds_per_row.items()), default=0.0)

    def worthwhile_rows(self, max_rows: int) -> int:
        """The largest batch, up to `max_rows`, that answers notably more rows a second than one of half its size.

        A size that was not tried of late counts as one that does.
        """
        size, largest = 0, _size_of(max_rows)
        while size < largest:
            each, doubled = self._seconds_per_row.get(size), self._seconds_per_row.get(size + 1)
            fresh = self._batches - self._tried.get(size + 1, 0) < _RETRY_BATCHES
            if each is None or doubled is None or not fresh:
                size += 1
                break  # one step into the unknown at a time
            if each < GAIN * doubled:
                break
            size += 1
        return min(max_rows, 1 << size)


def _size_of(rows: int) -> int:
    """The power of two that `rows` are rounded up to."""
    return (rows - 1).bit_length() if rows > 1 else 0
