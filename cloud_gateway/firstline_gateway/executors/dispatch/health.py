"""Ejection of executors after errors, and probes that bring them back. Pure: times are arguments.

After three failures of a model in a row an executor is ejected for that model: for half a second at first, then for
twice as long each time. After that it is probed with copies of batches that another executor answers, so that no caller
depends on it. Two answers in a row end the ejection. A healthy but slow executor that gets no other work is probed in
the same way, or no measurement would show that it has become fast again.
"""

from __future__ import annotations

import math

_FAILURES = 3
_FIRST_S, _LONGEST_S = 0.5, 30.0
_ANSWERS = 2
# After so many answers in a row earlier ejections no longer count.
_FORGIVEN = 100
_PROBE_FIRST_S, _PROBE_LONGEST_S = 1.0, 4.0
PROBE_SHARE, PROBE_SAVED_S = 0.02, 2.0
"""The share of an executor's time that probes may take, and the seconds of it that may be saved up."""


class Health:
    """Of one model on one executor: one without memory for a large model may answer for a small one.

    Attributes:
        trusted: whether the executor is not ejected.
    """

    def __init__(self) -> None:
        self._failures = self._answers = self._ejections = 0
        self._until_s = -math.inf
        self.trusted = True

    def answered(self) -> None:
        """The executor answered a batch. A refusal because of the request itself does not count."""
        self._failures = 0
        self._answers += 1
        if self._answers >= _ANSWERS:
            self.trusted = True
        if self._answers >= _FORGIVEN:
            self._ejections = 0

    def failed(self, now_s: float) -> bool:
        """The executor failed a batch; returns whether this ejects it."""
        self._answers = 0
        self._failures += 1
        if self.trusted and self._failures < _FAILURES:
            return False
        if self.trusted or now_s >= self._until_s:  # batches that were running together count as one failure
            self._until_s = now_s + min(_LONGEST_S, _FIRST_S * 2.0 ** min(self._ejections, 16))
            self._ejections += 1
        ejected, self.trusted, self._failures = self.trusted, False, 0
        return ejected

    def may_be_tried(self, now_s: float) -> bool:
        """Returns whether the executor may be probed."""
        return self.trusted or now_s >= self._until_s

    def left_s(self, now_s: float) -> float:
        """Returns the seconds until an ejected executor is probed; 0 if it is not ejected."""
        return 0.0 if self.trusted else max(0.0, self._until_s - now_s)


class ProbeSchedule:
    """When one model's batches are copied to one executor."""

    def __init__(self) -> None:
        self._due_s = -math.inf
        self._pause_s = _PROBE_FIRST_S

    def used(self, now_s: float) -> None:
        """The executor got work of its own."""
        self._pause_s = _PROBE_FIRST_S
        self._due_s = now_s + self._pause_s

    def due(self, now_s: float) -> bool:
        return now_s >= self._due_s

    def sent(self, now_s: float) -> None:
        """A probe was sent."""
        self._due_s = now_s + self._pause_s
        self._pause_s = min(_PROBE_LONGEST_S, 2 * self._pause_s)


class ProbeBudget:
    """The time that probes of all models may take on one executor, by what earlier probes took."""

    def __init__(self) -> None:
        self._left_s = PROBE_SAVED_S
        self._at_s: float | None = None

    def may(self, now_s: float) -> bool:
        """Returns whether one more may be sent."""
        if self._at_s is not None:
            self._left_s = min(PROBE_SAVED_S, self._left_s + PROBE_SHARE * max(0.0, now_s - self._at_s))
        self._at_s = now_s
        return self._left_s > 0

    def took(self, seconds: float, now_s: float) -> None:
        """A probe ended, or was given up, after so long."""
        self.may(now_s)
        self._left_s -= seconds
