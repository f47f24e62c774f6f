"""The findings of `doctor`: a subject, its severity, and what to type."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Severity(StrEnum):
    OK = "ok"
    HINT = "hint"  # it works, and could work better
    WARNING = "warning"  # it works with a restriction, or will fail
    ERROR = "error"  # something that is configured or needed does not work, or a secret is exposed


@dataclass(frozen=True, slots=True)
class Finding:
    """One fact about this device.

    Args:
        subject: the part that was checked.
        severity: how it is.
        detail: the finding, with figures.
        advice: what to type, or "" if nothing needs to be done.
    """

    subject: str
    severity: Severity
    detail: str
    advice: str = ""


def ok(subject: str, detail: str) -> Finding:
    """Returns a finding about a part that works."""
    return Finding(subject, Severity.OK, detail)


def hint(subject: str, detail: str, advice: str = "") -> Finding:
    """Returns a finding about a part that could work better."""
    return Finding(subject, Severity.HINT, detail, advice)


def hint_if(could_be_better: bool, subject: str, detail: str, advice: str) -> Finding:
    """Returns a finding about a part that works; with the advice if it could work better."""
    return hint(subject, detail, advice) if could_be_better else ok(subject, detail)


def warning(subject: str, detail: str, advice: str = "") -> Finding:
    """Returns a finding about a part that works with a restriction."""
    return Finding(subject, Severity.WARNING, detail, advice)


def problem(subject: str, detail: str, advice: str = "") -> Finding:
    """Returns a finding about a part that does not work; the project's error messages contain their own advice."""
    return Finding(subject, Severity.ERROR, detail, advice)
