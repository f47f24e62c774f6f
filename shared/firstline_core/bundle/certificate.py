"""The certificate that an edge variant carries, and what voids it.

What was proved holds for one edge model with its processing, one full model and one score. The certificate names the
digests of all three; where one of them is not the manifest's, nothing is proved of this bundle, and it is void.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal

from msgspec import Meta, Struct

from firstline_core.bundle.artefact import Sha256

if TYPE_CHECKING:
    from firstline_core.bundle.manifest import Manifest, Model

Contract = Literal["disagreement", "harm"]
"""What is bounded: "disagreement": the full model says otherwise; "harm": the edge is wrong where the full is right."""

_Share = Annotated[float, Meta(ge=0, le=1)]
_OpenShare = Annotated[float, Meta(gt=0, lt=1)]


class Certificate(Struct, frozen=True, forbid_unknown_fields=True):
    """Of the answers kept at `threshold`, at most `epsilon` break the contract, with confidence 1 - `delta`.

    Attributes:
        threshold: an answer is kept if and only if its score is at least this.
        n: rows that it was proved on.
        kept: share of them that the threshold keeps.
        risk_upper: upper confidence bound of the risk, at most `epsilon`.
        edge_digest: `Model.digest` of the variant, processing included.
        full_digest: `Model.digest` of the full model.
        score_digest: `Score.digest` of the policy's score.
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

    def __post_init__(self) -> None:
        if self.risk_upper > self.epsilon:
            raise ValueError(f"a risk of up to {self.risk_upper:g} does not certify an epsilon of {self.epsilon:g}")

    @property
    def promise(self) -> str:
        """What it says, in words."""
        what = "disagree with the full model" if self.contract == "disagreement" else "are wrong where it is right"
        return (
            f"at most {100 * self.epsilon:.4g} % of kept answers {what}, with confidence {100 - 100 * self.delta:.4g} %"
        )


def valid_certificate(manifest: Manifest, model: Model) -> Certificate | None:
    """The variant's certificate, or None where it has none or it was made for something else."""
    return None if certificate_problem(manifest, model) else model.certificate


def certificate_problem(manifest: Manifest, model: Model) -> str:
    """Why the variant has no valid certificate, as part of a sentence; "" where it has one."""
    certificate = model.certificate
    if certificate is None:
        return "its bundle carries no certificate for it"
    made_for = (
        ("edge model or its processing", certificate.edge_digest, model.digest),
        ("full model", certificate.full_digest, manifest.full_digest),
        ("score", certificate.score_digest, manifest.policy.score.digest),
    )
    other = [what for what, named, found in made_for if named != found]
    return f"its certificate is void: it was made for another {' and another '.join(other)}" if other else ""
