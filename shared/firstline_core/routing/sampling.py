"""With which probability is the next kept answer audited? From a budget and from past traffic, and nothing else.

A propensity that knows nothing of the answer itself, neither its score nor its size nor whether it is right, needs no
weights: its floor is itself (see `audit.py`). So an answer is counted, and its audit is charged, only after its
propensity is fixed, and what an audit costs beyond what is left becomes a debt that later answers wait for. For the
same reason a propensity may be used for some answers more: it knows less of the past then, and nothing of them.

The budget is a bucket for audits and one for bytes. Each fills at 3/4 of what an hour allows and holds a quarter of it
at most, so that no hour sees more than was allowed, but for one payload. The propensity spends what is in the buckets
over the next `HORIZON_S` at the pace of the latest ones: half-full buckets are where spending and filling meet. They
begin empty, so that a process that restarts for ever spends no more than one that does not.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

HORIZON_S = 600.0
"""Seconds over which the pace of the traffic is remembered."""

_HOUR_S = 3600.0
_FILL, _HOLD = 0.75, 0.25  # of an hour's allowance: together the most that is spent in any hour


@dataclass(frozen=True, slots=True)
class Allowance:
    """What audits may cost.

    Args:
        per_hour: audits.
        bytes_per_hour: of payload.
        max_share: the largest propensity, at most 1, however much is allowed.
    """

    per_hour: float
    bytes_per_hour: float
    max_share: float


class Pace(NamedTuple):
    """All that is remembered of the traffic.

    Attributes:
        at_s: when the rest was true.
        rows: kept answers that could have been audited, decayed over `HORIZON_S`.
        size_bytes: of their payload, likewise.
        audits: left in the bucket; a debt where below 0.
        audit_bytes: likewise.
    """

    at_s: float
    rows: float = 0.0
    size_bytes: float = 0.0
    audits: float = 0.0
    audit_bytes: float = 0.0


def elapsed(pace: Pace, now_s: float, allowance: Allowance) -> Pace:
    """The pace as it is now; time that goes backwards stands still."""
    passed_s = max(0.0, now_s - pace.at_s)
    decay = math.exp(-passed_s / HORIZON_S)
    return Pace(
        now_s,
        pace.rows * decay,
        pace.size_bytes * decay,
        filled(pace.audits, passed_s, allowance.per_hour),
        filled(pace.audit_bytes, passed_s, allowance.bytes_per_hour),
    )


def filled(level: float, passed_s: float, per_hour: float) -> float:
    """What is in a bucket after some seconds: it holds a quarter of what an hour allows, or 1 where that is less."""
    return min(level + _FILL * passed_s / _HOUR_S * per_hour, max(_HOLD * per_hour, min(1.0, per_hour)))


def propensity(pace: Pace, allowance: Allowance) -> float:
    """The probability with which the next answer is audited, whatever it is; also its floor.

    Args:
        pace: as it is now, see `elapsed`.
        allowance: what audits may cost.
    """
    if pace.audits <= 0 or pace.audit_bytes <= 0:
        return 0.0
    share = allowance.max_share
    if pace.audits < share * pace.rows:
        share = pace.audits / pace.rows
    if pace.audit_bytes < share * pace.size_bytes:
        share = pace.audit_bytes / pace.size_bytes
    return share


def counted(pace: Pace, rows: int, size_bytes: int) -> Pace:
    """The pace after so many more answers, which together have so many bytes."""
    return pace._replace(rows=pace.rows + rows, size_bytes=pace.size_bytes + size_bytes)


def charged(pace: Pace, size_bytes: int) -> Pace:
    """The pace after an audit of so many bytes was drawn; what it costs beyond what there is becomes a debt."""
    return pace._replace(audits=pace.audits - 1, audit_bytes=pace.audit_bytes - size_bytes)
