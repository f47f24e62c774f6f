"""The certificate of an edge variant, as stored in the manifest.

A certificate holds for one edge model with its processing, one full model and one score. It names the digests of all
three and is void if one of them differs from the manifest's. A promise that names events or classes holds for the
task's labels too.
"""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Annotated, Literal

from msgspec import Meta, Struct

from firstline_core.types import OpenShare, Sha256, Share

Contract = Literal["disagreement", "harm", "stream", "events"]
"""The bounded quantity.

Of the edge answers: "disagreement" with the full model, or "harm": the edge is wrong and the full model right. Of all
answers: "stream", the accuracy given up compared with the full model alone. Of the edge answers in which an event can
occur: "events", such as "missed person".
"""

ALL_ROWS = ""
"""The key of `Certificate.audit_bounds` for contracts about all edge answers."""

_LabelsDigest = Annotated[str, Meta(pattern="^([0-9a-f]{64})?$")]


class Histogram(Struct, frozen=True, forbid_unknown_fields=True):
    """The distribution of the scores at certification, against which drift in the field is measured.

    Attributes:
        edges: limits between bins, strictly ascending. A score on an edge belongs to the bin above.
        shares: of the scores per bin, one more than edges; the first and the last bin are open.
    """

    edges: Annotated[tuple[float, ...], Meta(min_length=1)]
    shares: tuple[Share, ...]

    def __post_init__(self) -> None:
        if len(self.shares) != len(self.edges) + 1:
            raise ValueError(f"{len(self.edges)} edges make {len(self.edges) + 1} bins, not {len(self.shares)}")
        if any(left >= right for left, right in pairwise(self.edges)):
            raise ValueError("the edges of a histogram ascend")


class GroupCertificate(Struct, frozen=True, forbid_unknown_fields=True):
    """The certificate of one group. Without a certified `threshold` the whole group is escalated.

    Attributes:
        n: number of rows of the group at certification.
        kept: share of these rows that the threshold accepts.
        risk_upper: as in `Certificate`; None if nothing is certified.
    """

    threshold: float | None
    n: Annotated[int, Meta(ge=0)]
    kept: Share
    risk_upper: Share | None

    def __post_init__(self) -> None:
        if (self.threshold is None) != (self.risk_upper is None):
            raise ValueError("a group has both a threshold and an upper bound of its risk, or neither")


class EventPromise(Struct, frozen=True, forbid_unknown_fields=True):
    """Of the accepted rows in which the event can occur, it occurs in at most `epsilon`, with confidence 1 - `delta`.

    Attributes:
        n: number of rows at certification in which the event can occur.
        kept: share of these rows that the threshold accepts.
        risk_upper: upper confidence bound of the risk, at most `epsilon`.
    """

    epsilon: OpenShare
    delta: OpenShare
    n: Annotated[int, Meta(ge=1)]
    kept: Share
    risk_upper: Share

    def __post_init__(self) -> None:
        if self.risk_upper > self.epsilon:
            raise ValueError(f"a risk of up to {self.risk_upper:g} does not certify an epsilon of {self.epsilon:g}")


