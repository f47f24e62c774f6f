"""The certificate of an edge variant, as stored in the manifest.

A certificate holds for one edge model with its processing, one full model and one score. It names the digests of all
three and is void if one of them differs from the manifest's.
"""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Annotated, Literal

from msgspec import Meta, Struct

from firstline_core.types import Sha256

Contract = Literal["disagreement", "harm", "stream"]
"""The bounded quantity.

Of the edge answers: "disagreement" with the full model, or "harm": the edge is wrong and the full model right. Of all
answers: "stream", the accuracy given up compared with the full model alone.
"""

_Share = Annotated[float, Meta(ge=0, le=1)]
_OpenShare = Annotated[float, Meta(gt=0, lt=1)]


class Histogram(Struct, frozen=True, forbid_unknown_fields=True):
    """The distribution of the scores at certification, against which drift in the field is measured.

    Attributes:
        edges: limits between bins, strictly ascending. A score on an edge belongs to the bin above.
        shares: of the scores per bin, one more than edges; the first and the last bin are open.
    """

    edges: Annotated[tuple[float, ...], Meta(min_length=1)]
    shares: tuple[_Share, ...]

    def __post_init__(self) -> None:
        if len(self.shares) != len(self.edges) + 1:
            raise ValueError(f"{len(self.edges)} edges make {len(self.edges) + 1} bins, not {len(self.shares)}")
        if any(left >= right for left, right in pairwise(self.edges)):
            raise ValueError("the edges of a histogram ascend")


class GroupCertificate(Struct, frozen=True, forbid_unknown_fields=True):
    """The certificate of one group. The `threshold` is None if none is certified; then the whole group is escalated.

    Attributes:
        n: number of rows of the group at certification.
        kept: share of these rows that the threshold accepts.
        risk_upper: as in `Certificate`; None if nothing is certified.
    """

    threshold: float | None
    n: Annotated[int, Meta(ge=0)]
    kept: _Share
    risk_upper: _Share | None

    def __post_init__(self) -> None:
        if (self.threshold is None) != (self.risk_upper is None):
            raise ValueError("a group has both a threshold and an upper bound of its risk, or neither")


class Certificate(Struct, frozen=True, forbid_unknown_fields=True):
    """Of the answers accepted at `threshold`, at most `epsilon` break the contract, with confidence 1 - `delta`.

    Attributes:
        threshold: an edge answer is accepted if and only if its score is at least this.
        n: number of rows at certification.
        kept: share of these rows that the threshold accepts.
        risk_upper: upper confidence bound of the risk, at most `epsilon`; for a stream, of the accuracy given up.
        edge_digest: `Model.digest` of the variant, processing included.
        full_digest: `Model.digest` of the full model.
        score_digest: `Manifest.score_digest` of the policy's score.
        audit_epsilon: bound that field audits test: the share of edge answers that differ from the full model's. For
            "disagreement" it is `epsilon`. The loss of the other contracts needs labels, which the field does not have,
            so it is the upper bound of the disagreement on the same rows, at `delta`. None without audits.
        histogram: of the scores of the `n` rows.
        by: scope of the bound: "" for all edge answers together, "class" for each predicted class.
        groups: by label of the class. `threshold` is then the lowest of all groups, and answers with an absent label
            are escalated.
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
        """Returns the guarantee as text."""
        sure = f"with confidence {100 - 100 * self.delta:.10g} %"
        if self.contract == "stream":
            return f"the tiered accuracy is at most {points(self.epsilon)} below the full model's, {sure}"
        most = f"at most {100 * self.epsilon:.4g} %"
        what = "disagree with the full model" if self.contract == "disagreement" else "are wrong where it is right"
        return f"{most} of edge answers {what}, {f'in each predicted {self.by}, ' if self.by else ''}{sure}"

    def threshold_for(self, label: str) -> float:
        """Returns the score from which an answer of this predicted class is accepted; infinite if none is."""
        if not self.by:
            return self.threshold
        group = self.groups.get(label)
        return math.inf if group is None or group.threshold is None else group.threshold


def points(difference: float) -> str:
    """Returns a difference of two shares as text: from 92 % to 90 % it is 2 percentage points."""
    amount = f"{100 * difference:.4g}"
    return f"{amount} percentage point{'' if amount == '1' else 's'}"
