"""Which tier answers: decided by the request alone (`before`), or by the edge model's output (`Policy.decide`).

Pure functions of evidence: links, caches and clocks are not used here. `Certified` and `Value` are Firstline's own
policies. The others are baselines, and re-implementations of other products from their published descriptions, for
comparison on the same rows. Budgets can override all of them.
"""

from __future__ import annotations

import math
import random
from dataclasses import dataclass, field, fields
from typing import ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from firstline_core.errors import RequestError
from firstline_core.routing.certificate import Certificate, Contract
from firstline_core.types import Privacy, Reason, Route, Tier

Kind = Literal["certified", "value", "threshold", "edge_only", "cloud_only", "random", "sedna", "groundlight"]


# Looking up a member of an enumeration takes as long as the rest of `before`.
_AUTO, _ANY, _CONFIDENT = Route.AUTO, Privacy.ANY, Reason.CONFIDENT


@dataclass(frozen=True, slots=True)
class Decision:
    """The tier that answers, and the reason.

    Args:
        tier: EDGE or CLOUD.
        demanded: False for an escalation that is made only if it is worth its price.
    """

    tier: Tier
    reason: Reason
    demanded: bool = True


def before(route: Route, privacy: Privacy, *, holds_model: bool, size_bytes: int, limit_bytes: int) -> Decision | None:
    """Decides without the edge model's answer; returns None if the answer is needed.

    Args:
        route: of the request.
        privacy: of the request.
        holds_model: whether this device has an edge variant of the bundle loaded.
        size_bytes: payload of the request.
        limit_bytes: the largest payload that this device processes.

    Raises:
        RequestError: no tier may answer: the request is heavy, but bound to this device.
    """
    heavy = not holds_model or size_bytes > limit_bytes
    if route is _AUTO and privacy is _ANY and not heavy:  # most requests
        return None
    if heavy and (privacy is Privacy.LOCAL_ONLY or route is Route.EDGE):
        bound = "privacy=local_only" if privacy is Privacy.LOCAL_ONLY else "route=edge"
        cause = (
            f"its payload of {size_bytes} bytes is over this device's limit of {limit_bytes}"
            if holds_model
            else "this device holds no edge variant of the model"
        )
        raise RequestError(f"The request asks for {bound}, but {cause}; send it without {bound}.")
    if privacy is Privacy.LOCAL_ONLY:
        if route is Route.CLOUD:
            raise RequestError("privacy=local_only and route=cloud exclude each other; drop one of them.")
        return Decision(Tier.EDGE, Reason.LOCAL_ONLY)
    if heavy:
        return Decision(Tier.CLOUD, Reason.HEAVY)
    if route is Route.CLOUD:
        return Decision(Tier.CLOUD, Reason.REQUESTED)
    if route is Route.EDGE:
        return Decision(Tier.EDGE, Reason.REQUESTED)
    return None


def threshold_in_use(
    declared: float, certificate: Certificate | None, min_threshold: float = -math.inf, label: str | None = None
) -> float:
    """Returns the score from which an edge answer is accepted.

    Args:
        declared: threshold of the bundle, for a variant without a certificate.
        certificate: of the variant, if valid.
        min_threshold: of the device; it raises the threshold and never lowers it.
        label: the predicted class, for a certificate by class; None for the lowest threshold of all classes.
    """
    return max(declared if certificate is None else _certified(certificate, label), min_threshold)


def covered(decision: Decision, threshold: float, certificate: Certificate | None, label: str | None = None) -> bool:
    """Whether a valid certificate covers an edge answer.

    The certificate bounds the share of differing answers among those that were accepted for their score at its
    threshold. Escalating more rows makes no answer worse, so a stricter threshold is covered too. Answers that the
    caller or a failure bound to the device are not covered. A contract on the stream balances losses against gains of
    the edge, so it holds only at exactly its threshold.

    Args:
        decision: the policy's for this answer.
        threshold: the one in use, for this label.
        certificate: of the variant, if valid.
        label: the predicted class, which matters to a certificate by class.
    """
    if certificate is None or decision.reason is not _CONFIDENT:
        return False
    certified = _certified(certificate, label)
    return threshold == certified if certificate.contract == "stream" else threshold >= certified


