"""What a device and its gateway tell each other of the accuracy contract, beside a request and its answer."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class AuditNote:
    """What a device says of a kept answer that it has the full model check: one row, whose loss the gateway computes.

    Args:
        predicted: the class that the edge model gave.
        propensity: the probability with which this answer was drawn for an audit, in (0, 1].
        floor: the smallest probability with which any answer would then have been drawn; see `routing/audit.py`.
        epsilon: the share of disagreement that the audits test, in (0, 1).
        threshold: the score that kept the answer reached at least this.
        edge_digest: `Model.digest` of the edge variant, as its certificate names it.
    """

    predicted: int
    propensity: float
    floor: float
    epsilon: float
    threshold: float
    edge_digest: str


@dataclass(frozen=True, slots=True)
class ContractNotice:
    """What a gateway tells a device of its bundle version's contract.

    Args:
        alarm: the audits of all devices together show that the contract is broken.
        escalations_per_hour: how many answers more an alarm may make this device escalate, which it would keep
            otherwise; None for no bound. What it escalates without an alarm is not counted.
        devices: how many are known to audit the promise, this one among them.
    """

    alarm: bool
    escalations_per_hour: float | None
    devices: int = 1
