"""Certificates other than on all accepted answers together: on the stream, by predicted class, by known group."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from firstline.workbench.certify import Certification, audit_epsilon
from firstline.workbench.evidence import Evidence
from firstline.workbench.selection import ScoreName, Selection, select
from firstline_core.bundle.store import Bundle
from firstline_core.routing.certificate import Certificate, Contract, GroupCertificate
from firstline_core.routing.certification import Proof, start_shares, starts_at
from firstline_core.routing.contracts import certify_groups, certify_stream, net_loss
from firstline_core.routing.drift import histogram

KeptContract = Literal["disagreement", "harm"]
"""Contracts on kept answers; see `bundle.certificate.Contract`."""


@dataclass(frozen=True, slots=True)
class Terms:
    """The terms of a certificate; the arguments of `certify_bundle`."""

    epsilon: float
    delta: float
    contract: KeptContract = "disagreement"
    score: ScoreName = "best"
    seed: int = 0
    select_fraction: float | None = None


@dataclass(frozen=True, slots=True)
class GroupsProof(Proof):
    """The proofs for each group, and for all groups together.

    `threshold` is the lowest of any group, `risk_upper` the highest, `kept` that of all rows. `n_needed` is 0 where any
    group is certified, else the least of theirs.

    Attributes:
        by: the kind of the groups.
        groups: each group's own; delta is shared out evenly among them.
    """

    by: str
    groups: Mapping[str, Proof]


def certify_stream_bundle(bundle: Bundle, evidence: Evidence, terms: Terms) -> Certification:
    """Certifies that the tiered accuracy is at most epsilon below the full model's; `terms.contract` does not matter.

    Nothing audits it in the field, where the true labels are not known: `audit_epsilon` stays empty.

    Args:
        bundle: that the evidence is of.
        evidence: of labelled images drawn at random from what will be asked, as for `certify_bundle`.
        terms: epsilon is the accuracy given up at most.

    Raises:
        ConfigError: arguments out of range, or a score that cannot be had.
    """
    selection = _select(bundle, evidence, terms, "harm")
    costs = net_loss(evidence.edge == evidence.truth, evidence.full == evidence.truth)
    rows, part = selection.rest, _part(selection)
    found = certify_stream(
        selection.scores[rows],
        costs[rows],
        terms.epsilon,
        terms.delta,
        seed=terms.seed,
        grid=selection.scores[part] if len(part) else None,
    )
    proof = Proof(found.certified, found.threshold, found.kept, found.given_up_upper, found.n, found.n_needed)
    made = _certificate(bundle, evidence, proof, terms, contract="stream", selection=selection, audited=None)
    return Certification(evidence.variant, selection, proof, made)


def certify_classes(bundle: Bundle, evidence: Evidence, terms: Terms) -> Certification:
    """Certifies the kept answers of each class that the edge predicts, all of them together with confidence 1 - delta.

    Classes that the data does not show keep nothing. Arguments and errors are those of `certify_by`.
    """
    labels = bundle.manifest.labels
    groups = [labels[at] for at in evidence.edge.tolist()]
    found = certify_by(bundle, evidence, groups, "class", terms)
    proof, selection = found.proof, found.selection
    if not isinstance(proof, GroupsProof):
        return found
    limits = {group: each.threshold for group, each in proof.groups.items()}
    rows = selection.rest.tolist()
    kept = [at for at in rows if (limit := limits[groups[at]]) is not None and selection.scores[at] >= limit]
    # Where every class keeps to epsilon, all of them together do, and that is what audits see.
    differs = evidence.losses("disagreement")[kept]
    audited = audit_epsilon(terms.contract, terms.epsilon, terms.delta, differs)
    made = _certificate(bundle, evidence, proof, terms, contract=terms.contract, selection=selection, audited=audited)
    return Certification(evidence.variant, selection, proof, made)


def certify_by(bundle: Bundle, evidence: Evidence, groups: Sequence[str], by: str, terms: Terms) -> Certification:
    """Proves something of each group of rows; it makes no certificate.

    Args:
        bundle: that the evidence is of.
        evidence: as for `certify_bundle`.
        groups: (n,) of each row, known before the decision.
        by: the kind of the groups, in one word.
        terms: delta is of all the promises together.

    Returns:
        With a `GroupsProof`.

    Raises:
        ConfigError: arguments out of range, or a score that cannot be had.
    """
    selection = _select(bundle, evidence, terms, terms.contract)
    scores, rows = selection.scores, selection.rest
    certifying = Counter(groups[at] for at in rows.tolist())
    starts = {
        group: starts_at(scores[members], start_shares(certifying[group]))
        for group, members in _members(groups, _part(selection)).items()
    }
    found = certify_groups(
        scores[rows],
        evidence.losses(terms.contract)[rows],
        [groups[at] for at in rows.tolist()],
        terms.epsilon,
        terms.delta,
        seed=terms.seed,
        starts=starts,
    )
    each = dict(sorted(found.items()))
    certified = [one for one in each.values() if one.certified]
    proof = GroupsProof(
        certified=bool(certified),
        threshold=min((one.threshold for one in certified if one.threshold is not None), default=None),
        kept=sum(one.kept * one.n for one in each.values()) / max(len(rows), 1),
        risk_upper=max((one.risk_upper for one in certified if one.risk_upper is not None), default=None),
        n=len(rows),
        n_needed=0 if certified else min((one.n_needed for one in each.values()), default=1),
        by=by,
        groups=each,
    )
    return Certification(evidence.variant, selection, proof, None)


def _select(bundle: Bundle, evidence: Evidence, terms: Terms, contract: KeptContract) -> Selection:
    return select(
        evidence.probabilities,
        evidence.losses(contract),
        evidence.truth if contract == "harm" else evidence.full,
        own=bundle.manifest.policy.score,
        own_scores=evidence.scores,
        logits=evidence.logits,
        disagreements=evidence.losses("disagreement") if contract == "harm" else None,
        name=terms.score,
        fraction=terms.select_fraction,
        seed=terms.seed,
    )


def _part(selection: Selection) -> NDArray[np.intp]:
    """Positions of the rows that decided."""
    return np.setdiff1d(np.arange(len(selection.scores)), selection.rest)


def _members(groups: Sequence[str], rows: NDArray[np.intp]) -> dict[str, list[int]]:
    found: dict[str, list[int]] = {}
    for row in rows.tolist():
        found.setdefault(groups[row], []).append(row)
    return found


def _certificate(
    bundle: Bundle,
    evidence: Evidence,
    proof: Proof,
    terms: Terms,
    *,
    contract: Contract,
    selection: Selection,
    audited: float | None,
) -> Certificate | None:
    """Returns the variant's certificate."""
    if proof.threshold is None or proof.risk_upper is None:
        return None
    groups = proof.groups if isinstance(proof, GroupsProof) else {}
    return Certificate(
        contract=contract,
        epsilon=terms.epsilon,
        delta=terms.delta,
        threshold=proof.threshold,
        n=proof.n,
        kept=proof.kept,
        risk_upper=proof.risk_upper,
        edge_digest=evidence.variant.digest,
        full_digest=bundle.manifest.full_digest,
        score_digest=selection.score.digest,
        audit_epsilon=audited,
        histogram=histogram(selection.scores[selection.rest]),
        by="class" if groups else "",
        groups={
            label: GroupCertificate(one.threshold, one.n, one.kept, one.risk_upper) for label, one in groups.items()
        },
    )