def _certified(certificate: Certificate, label: str | None) -> float:
    return certificate.threshold if label is None else certificate.threshold_for(label)


_KEEP = Decision(Tier.EDGE, Reason.CONFIDENT)
_KEEP_BLINDLY = Decision(Tier.EDGE, Reason.POLICY)
_KEEP_FOR_BUDGET = Decision(Tier.EDGE, Reason.BUDGET)
_ESCALATE = Decision(Tier.CLOUD, Reason.UNCERTAIN)
_ESCALATE_BLINDLY = Decision(Tier.CLOUD, Reason.POLICY)
_ESCALATE_IF_WORTH = Decision(Tier.CLOUD, Reason.VALUABLE, demanded=False)


@dataclass(slots=True)
class RowEvidence:
    """The evidence for one row after the edge model ran.

    Args:
        score: confidence of the edge model, higher means more certain; NaN without one.
        value: P(edge wrong and full right), 0 to 1; see `value_of`.
        threshold: in use: certified, declared or raised.
        certified: whether a valid certificate is in force.
        probabilities: (classes,) of the edge model.
        now_s: monotonic.
    """

    score: float
    value: float
    threshold: float
    certified: bool
    probabilities: NDArray[np.float32]
    now_s: float


@dataclass(slots=True)
class PolicyState:
    """The state of a policy for one model.

    Args:
        escalated_s: time of the last escalation, monotonic.
        draws: random numbers for policies that need them.
    """

    escalated_s: float = -math.inf
    draws: random.Random = field(default_factory=lambda: random.Random(0))  # noqa: S311 (no secret)


class Policy:
    """Decides which tier answers a row; the dataclass fields of a subclass are its parameters.

    Attributes:
        kind: its name in the settings.
        certifies: the contracts whose certificates cover the answers that it accepts for their score.
    """

    kind: ClassVar[Kind]
    certifies: ClassVar[tuple[Contract, ...]] = ()

    def decide(self, seen: RowEvidence, state: PolicyState) -> Decision:
        """Returns which tier answers the row, and updates `state`."""
        raise NotImplementedError


@dataclass(frozen=True)
class Certified(Policy):
    """Accepts an edge answer if and only if its score reaches the threshold in use."""

    kind: ClassVar[Kind] = "certified"
    certifies: ClassVar[tuple[Contract, ...]] = ("disagreement", "harm", "stream")

    def decide(self, seen: RowEvidence, state: PolicyState) -> Decision:
        return _KEEP if seen.score >= seen.threshold else _ESCALATE


CERTIFIED = Certified()


@dataclass(frozen=True)
class Value(Policy):
    """Escalates rows that are worth their price, after those that the certificate's contract demands.

    With a certificate, rows below its threshold are escalated as by `certified`. Other rows are escalated if their
    value pays for it. The certificate still covers the accepted answers (see `covered`), except for a contract
    on the stream, where more escalations may cost accuracy.

    Args:
        least_value: rows with a lower value are accepted at any price.
    """

    least_value: float = 0.0
    kind: ClassVar[Kind] = "value"
    certifies: ClassVar[tuple[Contract, ...]] = ("disagreement", "harm")

    def decide(self, seen: RowEvidence, state: PolicyState) -> Decision:
        if seen.certified and not seen.score >= seen.threshold:
            return _ESCALATE
        return _ESCALATE_IF_WORTH if not seen.value < self.least_value else _KEEP


@dataclass(frozen=True)
class Threshold(Policy):
    """Accepts an edge answer if and only if its score reaches a configured number.

    Args:
        threshold: None for the bundle's own.
    """

    threshold: float | None = None
    kind: ClassVar[Kind] = "threshold"

    def decide(self, seen: RowEvidence, state: PolicyState) -> Decision:
        return _KEEP if seen.score >= (seen.threshold if self.threshold is None else self.threshold) else _ESCALATE


@dataclass(frozen=True)
class EdgeOnly(Policy):
    """Accepts every edge answer."""

    kind: ClassVar[Kind] = "edge_only"

    def decide(self, seen: RowEvidence, state: PolicyState) -> Decision:
        return _KEEP_BLINDLY


