"""The policies to choose from: who answers a row, given what the edge model said of it. Pure; state is passed in.

`certified` and `value` are Firstline's. The others are baselines and re-implementations of what peers do, from their
published descriptions, so that they can be compared on the same rows. `budget.py` has the last word on all of them.
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

_FEW = 32  # numbers that a loop sums faster than numpy begins to


@dataclass(slots=True)
class Seen:
    """What is known of one row after the edge model ran.

    Args:
        score: the edge model's confidence, higher means keep; NaN where it has none.
        value: P(edge wrong and full right), 0 to 1; see `value_of`.
        threshold: the bundle's in use: certified, declared, or raised.
        certified: a valid certificate is in force.
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
    """What a policy remembers of one model's rows.

    Args:
        escalated_s: when it last escalated one, monotonic.
        draws: for policies that draw lots.
    """

    escalated_s: float = -math.inf
    draws: random.Random = field(default_factory=lambda: random.Random(0))  # noqa: S311 (no secret)


class Policy(Protocol):
    """One way to decide. `certifies`: the contracts whose certificate covers what it keeps for its score."""

    @property
    def kind(self) -> Kind: ...

    @property
    def certifies(self) -> tuple[Contract, ...]: ...

    def decide(self, seen: Seen, state: State) -> Decision:
        """Who answers the row; `state` is brought up to date."""
        ...


@dataclass(frozen=True, slots=True)
class Certified:
    """Keeps an answer if and only if its score reaches the threshold in use."""

    kind: ClassVar[Kind] = "certified"
    certifies: ClassVar[tuple[Contract, ...]] = ("disagreement", "harm", "stream")

    def decide(self, seen: Seen, state: State) -> Decision:
        return _KEEP if seen.score >= seen.threshold else _ESCALATE


CERTIFIED = Certified()


@dataclass(frozen=True, slots=True)
class Value:
    """Escalates what is worth its price, likeliest corrections first; a certificate's contract still comes before that.

    Where there is a certificate, rows below its threshold are escalated as by `certified`. The rest is escalated as
    long as the value pays for it, and without a certificate that is all there is to it. The certificate goes on to
    cover what is kept, see `policy.covered`; but not one on a stream, where more escalations may cost accuracy.

    Args:
        least_value: what is worth less is kept, however low the price.
    """

    least_value: float = 0.0
    kind: ClassVar[Kind] = "value"
    certifies: ClassVar[tuple[Contract, ...]] = ("disagreement", "harm")

    def decide(self, seen: Seen, state: State) -> Decision:
        if seen.certified and not seen.score >= seen.threshold:
            return _ESCALATE
        return _ESCALATE_IF_WORTH if not seen.value < self.least_value else _KEEP


@dataclass(frozen=True, slots=True)
class Threshold:
    """Keeps an answer if and only if its score reaches a number that somebody chose.

    Args:
        threshold: None for the bundle's own.
    """

    threshold: float | None = None
    kind: ClassVar[Kind] = "threshold"
    certifies: ClassVar[tuple[Contract, ...]] = ()

    def decide(self, seen: Seen, state: State) -> Decision:
        return _KEEP if seen.score >= (seen.threshold if self.threshold is None else self.threshold) else _ESCALATE


@dataclass(frozen=True, slots=True)
class EdgeOnly:
    """Keeps everything."""

    kind: ClassVar[Kind] = "edge_only"
    certifies: ClassVar[tuple[Contract, ...]] = ()

    def decide(self, seen: Seen, state: State) -> Decision:
        return _KEEP_BLINDLY


@dataclass(frozen=True, slots=True)
class CloudOnly:
    """Escalates everything."""

    kind: ClassVar[Kind] = "cloud_only"
    certifies: ClassVar[tuple[Contract, ...]] = ()

    def decide(self, seen: Seen, state: State) -> Decision:
        return _ESCALATE_BLINDLY


@dataclass(frozen=True, slots=True)
class Random:
    """Escalates a random part.

    Args:
        rate: probability of escalating a row.
    """

    rate: float = 0.3
    kind: ClassVar[Kind] = "random"
    certifies: ClassVar[tuple[Contract, ...]] = ()

    def decide(self, seen: Seen, state: State) -> Decision:
        return _ESCALATE_BLINDLY if state.draws.random() < self.rate else _KEEP_BLINDLY


def _certainty(probabilities: NDArray[np.float32]) -> float:
    """One plus the sum of p * log p over log(classes), 0 log 0 being 0; NaN where a p is not within 0 to 1."""
    classes = len(probabilities)
    if classes <= _FEW:
        shares: list[float] = probabilities.tolist()
        if not all(0 <= share <= 1 for share in shares):
            return math.nan
        return 1 + sum([share * math.log(share) for share in shares if share > 0]) / math.log(classes)
    if not (probabilities.min() >= 0 and probabilities.max() <= 1):
        return math.nan
    positive = probabilities[probabilities > 0]
    return 1 + float(positive @ np.log(positive)) / math.log(classes)


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

    def decide(self, seen: Seen, state: State) -> Decision:
        return _ESCALATE if _certainty(seen.probabilities) < self.threshold else _KEEP


@dataclass(frozen=True, slots=True)
class Groundlight:
    """Groundlight's edge endpoint: a confidence threshold, and a pause between two escalations of one detector.

    A row that is not confident enough during the pause is answered by the edge model. The pause keeps a burst of
    unsure, probably alike images from being escalated one by one.

    From groundlight/edge-endpoint, README and CONFIGURING-DETECTORS: `min_time_between_escalations` with its default
    of 2 s; the confidence threshold is 0.9 where a request brings none. There the pause bounds what is escalated in the
    background, once the edge model's answer was returned; here a row outside the pause waits for the full model's, as
    with every other policy.

    Args:
        threshold: of the confidence.
        pause_s: seconds that must have passed since the last escalation, and more.
    """

    threshold: float = 0.9
    pause_s: float = 2.0
    kind: ClassVar[Kind] = "groundlight"
    certifies: ClassVar[tuple[Contract, ...]] = ()

    def decide(self, seen: Seen, state: State) -> Decision:
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
"""What each kind can be told; those left out take nothing."""


def make(kind: Kind, **parameters: float) -> Policy:
    """The policy of this kind.

    Args:
        kind: which.
        parameters: those in `PARAMETERS`, each with a default of its own.
    """
    return _MAKERS[kind](**parameters)


def value_of(learned: float | None, score: float) -> float:
    """P(edge wrong and full right) of a row, 0 to 1: as the bundle learned it, or else as the score lets suppose.

    Args:
        learned: None where the bundle learned none.
        score: the higher, the likelier the edge is right; NaN where there is none.
    """
    if learned is not None:
        return learned
    return min(max(1.0 - score, 0.0), 1.0) if score == score else 1.0  # noqa: PLR0124 (NaN)
