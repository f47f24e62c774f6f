"""The probability with which the next edge answer is audited, computed from a budget and past traffic only.

The propensity of an answer is the probability that it is audited. Its draw probability is that probability once it is
known that its source does not pause; without pauses both are the same. `audit.max_share` is the largest propensity.

The propensity does not depend on the answer itself (score, size, correctness), so audits need no weights. For the same
reason an answer and its audit are charged to the budget only after its propensity is fixed, and one propensity may be
used for several answers. A cost beyond the remaining budget becomes a debt that later answers pay.

The budget is one token bucket for audits and one for bytes. Each fills at 3/4 of the hourly allowance and holds at most
1/4 of it, so that no hour exceeds the allowance by more than one payload. The propensity spends the content of the
buckets over the next `HORIZON_S` at the recent rate of traffic; spending and filling balance at half-full buckets. They
start empty, so that frequent restarts do not spend more.

A source pauses after an audit, so that two of its audits are some time apart (`spaced_probabilities`). An answer
outside a pause is drawn with the probability p / (1 - s), where s is the sum of the propensities of the source's
answers within the last pause length. The source pauses if one of those was drawn. At most one of them can be, so the
probability of a pause is s. The probability of drawing the answer is (1 - s) * p / (1 - s) = p, however the rate and
the risk of the source change. This needs s + p <= 1. So p is at most 1 / n, where n is the largest number of answers
that a source had within a pause length (`Peak`).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

from firstline_core.units import DAY_S, HOUR_S

HORIZON_S = 600.0
"""Time constant of the traffic estimate (seconds)."""

_LEAST_FREE = 1e-6  # probability of no pause below which rounding decides, so that no answer is drawn
_FILL, _HOLD = 0.75, 0.25  # of the hourly allowance; together the maximum of any hour


@dataclass(frozen=True, slots=True)
class Allowance:
    """The most that audits may cost in an hour.

    Args:
        per_hour: audits.
        bytes_per_hour: of payload.
        max_share: the largest propensity, at most 1, whatever the budget.
    """

    per_hour: float
    bytes_per_hour: float
    max_share: float


class Peak(NamedTuple):
    """The largest of the numbers in this day and the one before, so that bursts which come daily are expected.

    Attributes:
        day: the number of this day, on the clock of the caller.
        latest: the largest number in this day.
        earlier: the largest number in the day before.
    """

    day: int = 0
    latest: int = 0
    earlier: int = 0

    @property
    def value(self) -> int:
        """The largest number; 0 without any."""
        return max(self.latest, self.earlier)

    def with_number(self, number: int, now_s: float) -> Peak:
        """Returns the peak after one more number."""
        day = int(now_s // DAY_S)
        if day == self.day:
            return self if number <= self.latest else Peak(day, number, self.earlier)
        return Peak(day, number, self.latest if day == self.day + 1 else 0)


NO_PEAK = Peak()


class AuditBudget(NamedTuple):
    """The remaining allowance, and an estimate of the recent traffic.

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


def after_time(budget: AuditBudget, now_s: float, allowance: Allowance) -> AuditBudget:
    """Returns the state at a later time; a clock that goes backwards is ignored."""
    passed_s = max(0.0, now_s - budget.at_s)
    decay = math.exp(-passed_s / HORIZON_S)
    return AuditBudget(
        now_s,
        budget.rows * decay,
        budget.size_bytes * decay,
        refill(budget.audits, passed_s, allowance.per_hour),
        refill(budget.audit_bytes, passed_s, allowance.bytes_per_hour),
    )


def refill(level: float, passed_s: float, per_hour: float) -> float:
    """Returns the content of a bucket after some seconds.

    Its capacity is a quarter of the hourly allowance, at least 1: a small allowance is used every few hours.
    """
    capacity = max(_HOLD * per_hour, 1.0) if per_hour else 0.0
    return min(level + _FILL * passed_s / HOUR_S * per_hour, capacity)


def propensity(budget: AuditBudget, allowance: Allowance) -> float:
    """Returns the propensity of the next answer that the budget allows.

    Args:
        budget: as it is now, see `after_time`.
        allowance: per hour.
    """
    if budget.audits <= 0 or budget.audit_bytes <= 0:
        return 0.0
    probability = allowance.max_share
    if budget.audits < probability * budget.rows:
        probability = budget.audits / budget.rows
    if budget.audit_bytes < probability * budget.size_bytes:
        probability = budget.audit_bytes / budget.size_bytes
    return probability


def spaced_probabilities(target: float, taken: float) -> tuple[float, float]:
    """Returns the draw probability and the propensity of an answer of a source whose audits are some time apart.

    Args:
        target: the propensity of all answers, at most 1 / `Peak.value`.
        taken: the sum of the propensities of the source's answers within the last pause length. It leaves less than the
            target only while the source has more answers than any before.

    Returns:
        The draw probability, and the propensity; 0 and 0 if the source certainly pauses.
    """
    free = 1 - taken
    if free < _LEAST_FREE:
        return 0.0, 0.0
    propensity = min(target, free)
    return propensity / free, propensity


def add_answers(budget: AuditBudget, rows: int, size_bytes: int) -> AuditBudget:
    """Returns the state after more answers with a total size."""
    return budget._replace(rows=budget.rows + rows, size_bytes=budget.size_bytes + size_bytes)


def charge(budget: AuditBudget, size_bytes: int) -> AuditBudget:
    """Returns the state after an audit of a given size; a cost beyond the bucket's content becomes a debt."""
    return budget._replace(audits=budget.audits - 1, audit_bytes=budget.audit_bytes - size_bytes)
