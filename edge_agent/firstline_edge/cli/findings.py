"""The findings of `doctor`: a subject, its state, and what to type."""

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
        advice: what to type, or "" if nothing needs to be done.
    """

    subject: str
    state: State
    detail: str
    advice: str = ""


def ok(subject: str, detail: str) -> Finding:
    """Returns a finding about a part that works."""
    return Finding(subject, State.OK, detail)


def slow(subject: str, detail: str, advice: str = "") -> Finding:
    """Returns a finding about a part that works worse than it could."""
    return Finding(subject, State.SLOW, detail, advice)


def missing(subject: str, detail: str, advice: str = "") -> Finding:
    """Returns a finding about a part that does not work; the project's error messages contain their own advice."""
    return Finding(subject, State.MISSING, detail, advice)


def slow_if(is_slow: bool, subject: str, detail: str, advice: str) -> Finding:
    """Returns a finding about a part that works; with the advice if it is slow."""
    return slow(subject, detail, advice) if is_slow else ok(subject, detail)
