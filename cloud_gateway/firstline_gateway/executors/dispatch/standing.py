"""Who is left alone after errors, and when somebody who gets no work is tried. Pure: times are handed in.

Three failures of a model in a row, and an executor is left alone with it: for half a second at first, then twice as
long each time. After that it is tried with a copy of a batch that another one answers, so that no caller depends on it;
two copies in a row that it answers bring it back. In the same way, and for as long as it gets no other work, an
executor is tried that is well but slow: without that nobody would learn that it has become quick again.
"""

from __future__ import annotations

import math

_FAILURES = 3
_FIRST_S, _LONGEST_S = 0.5, 30.0
_ANSWERS = 2
# An executor that has answered so much in a row has lived its earlier failures down.
_LIVED_DOWN = 100
_PROBE_FIRST_S, _PROBE_LONGEST_S = 1.0, 4.0
COPIES_SHARE, COPIES_SAVED_S = 0.02, 2.0
"""The share of an executor's time that copies may take, and how many seconds of that are saved up."""


class Standing:
    """Of one model on one executor: one that has no memory for a large model may be well for a small one."""

    def __init__(self) -> None:
        self._failures = self._answers = self._ejections = 0
        self._until_s = -math.inf
        self.trusted = True

    def answered(self) -> None:
        """It answered a batch. What it refuses because of the request says nothing of it, and is not told."""
        self._failures = 0
        self._answers += 1
        if not self.trusted and self._answers >= _ANSWERS:
            self.trusted = True
        if self._answers >= _LIVED_DOWN:
            self._ejections = 0

    def failed(self, now_s: float) -> bool:
        """It did not answer, or said that it cannot; whether it is left alone with the model because of that."""
        self._answers = 0
        self._failures += 1
        if self.trusted and self._failures < _FAILURES:
            return False
        if self.trusted or now_s >= self._until_s:  # what was under way with it fails once, not twice
            self._until_s = now_s + min(_LONGEST_S, _FIRST_S * 2.0 ** min(self._ejections, 16))
            self._ejections += 1
        news, self.trusted, self._failures = self.trusted, False, 0
        return news

    def may_be_tried(self, now_s: float) -> bool:
        """Whether its pause is over."""
        return self.trusted or now_s >= self._until_s

    def left_s(self, now_s: float) -> float:
        """Seconds that it is still left alone; 0 where it is not."""
        return 0.0 if self.trusted else max(0.0, self._until_s - now_s)


class Probes:
    """When one model's batches are copied to one executor."""

    def __init__(self) -> None:
        self._due_s = -math.inf
        self._pause_s = _PROBE_FIRST_S

    def used(self, now_s: float) -> None:
        """It has work of its own."""
        self._pause_s = _PROBE_FIRST_S
        self._due_s = now_s + self._pause_s

    def due(self, now_s: float) -> bool:
        return now_s >= self._due_s

    def sent(self, now_s: float) -> None:
        """A copy is on its way."""
        self._due_s = now_s + self._pause_s
        self._pause_s = min(_PROBE_LONGEST_S, 2 * self._pause_s)


class CopyTime:
    """What the copies of all models may take of one executor's time.

    By what they took: of one that has become slow that is known afterwards alone. The next one waits until it is made
    up for.
    """

    def __init__(self) -> None:
        self._left_s = COPIES_SAVED_S
        self._at_s: float | None = None

    def may(self, now_s: float) -> bool:
        """Whether one more may be sent."""
        if self._at_s is not None:
            self._left_s = min(COPIES_SAVED_S, self._left_s + COPIES_SHARE * max(0.0, now_s - self._at_s))
        self._at_s = now_s
        return self._left_s > 0

    def took(self, seconds: float, now_s: float) -> None:
        """One has ended, or was given up, after so long."""
        self.may(now_s)
        self._left_s -= seconds
