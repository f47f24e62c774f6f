"""The selectable policies: which tier answers a row, given the edge model's output. Pure; state is passed in.

`certified` and `value` are Firstline's own. The others are baselines, and re-implementations of other products from
their published descriptions, for comparison on the same rows. Budgets can override all of them.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import ClassVar, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from firstline_core.routing.certificate import Contract
from firstline_core.routing.policy import Decision
from firstline_core.types import Reason, Tier

Kind = Literal["certified", "value", "threshold", "edge_only", "cloud_only", "random", "sedna", "groundlight"]

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
class State:
    """The state of a policy for one model.

    Args:
        escalated_s: time of the last escalation, monotonic.
        draws: random numbers for policies that need them.
    """

    escalated_s: float = -math.inf
    draws: random.Random = field(default_factory=lambda: random.Random(0))  # noqa: S311 (no secret)


class Policy(Protocol):
    """A policy.

    `certifies` names the contracts whose certificates cover the answers that it accepts for their score.
    """

    @property
    def kind(self) -> Kind: ...

    @property
    def certifies(self) -> tuple[Contract, ...]: ...

    def decide(self, seen: RowEvidence, state: State) -> Decision:
        """Returns which tier answers the row, and updates `state`."""
        ...


@dataclass(frozen=True, slots=True)
class Certified:
    """Accepts an edge answer if and only if its score reaches the threshold in use."""

    kind: ClassVar[Kind] = "certified"
    certifies: ClassVar[tuple[Contract, ...]] = ("disagreement", "harm", "stream")

    def decide(self, seen: RowEvidence, state: State) -> Decision:
        return _KEEP if seen.score >= seen.threshold else _ESCALATE


CERTIFIED = Certified()


@dataclass(frozen=True, slots=True)
class Value:
    """Escalates rows that are worth their price, after those that the certificate's contract demands.

    With a certificate, rows below its threshold are escalated as by `certified`. Other rows are escalated if their
    value pays for it. The certificate still covers the accepted answers (see `policy.covered`), except for a contract
    on the stream, where more escalations may cost accuracy.

    Args:
        least_value: rows with a lower value are accepted at any price.
    """

    least_value: float = 0.0
    kind: ClassVar[Kind] = "value"
    certifies: ClassVar[tuple[Contract, ...]] = ("disagreement", "harm")

    def decide(self, seen: RowEvidence, state: State) -> Decision:
        if seen.certified and not seen.score >= seen.threshold:
            return _ESCALATE
        return _ESCALATE_IF_WORTH if not seen.value < self.least_value else _KEEP


@dataclass(frozen=True, slots=True)
class Threshold:
    """Accepts an edge answer if and only if its score reaches a configured number.

    Args:
        threshold: None for the bundle's own.
    """

    threshold: float | None = None
    kind: ClassVar[Kind] = "threshold"
    certifies: ClassVar[tuple[Contract, ...]] = ()

    def decide(self, seen: RowEvidence, state: State) -> Decision:
        return _KEEP if seen.score >= (seen.threshold if self.threshold is None else self.threshold) else _ESCALATE


@dataclass(frozen=True, slots=True)
class EdgeOnly:
    """Accepts every edge answer."""

    kind: ClassVar[Kind] = "edge_only"
    certifies: ClassVar[tuple[Contract, ...]] = ()

    def decide(self, seen: RowEvidence, state: State) -> Decision:
        return _KEEP_BLINDLY


@dataclass(frozen=True, slots=True)
class CloudOnly:
    """Escalates every row."""

    kind: ClassVar[Kind] = "cloud_only"
    certifies: ClassVar[tuple[Contract, ...]] = ()

    def decide(self, seen: RowEvidence, state: State) -> Decision:
        return _ESCALATE_BLINDLY


@dataclass(frozen=True, slots=True)
class Random:
    """Escalates a random share of the rows.

    Args:
        rate: probability of escalating a row.
    """

    rate: float = 0.3
    kind: ClassVar[Kind] = "random"
    certifies: ClassVar[tuple[Contract, ...]] = ()

    def decide(self, seen: RowEvidence, state: State) -> Decision:
        return _ESCALATE_BLINDLY if state.draws.random() < self.rate else _KEEP_BLINDLY


def _certainty(probabilities: NDArray[np.float32]) -> float:
    """Returns 1 + sum(p * log p) / log(classes), with 0 log 0 = 0; NaN if a probability is outside 0 to 1."""
    if not (probabilities.min() >= 0 and probabilities.max() <= 1):
        return math.nan
    positive = probabilities[probabilities > 0]
    return 1 + float(positive @ np.log(positive)) / math.log(len(probabilities))


@dataclass(frozen=True, slots=True)
class Sedna:
    """KubeEdge Sedna's `CrossEntropy` filter, which its joint inference uses to find hard examples.

    A row is hard, and escalated, if 1 + sum(p * log p) / log(classes) is below the threshold. A row with a probability
    that is not within 0 to 1 is not hard. Sedna fails on a probability of exactly 0; here 0 log 0 is 0, its limit.

    From the description of `CrossEntropyFilter` in kubeedge/sedna, lib/sedna/algorithms/hard_example_mining.

    Args:
        threshold: `threshold_cross_entropy` there, with its default.
    """

    threshold: float = 0.5
    kind: ClassVar[Kind] = "sedna"
    certifies: ClassVar[tuple[Contract, ...]] = ()

    def decide(self, seen: RowEvidence, state: State) -> Decision:
        return _ESCALATE if _certainty(seen.probabilities) < self.threshold else _KEEP


@dataclass(frozen=True, slots=True)
class Groundlight:
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
    certifies: ClassVar[tuple[Contract, ...]] = ()

    def decide(self, seen: RowEvidence, state: State) -> Decision:
        if seen.score >= self.threshold:
            return _KEEP
        if seen.now_s - state.escalated_s <= self.pause_s:
            return _KEEP_FOR_BUDGET
        state.escalated_s = seen.now_s
        return _ESCALATE


_MAKERS: dict[Kind, Callable[..., Policy]] = {
    "certified": Certified,
    "value": Value,
    "threshold": Threshold,
    "edge_only": EdgeOnly,
    "cloud_only": CloudOnly,
    "random": Random,
    "sedna": Sedna,
    "groundlight": Groundlight,
}
KINDS: tuple[Kind, ...] = tuple(_MAKERS)
PARAMETERS: dict[Kind, tuple[str, ...]] = {
    "value": ("least_value",),
    "threshold": ("threshold",),
    "random": ("rate",),
    "sedna": ("threshold",),
    "groundlight": ("threshold", "pause_s"),
}
"""The parameters of each kind; kinds that are not listed have none."""


def make(kind: Kind, **parameters: float) -> Policy:
    """Returns a policy.

    Args:
        kind: of the policy.
        parameters: of `PARAMETERS`; each has a default.
    """
    return _MAKERS[kind](**parameters)


def value_of(learned: float | None, score: float) -> float:
    """Returns P(edge wrong and full right) of a row: learned in the bundle, or estimated from the score.

    Args:
        learned: None if the bundle has none.
        score: higher means that the edge is more likely right; NaN without one.
    """
    if learned is not None:
        return learned
    return min(max(1.0 - score, 0.0), 1.0) if score == score else 1.0  # noqa: PLR0124 (NaN)
