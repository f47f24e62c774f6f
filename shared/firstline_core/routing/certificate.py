"""The certificate that an edge variant carries, and what voids it.

What was proved holds for one edge model with its processing, one full model and one score. The certificate names the
digests of all three; where one of them is not the manifest's, nothing is proved of this bundle, and it is void.
"""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Annotated, Literal

from msgspec import Meta, Struct

from firstline_core.storage.artefact import Sha256

Contract = Literal["disagreement", "harm", "stream"]
"""What is bounded. Of the kept answers: "disagreement": the full model says otherwise; "harm": the edge is wrong where
the full is right. Of all answers: "stream": the accuracy given up against the full model alone."""

_Share = Annotated[float, Meta(ge=0, le=1)]
_OpenShare = Annotated[float, Meta(gt=0, lt=1)]


class Histogram(Struct, frozen=True, forbid_unknown_fields=True):
    """How the scores lay that a certificate was made on, so that a drift of what comes in can be seen.

    Attributes:
        edges: ascending, strictly; where one bin ends and the next begins. A score on an edge is above it.
        shares: of the scores in each bin, one more than edges; the first and the last bin are open.
    """

    edges: Annotated[tuple[float, ...], Meta(min_length=1)]
    shares: tuple[_Share, ...]

    def __post_init__(self) -> None:
        if len(self.shares) != len(self.edges) + 1:
            raise ValueError(f"{len(self.edges)} edges make {len(self.edges) + 1} bins, not {len(self.shares)}")
        if any(left >= right for left, right in pairwise(self.edges)):
            raise ValueError("the edges of a histogram ascend")


class GroupCertificate(Struct, frozen=True, forbid_unknown_fields=True):
    """What was proved of one group; `threshold` is None where nothing was, and all of the group goes to the full model.

    Attributes:
        n: rows of the group that it was proved on.
        kept: share of them.
        risk_upper: as in `Certificate`; None where nothing is certified.
    """

    threshold: float | None
    n: Annotated[int, Meta(ge=0)]
    kept: _Share
    risk_upper: _Share | None

    def __post_init__(self) -> None:
        if (self.threshold is None) != (self.risk_upper is None):
            raise ValueError("a group has both a threshold and an upper bound of its risk, or neither")


class Certificate(Struct, frozen=True, forbid_unknown_fields=True):
    """Of the answers kept at `threshold`, at most `epsilon` break the contract, with confidence 1 - `delta`.

    Attributes:
        threshold: an answer is kept if and only if its score is at least this.
        n: rows that it was proved on.
        kept: share of them that the threshold keeps.
        risk_upper: upper confidence bound of the risk, at most `epsilon`; of a stream, of the accuracy given up.
        edge_digest: `Model.digest` of the variant, processing included.
        full_digest: `Model.digest` of the full model.
        score_digest: `Score.digest` of the policy's score.
        audit_epsilon: what audits in the field test: the share of kept answers for which the full model says otherwise.
            For "disagreement" that is `epsilon`. Elsewhere it takes labels, which the field does not have, to see the
            loss itself; so it is what the same rows show of the disagreement, an upper bound at `delta`. None where
            nothing is audited.
        histogram: of the scores of the `n` rows.
        by: what the promise holds for: "" for all kept answers together, "class" for those of each predicted class.
        groups: by the class's label. `threshold` is then the lowest of theirs, below which nothing is kept, and a
            label that is absent keeps nothing.
    """

    contract: Contract
    epsilon: _OpenShare
    delta: _OpenShare
    threshold: float
    n: Annotated[int, Meta(ge=1)]
    kept: _Share
    risk_upper: _Share
    edge_digest: Sha256
    full_digest: Sha256
    score_digest: Sha256
    audit_epsilon: _OpenShare | None = None
    histogram: Histogram | None = None
    by: Literal["", "class"] = ""
    groups: dict[str, GroupCertificate] = {}

    def __post_init__(self) -> None:
        if bool(self.by) != bool(self.groups):
            raise ValueError("a certificate has groups if and only if it says by what they are formed")
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
    def promise(self) -> str:
        """What it says, in words."""
        sure = f"with confidence {100 - 100 * self.delta:.10g} %"
        if self.contract == "stream":
            return f"the tiered accuracy is at most {points(self.epsilon)} below the full model's, {sure}"
        most = f"at most {100 * self.epsilon:.4g} %"
        what = "disagree with the full model" if self.contract == "disagreement" else "are wrong where it is right"
        return f"{most} of kept answers {what}, {f'in each predicted {self.by}, ' if self.by else ''}{sure}"

    def threshold_for(self, label: str) -> float:
        """The score from which an answer of this predicted class is kept; infinite where none is."""
        if not self.by:
            return self.threshold
        group = self.groups.get(label)
        return math.inf if group is None or group.threshold is None else group.threshold


def points(difference: float) -> str:
    """A difference of two shares, in words: from 92 % to 90 % it is 2 percentage points, which is not 2 % of 92 %."""
    amount = f"{100 * difference:.4g}"
    return f"{amount} percentage point{'' if amount == '1' else 's'}"