class Certificate(Struct, frozen=True, forbid_unknown_fields=True):
    """Of the answers accepted at `threshold`, at most `epsilon` break the contract, with confidence 1 - `delta`.

    Attributes:
        threshold: an edge answer is accepted if and only if its score is at least this.
        n: number of rows at certification.
        kept: share of these rows that the threshold accepts.
        risk_upper: upper confidence bound of the risk, at most `epsilon`; for a stream, of the accuracy given up.
        edge_digest: `Model.digest` of the variant, processing included.
        full_digest: `Manifest.full_digest`: of the full model, and of the task that reads it.
        score_digest: `Manifest.score_digest` of the policy's score.
        audit_epsilon: bound that field audits test: the mean loss of edge answers against the full model's, which is
            the share that differs where a loss is 0 or 1. For "disagreement" it is `epsilon`. The loss of the other
            contracts needs labels, which the field does not have, so it is the upper bound of the disagreement on the
            same rows, at `delta`. None without audits.
        histogram: of the scores of the `n` rows.
        by: scope of the bound: "" for all edge answers together, "class" for each predicted class.
        groups: by label of the class. `threshold` is then the lowest of all groups, and answers with an absent label
            are escalated.
        events: by name of the event, see `Task.events`. `epsilon`, `delta` and `risk_upper` are then the largest of the
            events'.
        labels_digest: `Manifest.labels_digest`, of certificates with `groups` or `events`; "" for others.
        graded: whether losses lay between 0 and 1 at certification: `epsilon` then bounds their mean.
    """

    contract: Contract
    epsilon: OpenShare
    delta: OpenShare
    threshold: float
    n: Annotated[int, Meta(ge=1)]
    kept: Share
    risk_upper: Share
    edge_digest: Sha256
    full_digest: Sha256
    score_digest: Sha256
    audit_epsilon: OpenShare | None = None
    histogram: Histogram | None = None
    by: Literal["", "class"] = ""
    groups: dict[str, GroupCertificate] = {}
    events: dict[str, EventPromise] = {}
    labels_digest: _LabelsDigest = ""
    graded: bool = False

    def __post_init__(self) -> None:
        if (self.contract == "events") != bool(self.events):
            raise ValueError("a certificate has events if and only if its contract is about them")
        if self.events and (self.by or self.audit_epsilon is not None):
            raise ValueError("a contract on events has neither groups nor an audit_epsilon: each event has its own")
        if self.events and self.epsilon != max(promise.epsilon for promise in self.events.values()):
            raise ValueError("the epsilon of a contract on events is the largest of theirs")
        if bool(self.by) != bool(self.groups):
            raise ValueError("a certificate has groups if and only if it says by what they are formed")
        if bool(self.by or self.events) != bool(self.labels_digest):
            raise ValueError("a certificate has a labels_digest if and only if it is about events or by class")
        if self.by and self.contract == "stream":
            raise ValueError("a contract on the stream is on all answers; it has no groups")
        if self.risk_upper > self.epsilon:
            raise ValueError(f"a risk of up to {self.risk_upper:g} does not certify an epsilon of {self.epsilon:g}")
        kept = [group.threshold for group in self.groups.values() if group.threshold is not None]
        if self.by and self.threshold != min(kept, default=None):
            raise ValueError("the threshold of a certificate with groups is the lowest of theirs")
        if any((group.risk_upper or 0) > self.epsilon for group in self.groups.values()):
            raise ValueError(f"a group's risk is above the epsilon of {self.epsilon:g}")

    @property
    def audit_bounds(self) -> dict[str, float]:
        """Returns the bounds that field audits test, by event; `ALL_ROWS` for other contracts. Empty without audits."""
        if self.events:
            return {name: promise.epsilon for name, promise in self.events.items()}
        return {} if self.audit_epsilon is None else {ALL_ROWS: self.audit_epsilon}

    @property
    def promise(self) -> str:
        """Returns the guarantee as text."""
        if self.events:
            return "; ".join(event_promise(name, one.epsilon, one.delta) for name, one in self.events.items())
        return promise_text(self.contract, self.epsilon, self.delta, by=self.by, graded=self.graded)

    def threshold_for(self, label: str | None) -> float:
        """Returns the score from which an answer of this predicted class is accepted; infinite if none is.

        Args:
            label: None for the lowest threshold of all classes.
        """
        if not self.by or label is None:
            return self.threshold
        group = self.groups.get(label)
        return math.inf if group is None or group.threshold is None else group.threshold


def promise_text(contract: Contract, epsilon: float, delta: float, *, by: str = "", graded: bool = False) -> str:
    """Returns a promise that is about no event as text.

    Args:
        contract: the bounded quantity.
        epsilon: its bound.
        delta: probability that the promise is wrong.
        by: scope of the bound, see `Certificate.by`.
        graded: whether losses lie between 0 and 1, so that their mean is bounded, and no share of answers.
    """
    if contract == "stream":
        most = f"at most {points(epsilon)}"
        what = (
            f"the mean loss of both tiers against the labels is {most} above the full model's"
            if graded
            else f"the tiered accuracy is {most} below the full model's"
        )
    else:
        most = f"at most {100 * epsilon:.4g} %"
        harm = contract == "harm"
        if graded:
            mean = "that edge answers add to the full model's" if harm else "of edge answers against the full model's"
            what = f"the mean loss {mean} is {most}"
        else:
            lost = "are wrong where the full model is right" if harm else "disagree with the full model"
            what = f"{most} of edge answers {lost}"
    scope = f"in each predicted {by}, " if by else ""
    return f"{what}, {scope}with confidence {100 - 100 * delta:.10g} %"


def event_promise(event: str, epsilon: float, delta: float) -> str:
    """Returns the promise about an event as text.

    Args:
        event: such as "missed person" or "invented person".
        epsilon: share of the rows in which the event can occur.
        delta: probability that the promise is wrong.
    """
    direction, _, group = event.partition(" ")
    least = f"at most {100 * epsilon:.4g} % of the edge answers"
    what = {
        "missed": f"{least} miss '{group}' where the full model reports it",
        "invented": f"{least} that report '{group}' invent it",
    }.get(direction, f"{least} have the event '{event}'")
    return f"{what}, with confidence {100 - 100 * delta:.10g} %"


def points(difference: float) -> str:
    """Returns a difference of two shares as text: from 92 % to 90 % it is 2 percentage points."""
    amount = f"{100 * difference:.4g}"
    return f"{amount} percentage point{'' if amount == '1' else 's'}"