@dataclass(frozen=True)
class CloudOnly(Policy):
    """Escalates every row."""

    kind: ClassVar[Kind] = "cloud_only"

    def decide(self, seen: RowEvidence, state: PolicyState) -> Decision:
        return _ESCALATE_BLINDLY


@dataclass(frozen=True)
class Random(Policy):
    """Escalates a random share of the rows.

    Args:
        rate: probability of escalating a row.
    """

    rate: float = 0.3
    kind: ClassVar[Kind] = "random"

    def decide(self, seen: RowEvidence, state: PolicyState) -> Decision:
        return _ESCALATE_BLINDLY if state.draws.random() < self.rate else _KEEP_BLINDLY


def _certainty(probabilities: NDArray[np.float32]) -> float:
    """Returns 1 + sum(p * log p) / log(classes), with 0 log 0 = 0; NaN if a probability is outside 0 to 1."""
    if not (probabilities.min() >= 0 and probabilities.max() <= 1):
        return math.nan
    positive = probabilities[probabilities > 0]
    return 1 + float(positive @ np.log(positive)) / math.log(len(probabilities))


@dataclass(frozen=True)
class Sedna(Policy):
    """KubeEdge Sedna's `CrossEntropy` filter, which its joint inference uses to find hard examples.

    A row is hard, and escalated, if 1 + sum(p * log p) / log(classes) is below the threshold. A row with a probability
    that is not within 0 to 1 is not hard. Sedna fails on a probability of exactly 0; here 0 log 0 is 0, its limit.

    From the description of `CrossEntropyFilter` in kubeedge/sedna, lib/sedna/algorithms/hard_example_mining.

    Args:
        threshold: `threshold_cross_entropy` there, with its default.
    """

    threshold: float = 0.5
    kind: ClassVar[Kind] = "sedna"

    def decide(self, seen: RowEvidence, state: PolicyState) -> Decision:
        return _ESCALATE if _certainty(seen.probabilities) < self.threshold else _KEEP


@dataclass(frozen=True)
class Groundlight(Policy):
    """Groundlight's edge endpoint: a confidence threshold, and a pause between two escalations of one detector.

    During the pause the edge model also answers uncertain rows. So a burst of uncertain, probably similar images is not
    escalated one by one.

    From groundlight/edge-endpoint, README and CONFIGURING-DETECTORS: `min_time_between_escalations` with its default of
    2 s; the confidence threshold is 0.9 where a request brings none. There the pause limits escalations in the
    background, after the edge answer was returned; here a row outside the pause waits for the full model, as with every
    other policy.

    Args:
        threshold: of the confidence.
        pause_s: minimum number of seconds between two escalations.
    """

    threshold: float = 0.9
    pause_s: float = 2.0
    kind: ClassVar[Kind] = "groundlight"

    def decide(self, seen: RowEvidence, state: PolicyState) -> Decision:
        if seen.score >= self.threshold:
            return _KEEP
        if seen.now_s - state.escalated_s <= self.pause_s:
            return _KEEP_FOR_BUDGET
        state.escalated_s = seen.now_s
        return _ESCALATE


_POLICIES: dict[Kind, type[Policy]] = {
    policy.kind: policy for policy in (Certified, Value, Threshold, EdgeOnly, CloudOnly, Random, Sedna, Groundlight)
}
KINDS: tuple[Kind, ...] = tuple(_POLICIES)


def parameters_of(kind: Kind) -> tuple[str, ...]:
    """Returns the names of a policy's parameters; each of them has a default."""
    return tuple(parameter.name for parameter in fields(_POLICIES[kind]))  # type: ignore[arg-type]  # all are dataclasses


def make_policy(kind: Kind, **parameters: float) -> Policy:
    """Returns a policy.

    Args:
        kind: of the policy.
        parameters: see `parameters_of`.
    """
    return _POLICIES[kind](**parameters)


def value_of(learned: float | None, score: float) -> float:
    """Returns P(edge wrong and full right) of a row: learned in the bundle, or estimated from the score.

    Args:
        learned: None if the bundle has none.
        score: higher means that the edge is more likely right; NaN without one.
    """
    if learned is not None:
        return learned
    return min(max(1.0 - score, 0.0), 1.0) if score == score else 1.0  # noqa: PLR0124 (NaN)
