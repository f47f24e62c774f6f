"""The probability with which the next edge answer is audited, computed from a budget and past traffic only.

A propensity that does not depend on the answer itself (score, size, correctness) needs no weights: its floor is itself
(see `audit.py`). So an answer is counted, and its audit is charged, only after its propensity is fixed. A cost beyond
the remaining budget becomes a debt that later answers pay. For the same reason one propensity may be used for several
answers.

The budget is one token bucket for audits and one for bytes. Each fills at 3/4 of the hourly allowance and holds at most
1/4 of it, so that no hour exceeds the allowance by more than one payload. The propensity spends the content of the
buckets over the next `HORIZON_S` at the recent rate of traffic; spending and filling balance at half-full buckets. They
start empty, so that frequent restarts do not spend more.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

HORIZON_S = 600.0
"""Time constant of the traffic estimate (seconds)."""

_HOUR_S = 3600.0
_FILL, _HOLD = 0.75, 0.25  # of the hourly allowance; together the maximum of any hour


@dataclass(frozen=True, slots=True)
class Allowance:
    """The budget of audits.

    Args:
        per_hour: audits.
        bytes_per_hour: of payload.
        max_share: the largest propensity, at most 1, whatever the budget.
    """

    per_hour: float
    bytes_per_hour: float
    max_share: float


class Pace(NamedTuple):
    """The state of the traffic estimate.

    Attributes:
        at_s: time of this state.
        rows: edge answers that could have been audited, decayed over `HORIZON_S`.
        size_bytes: of their payload, decayed likewise.
        audits: tokens in the bucket; negative for a debt.
        audit_bytes: tokens in the bucket of bytes.
    """

    at_s: float
    rows: float = 0.0
    size_bytes: float = 0.0
    audits: float = 0.0
    audit_bytes: float = 0.0


def elapsed(pace: Pace, now_s: float, allowance: Allowance) -> Pace:
    """Returns the state at a later time; a clock that goes backwards is ignored."""
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
    """Returns the content of a bucket after some seconds.

    Its capacity is a quarter of the hourly allowance, at least 1.
    """
    return min(level + _FILL * passed_s / _HOUR_S * per_hour, max(_HOLD * per_hour, min(1.0, per_hour)))


def propensity(pace: Pace, allowance: Allowance) -> float:
    """Returns the probability with which the next answer is audited, which is also its floor.

    Args:
        pace: as it is now, see `elapsed`.
        allowance: the budget of audits.
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
    """Returns the state after more answers with a total size."""
    return pace._replace(rows=pace.rows + rows, size_bytes=pace.size_bytes + size_bytes)


def charged(pace: Pace, size_bytes: int) -> Pace:
    """Returns the state after an audit of a given size; a cost beyond the bucket's content becomes a debt."""
    return pace._replace(audits=pace.audits - 1, audit_bytes=pace.audit_bytes - size_bytes)
