"""Which tier answers: the policies that decide by the scores of edge answers.

`before` decides by the request alone, `Policy.decide` by the edge model's output. `certified` and `value` are
Firstline's own policies. The others are baselines, and re-implementations of other products from their published
descriptions, for comparison on the same rows. Budgets can override all of them.

A learned score is fitted by the workbench; applying it needs numpy only, so that the device needs no learning library.

Pure functions of evidence: links, caches and clocks are not used here.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from inspect import signature
from typing import Literal, NamedTuple

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from firstline_core.errors import ConfigError, RequestError
from firstline_core.routing.certificate import Certificate, Contract
from firstline_core.types import PROBABILITIES, Arrays, Privacy, Reason, Route, Tier

PolicyKind = Literal["certified", "value", "threshold", "edge_only", "cloud_only", "random", "sedna", "groundlight"]


class Logistic(Struct, frozen=True, forbid_unknown_fields=True):
    """Logistic regression over the features of a task, as stored in the manifest.

    Attributes:
        weights: (features,); they include the standardisation of the fit.
        bias: log-odds of a loss at features of 0.
    """

    weights: tuple[float, ...]
    bias: float

    def losses(self, features: NDArray[np.float32]) -> NDArray[np.float32]:
        """Returns P(loss), (n,) float32 in [0, 1].

        Args:
            features: (n, features), of the task that it was fitted for.

        Raises:
            ConfigError: fitted for another number of features.
        """
        if features.shape[1] != len(self.weights):
            raise ConfigError(
                f"The learned score has {len(self.weights)} weights, but the model's answers give {features.shape[1]} "
                "features; fit it for this model."
            )
        odds = features.astype(np.float64) @ np.asarray(self.weights) + self.bias
        lost: NDArray[np.float32] = (1 / (1 + np.exp(np.clip(-odds, -700, 700)))).astype(np.float32)
        return lost


# Looking up a member of an enumeration takes as long as the rest of `before`.
_AUTO, _ANY, _CONFIDENT = Route.AUTO, Privacy.ANY, Reason.CONFIDENT


@dataclass(frozen=True, slots=True)
class TierDecision:
    """The tier that answers, and the reason.

    Args:
        tier: EDGE or CLOUD.
        demanded: for an escalation: False if the policy escalates the row only because its value pays for it. A
            demanded escalation has a price of its own, which is lower.
    """

    tier: Tier
    reason: Reason
    demanded: bool = True


def before(
    route: Route, privacy: Privacy, *, holds_model: bool, size_bytes: int, limit_bytes: int, partial: bool = False
) -> TierDecision | None:
    """Decides without the edge model's answer; returns None if the answer is needed.

    Args:
        route: of the request.
        privacy: of the request.
        holds_model: whether this device has an edge variant of the bundle loaded.
        size_bytes: payload of the request that the edge model reads.
        limit_bytes: the largest payload that this device processes.
        partial: whether the request lacks inputs of the full model, which then cannot answer.

    Raises:
        RequestError: no tier may answer: the request is heavy, but bound to this device.
    """
    heavy = not holds_model or size_bytes > limit_bytes
    if route is _AUTO and privacy is _ANY and not heavy and not partial:  # most requests
        return None
    if partial and (heavy or route is Route.CLOUD):
        cause = "route=cloud" if route is Route.CLOUD else f"its payload is over this device's limit of {limit_bytes}"
        raise RequestError(
            f"The request has only the inputs of this device's model, and {cause} asks for the full model; send the "
            "full model's inputs too."
        )
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
        return TierDecision(Tier.EDGE, Reason.LOCAL_ONLY)
    if heavy:
        return TierDecision(Tier.CLOUD, Reason.HEAVY)
    if route is Route.CLOUD:
        return TierDecision(Tier.CLOUD, Reason.REQUESTED)
    return TierDecision(Tier.EDGE, Reason.REQUESTED if route is Route.EDGE else Reason.PARTIAL_INPUTS)


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
    return max(declared if certificate is None else certificate.threshold_for(label), min_threshold)


def covered(
    decision: TierDecision, threshold: float, certificate: Certificate | None, label: str | None = None
) -> bool:
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
    certified_threshold = certificate.threshold_for(label)
    return threshold == certified_threshold if certificate.contract == "stream" else threshold >= certified_threshold


_ACCEPT = TierDecision(Tier.EDGE, Reason.CONFIDENT)
_ACCEPT_BY_POLICY = TierDecision(Tier.EDGE, Reason.POLICY)
_ACCEPT_FOR_BUDGET = TierDecision(Tier.EDGE, Reason.BUDGET)
_ESCALATE = TierDecision(Tier.CLOUD, Reason.UNCERTAIN)
_ESCALATE_BY_POLICY = TierDecision(Tier.CLOUD, Reason.POLICY)
_ESCALATE_FOR_VALUE = TierDecision(Tier.CLOUD, Reason.VALUABLE, demanded=False)


class RowEvidence(Struct, eq=False):
    """The evidence for one row after the edge model ran.

    Args:
        score: confidence of the edge model, higher means more certain; NaN without one.
        learned_value: P(edge wrong and full right), 0 to 1, by the bundle; None if it learned none.
        threshold: in use: certified, declared or raised.
        has_certificate: whether a valid certificate is in force; it need not cover this row.
        outputs: of the edge model, one row.
        now_s: monotonic.
    """

    score: float
    learned_value: float | None
    threshold: float
    has_certificate: bool
    outputs: Arrays
    now_s: float

    @property
    def value(self) -> float:
        """P(edge wrong and full right), learned or estimated."""
        return value_of(self.learned_value, self.score)


@dataclass(slots=True)
class PolicyState:
    """The state of a policy for one model.

    Args:
        escalated_s: time of the last escalation, monotonic.
        draws: random numbers for policies that need them.
    """

    escalated_s: float = -math.inf
    draws: random.Random = field(default_factory=lambda: random.Random(0))  # noqa: S311 (no secret)


class Policy(NamedTuple):
    """Decides which tier answers a row.

    Attributes:
        kind: its name in the settings.
        decide: returns which tier answers a row, and updates the state.
        certifies: the contracts whose certificates cover the answers that it accepts for their score.
    """

    kind: PolicyKind
    decide: Callable[[RowEvidence, PolicyState], TierDecision]
    certifies: tuple[Contract, ...]

    def uncertified(self, contract: Contract | None = None) -> str:
        """Returns why a certificate covers none of its answers, as part of a sentence; "" if one may cover them.

        Args:
            contract: of the certificate; None for any contract.
        """
        if not self.certifies:
            return f"policy.kind is {self.kind}, which no certificate covers"
        if contract is not None and contract not in self.certifies:
            return f"policy.kind is {self.kind}, and its certificate on the stream needs policy.kind = certified"
        return ""


def certified_policy(evidence: RowEvidence, _state: PolicyState) -> TierDecision:
    """Accepts an edge answer if and only if its score reaches the threshold in use."""
    return _ACCEPT if evidence.score >= evidence.threshold else _ESCALATE


def value_policy(evidence: RowEvidence, _state: PolicyState, *, least_value: float = 0.0) -> TierDecision:
    """Escalates rows that are worth their price, after those that the certificate's contract demands.

    With a certificate, rows below its threshold are escalated as by `certified`. Other rows are escalated if their
    value pays for it. The certificate still covers the accepted answers (see `covered`), except for a contract
    on the stream, where more escalations may cost accuracy.

    Args:
        evidence: of the row.
        least_value: rows with a lower value are accepted at any price.
    """
    if evidence.has_certificate and not evidence.score >= evidence.threshold:
        return _ESCALATE
    return _ESCALATE_FOR_VALUE if not evidence.value < least_value else _ACCEPT


def threshold_policy(evidence: RowEvidence, _state: PolicyState, *, threshold: float | None = None) -> TierDecision:
    """Accepts an edge answer if and only if its score reaches a configured number.

    Args:
        evidence: of the row.
        threshold: None for the bundle's own.
    """
    return _ACCEPT if evidence.score >= (evidence.threshold if threshold is None else threshold) else _ESCALATE


def edge_only(_evidence: RowEvidence, _state: PolicyState) -> TierDecision:
    """Accepts every edge answer."""
    return _ACCEPT_BY_POLICY


def cloud_only(_evidence: RowEvidence, _state: PolicyState) -> TierDecision:
    """Escalates every row."""
    return _ESCALATE_BY_POLICY


def random_share(_evidence: RowEvidence, state: PolicyState, *, rate: float = 0.3) -> TierDecision:
    """Escalates a random share of the rows.

    Args:
        state: of the policy for this model.
        rate: probability of escalating a row.
    """
    return _ESCALATE_BY_POLICY if state.draws.random() < rate else _ACCEPT_BY_POLICY


def _certainty(probabilities: NDArray[np.float32]) -> float:
    """Returns 1 + sum(p * log p) / log(classes), with 0 log 0 = 0; NaN if a probability is outside 0 to 1."""
    if not (probabilities.min() >= 0 and probabilities.max() <= 1):
        return math.nan
    positive = probabilities[probabilities > 0]
    return 1 + float(positive @ np.log(positive)) / math.log(len(probabilities))


def sedna(evidence: RowEvidence, _state: PolicyState, *, threshold: float = 0.5) -> TierDecision:
    """KubeEdge Sedna's `CrossEntropy` filter, which its joint inference uses to find hard examples.

    A row is hard, and escalated, if 1 + sum(p * log p) / log(classes) is below the threshold. A row with a probability
    that is not within 0 to 1 is not hard. Sedna fails on a probability of exactly 0; here 0 log 0 is 0, its limit.
    The filter is defined for classifiers; for other tasks the edge model's score takes the place of this sum.

    From the description of `CrossEntropyFilter` in kubeedge/sedna, lib/sedna/algorithms/hard_example_mining.

    Args:
        evidence: of the row.
        threshold: `threshold_cross_entropy` there, with its default.
    """
    probabilities = evidence.outputs.get(PROBABILITIES)
    certainty = evidence.score if probabilities is None else _certainty(probabilities[0])
    return _ESCALATE if certainty < threshold else _ACCEPT


def groundlight(
    evidence: RowEvidence, state: PolicyState, *, threshold: float = 0.9, pause_s: float = 2.0
) -> TierDecision:
    """Groundlight's edge endpoint: a confidence threshold, and a pause between two escalations of one detector.

    During the pause the edge model also answers uncertain rows. So a burst of uncertain, probably similar images is not
    escalated one by one.

    From groundlight/edge-endpoint, README and CONFIGURING-DETECTORS: `min_time_between_escalations` with its default of
    2 s; the confidence threshold is 0.9 where a request brings none. There the pause limits escalations in the
    background, after the edge answer was returned; here a row outside the pause waits for the full model, as with every
    other policy.

    Args:
        evidence: of the row.
        state: of the policy for this model.
        threshold: of the confidence.
        pause_s: minimum number of seconds between two escalations.
    """
    if evidence.score >= threshold:
        return _ACCEPT
    if evidence.now_s - state.escalated_s <= pause_s:
        return _ACCEPT_FOR_BUDGET
    state.escalated_s = evidence.now_s
    return _ESCALATE


_POLICIES: dict[PolicyKind, Callable[..., TierDecision]] = {
    "certified": certified_policy,
    "value": value_policy,
    "threshold": threshold_policy,
    "edge_only": edge_only,
    "cloud_only": cloud_only,
    "random": random_share,
    "sedna": sedna,
    "groundlight": groundlight,
}
KINDS: tuple[PolicyKind, ...] = tuple(_POLICIES)
_CERTIFIES: dict[PolicyKind, tuple[Contract, ...]] = {
    "certified": ("disagreement", "harm", "events", "stream"),
    "value": ("disagreement", "harm", "events"),
}


def parameters_of(kind: PolicyKind) -> tuple[str, ...]:
    """Returns the names of a policy's parameters; each of them has a default."""
    return tuple(each.name for each in signature(_POLICIES[kind]).parameters.values() if each.kind is each.KEYWORD_ONLY)


def make_policy(kind: PolicyKind, **parameters: float) -> Policy:
    """Returns a policy.

    Args:
        kind: of the policy.
        parameters: see `parameters_of`.
    """
    decide = partial(_POLICIES[kind], **parameters) if parameters else _POLICIES[kind]
    return Policy(kind, decide, _CERTIFIES.get(kind, ()))


CERTIFIED = make_policy("certified")


def value_of(learned: float | None, score: float) -> float:
    """Returns P(edge wrong and full right) of a row: learned in the bundle, or estimated from the score.

    Args:
        learned: None if the bundle has none.
        score: higher means that the edge is more likely right; NaN without one.
    """
    if learned is not None:
        return learned
    return min(max(1.0 - score, 0.0), 1.0) if score == score else 1.0  # noqa: PLR0124 (NaN)
