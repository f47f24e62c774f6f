"""Certificates beyond the one on all kept answers together: on the stream, by predicted class, by known group."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from firstline.workbench.certify import Certification
from firstline.workbench.evidence import Evidence
from firstline_core.bundle.certificate import Certificate, Contract, GroupCertificate
from firstline_core.bundle.store import Bundle
from firstline_core.routing import binomial
from firstline_core.routing.certificate import Certificate as Proof
from firstline_core.routing.certificate import split
from firstline_core.routing.contracts import certify_groups, certify_stream, net_loss
from firstline_core.routing.drift import histogram

KeptContract = Literal["disagreement", "harm"]
"""Contracts on kept answers; see `bundle.certificate.Contract`."""


@dataclass(frozen=True, slots=True)
class GroupsProof(Proof):
    """What the rows prove of each group, and of all of them together.

    `threshold` is the lowest of any group, `risk_upper` the highest, `kept` that of all rows. `n_needed` is 0 where any
    group is certified, else the least of theirs.

    Attributes:
        by: what the groups are.
        groups: each group's own; delta is shared out evenly among them.
    """

    by: str
    groups: Mapping[str, Proof]


def certify_stream_bundle(
    bundle: Bundle, evidence: Evidence, *, epsilon: float, delta: float, seed: int = 0, select_fraction: float = 0.0
) -> Certification:
    """Certifies that the tiered accuracy is at most epsilon below the full model's.

    Nothing audits it in the field, where the true labels are not known: `audit_epsilon` stays empty.

    Args:
        bundle: that the evidence is of.
        evidence: of labelled images drawn at random from what will be asked, as for `certify_bundle`.
        epsilon: accuracy given up at most.
        delta: probability that the promise is wrong.
        seed: of the split, and of the order of bets.
        select_fraction: share of the data that only places the thresholds.

    Raises:
        ConfigError: arguments out of range.
    """
    costs = net_loss(evidence.edge == evidence.truth, evidence.full == evidence.truth)
    found = certify_stream(evidence.scores, costs, epsilon, delta, select_fraction=select_fraction, seed=seed)
    proof = Proof(found.certified, found.threshold, found.kept, found.given_up_upper, found.n, found.n_needed)
    rows = np.arange(len(evidence.scores))
    rest = rows if not select_fraction else split(len(rows), select_fraction, seed)[1]
    made = _certificate(bundle, evidence, "stream", proof, epsilon=epsilon, delta=delta, rows=rest, audit_epsilon=None)
    return Certification(evidence.variant, proof, made)


def certify_classes(
    bundle: Bundle,
    evidence: Evidence,
    *,
    epsilon: float,
    delta: float,
    contract: KeptContract = "disagreement",
    seed: int = 0,
    select_fraction: float = 0.0,
) -> Certification:
    """Certifies the kept answers of each class that the edge predicts, all of them together with confidence 1 - delta.

    Arguments and errors are those of `certify_bundle`. Classes that the data does not show keep nothing.
    """
    labels = bundle.manifest.labels
    groups = [labels[at] for at in evidence.edge.tolist()]
    proof = certify_by(
        evidence,
        groups,
        "class",
        epsilon=epsilon,
        delta=delta,
        contract=contract,
        seed=seed,
        select_fraction=select_fraction,
    )
    rest = _certified_rows(groups, select_fraction, seed)
    # The full model's answers are all that the field shows. Where every class keeps to epsilon, all together do.
    audited = epsilon if contract == "disagreement" else _disagreement_upper(evidence, groups, proof, rest, delta)
    made = _certificate(
        bundle, evidence, contract, proof, epsilon=epsilon, delta=delta, rows=rest, audit_epsilon=audited
    )
    return Certification(evidence.variant, proof, made)


def certify_by(
    evidence: Evidence,
    groups: Sequence[str],
    by: str,
    *,
    epsilon: float,
    delta: float,
    contract: KeptContract = "disagreement",
    seed: int = 0,
    select_fraction: float = 0.0,
) -> GroupsProof:
    """One certificate for each group of rows.

    Args:
        evidence: as for `certify_bundle`.
        groups: (n,) of each row, known before the decision.
        by: what they are, in a word.
        epsilon: share of the kept answers of each group that may break the contract.
        delta: probability that any of the promises is wrong.
        contract: what counts as a loss.
        seed: of the splits.
        select_fraction: as for `certify_bundle`, within each group.

    Raises:
        ConfigError: arguments out of range.
    """
    losses = evidence.losses(contract)
    each = certify_groups(evidence.scores, losses, groups, epsilon, delta, select_fraction=select_fraction, seed=seed)
    each = dict(sorted(each.items()))
    certified = [found for found in each.values() if found.certified]
    rows = sum(found.n for found in each.values())
    return GroupsProof(
        certified=bool(certified),
        threshold=min((found.threshold for found in certified if found.threshold is not None), default=None),
        kept=sum(found.kept * found.n for found in each.values()) / max(rows, 1),
        risk_upper=max((found.risk_upper for found in certified if found.risk_upper is not None), default=None),
        n=rows,
        n_needed=0 if certified else min(found.n_needed for found in each.values()),
        by=by,
        groups=each,
    )


def _certificate(
    bundle: Bundle,
    evidence: Evidence,
    contract: Contract,
    proof: Proof,
    *,
    epsilon: float,
    delta: float,
    rows: NDArray[np.intp],
    audit_epsilon: float | None,
) -> Certificate | None:
    """What the variant may carry; `rows` are those that were certified on."""
    if proof.threshold is None or proof.risk_upper is None:
        return None
    manifest = bundle.manifest
    groups = proof.groups if isinstance(proof, GroupsProof) else {}
    return Certificate(
        contract=contract,
        epsilon=epsilon,
        delta=delta,
        threshold=proof.threshold,
        n=proof.n,
        kept=proof.kept,
        risk_upper=proof.risk_upper,
        edge_digest=evidence.variant.digest,
        full_digest=manifest.full_digest,
        score_digest=manifest.policy.score.digest,
        audit_epsilon=audit_epsilon,
        histogram=histogram(evidence.scores[rows]),
        by="class" if groups else "",
        groups={
            label: GroupCertificate(found.threshold, found.n, found.kept, found.risk_upper)
            for label, found in groups.items()
        },
    )


def _disagreement_upper(
    evidence: Evidence, groups: Sequence[str], proof: GroupsProof, rows: NDArray[np.intp], delta: float
) -> float | None:
    """Upper bound, at delta, of the disagreement among kept answers; None where there is none below 1."""
    limits = {group: found.threshold for group, found in proof.groups.items()}
    kept = [at for at in rows.tolist() if (limit := limits[groups[at]]) is not None and evidence.scores[at] >= limit]
    found = binomial.upper_bound(int((evidence.edge != evidence.full)[kept].sum()), len(kept), delta)
    return found if found < 1 else None


def _certified_rows(groups: Sequence[str], select_fraction: float, seed: int) -> NDArray[np.intp]:
    """Positions of the rows that `certify_groups` certifies on."""
    members: dict[str, list[int]] = {}
    for row, group in enumerate(groups):
        members.setdefault(group, []).append(row)
    if not select_fraction:
        return np.arange(len(groups))
    parts = [np.asarray(rows)[split(len(rows), select_fraction, seed)[1]] for rows in members.values()]
    return np.concatenate(parts)
