"""How long batches of one model take on one executor: as measured there, times the pace that it is seen to keep. Pure.

The usual seconds come from a profile, or from the measurement when the model was loaded; where there is neither, the
first batches tell. The pace is observed to expected time: 1 as usual, 3 where everything takes three times as long. It
is one number for all sizes, so that one batch of any size shows a machine that has become slow.

The rest of an error belongs to the size: the profile's machine may have gained less by batches than this one does.
That is learned by each size as from a sample of which what was known before is a few batches, so that it outweighs a
wrong profile, while a slow moment, which all sizes share and which ends, leaves little behind.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping

from firstline_core.runtime.batch_times import BatchTimes

# Weight of the newest batch where the one before has just ended; and the time in which what is known halves in worth.
_NEWEST, _HALF_LIFE_S = 0.2, 2.0
# No batch says more than that it took so many times what was expected: one hiccup moves no traffic for long.
_HICCUP = 4.0
# Batches of one size that tell what is usual, where nothing else does; as many of them outweigh what was said before,
# and the newest never counts less than one of so many.
_LEARNING, _MOST = 8, 64


class Forecast:
    """Of one model.

    Args:
        seconds: that batches took when they were measured, by their rows; nothing where they were not.
    """

    def __init__(self, seconds: Mapping[int, float]) -> None:
        self._usual = BatchTimes()
        self._usual.expect(seconds)
        self._seen: Counter[int] = Counter({_size(rows): _LEARNING for rows in seconds})
        self._log_pace = 0.0
        self._heard_s = -math.inf

    @property
    def known(self) -> bool:
        """Whether it was ever measured, or ran."""
        return self._usual.known

    @property
    def pace(self) -> float:
        """Present batch times as a multiple of the usual ones."""
        return math.exp(self._log_pace)

    def seconds(self, rows: int) -> float | None:
        """Returns the expected seconds of a batch that starts now, or None if nothing is known."""
        return self._usual.seconds(rows) * self.pace if self.known else None

    def worthwhile_rows(self, max_rows: int) -> int:
        """The largest batch, up to `max_rows`, that pays there; see `BatchTimes`."""
        return self._usual.worthwhile_rows(max_rows)

    def has_tried(self, rows: int) -> bool:
        """Whether a batch of the size of these rows ran, or was measured."""
        return self._usual.has_tried(rows)

    def observe(self, rows: int, took_s: float, *, wait_s: float, pace: float, now_s: float) -> None:
        """Learns from a batch that ended.

        Args:
            rows: of the batch.
            took_s: from when it was given to the executor.
            wait_s: that it was expected to wait there for a slot.
            pace: that was expected of it then.
            now_s: the present.
        """
        run_s = self._usual.seconds(rows) * pace
        expected_s = wait_s + run_s
        size = _size(rows)
        if self._seen[size] < _LEARNING:
            self._seen[size] += 1
            share = run_s / expected_s if run_s > 0 else 1.0  # of a model that never ran nobody knows its share
            self._usual.observe(rows, took_s * share / pace, now_s)
            self._heard_s = now_s
        else:
            found = math.log(max(took_s, 1e-6) / max(expected_s, 1e-6)) + math.log(pace)
            self._seen[size] = min(_MOST, self._seen[size] + 1)
            over = max(-math.log(_HICCUP), min(math.log(_HICCUP), found - self._log_pace)) / self._seen[size]
            self._usual.scale(rows, math.exp(over))
            self._learn(found - over, now_s)

    def waited(self, rows: int, waited_s: float, *, wait_s: float, pace: float, now_s: float) -> None:
        """Learns from a batch that was given up: it would have taken longer than that."""
        expected_s = wait_s + self._usual.seconds(rows) * pace
        if self.known and waited_s > expected_s > 0:
            least = math.log(pace * waited_s / expected_s)
            if least > self._log_pace:
                self._learn(least, now_s)

    def _learn(self, log_pace: float, now_s: float) -> None:
        kept = (1 - _NEWEST) * 0.5 ** (max(0.0, now_s - self._heard_s) / _HALF_LIFE_S)
        newest = min(log_pace, self._log_pace + math.log(_HICCUP))
        self._log_pace = kept * self._log_pace + (1 - kept) * newest
        self._heard_s = now_s


def _size(rows: int) -> int:
    return (rows - 1).bit_length() if rows > 1 else 0
