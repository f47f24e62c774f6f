"""The findings of `doctor`: a subject, how it is, and what to type."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class State(StrEnum):
    OK = "ok"
    SLOW = "slow"  # it works, worse than it could
    MISSING = "missing"  # something that is configured or needed does not work


@dataclass(frozen=True, slots=True)
class Finding:
    """One fact about this device.

    Args:
        subject: the part that was checked.
        state: how it is.
        detail: the finding, with figures.
        advice: what to type, or "" where nothing needs to be done.
    """

    subject: str
    state: State
    detail: str
    advice: str = ""


def from_error(subject: str, sentence: str, advice: str = "") -> Finding:
    """A finding for something that fails; our errors say what to do themselves."""
    return Finding(subject, State.MISSING, sentence, advice)
