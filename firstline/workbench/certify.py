"""Certifies an edge variant of a bundle on data, and writes the bundle that carries the certificate."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec
import numpy as np
from numpy.typing import NDArray

from firstline.workbench.bundle_folder import refuse_overwriting, staged_folder
from firstline.workbench.evidence import Evidence
from firstline.workbench.selection import ScoreName, Selection, select
from firstline_core.bundle.manifest import MANIFEST_NAME, Manifest, Model, Policy, encode_manifest, valid_certificate
from firstline_core.bundle.store import Bundle, open_bundle
from firstline_core.routing import binomial
from firstline_core.routing.certificate import Certificate, Contract
from firstline_core.routing.certification import Proof, Start, certify
from firstline_core.routing.drift import histogram

_NEARLY_ALL = 0.999  # a bound of 1 would leave audits nothing to find


@dataclass(frozen=True, slots=True)
class Certification:
    """The result of certifying one variant.

    Attributes:
        variant: as it was tested.
        selection: the decisions made before testing.
        proof: the statistics, certified or not.
        certificate: the variant's certificate; None if nothing is certified.
    """

    variant: Model
    selection: Selection
    proof: Proof
    certificate: Certificate | None


def certify_bundle(
    bundle: Bundle,
    evidence: Evidence,
    *,
    epsilon: float,
    delta: float,
    contract: Contract = "disagreement",
    score: ScoreName = "best",
    seed: int = 0,
    select_fraction: float | None = None,
    starts: Sequence[Start] | None = None,
) -> Certification:
    """Lets a part of the rows decide on score, temperature, value and starts, and certifies on the rest.

    Args:
        bundle: that the evidence is of.
        evidence: of images drawn at random from what will be asked, none of them used before to choose model, score
            or temperature.
        epsilon: share of the kept answers that may break the contract.
        delta: probability that the promise is wrong.
        contract: the definition of a loss.
        score: which one.
        seed: of the split.
        select_fraction: share of the data that decides; None takes `selection.default_fraction`.
        starts: where testing starts, as scores of other data have it; None leaves that to the part that decides.

    Raises:
        ConfigError: arguments out of range, or a score that cannot be had.
    """
    manifest, losses = bundle.manifest, evidence.losses(contract)
    selection = select(
        evidence.probabilities,
        losses,
        evidence.truth if contract == "harm" else evidence.full,  # no label counts where agreement is the contract
        own=manifest.policy.score,
        own_scores=evidence.scores,
        logits=evidence.logits,
        disagreements=evidence.losses("disagreement") if contract == "harm" else None,
        name=score,
        fraction=select_fraction,
        seed=seed,
    )
    rows = selection.rest
    scores = selection.scores[rows]
    proof = certify(
        scores, losses[rows], epsilon, delta, starts=selection.starts if starts is None else starts, seed=seed
    )
    certificate = None
    if proof.threshold is not None and proof.risk_upper is not None:
        kept = scores >= proof.threshold
        certificate = Certificate(
            contract=contract,
            epsilon=epsilon,
            delta=delta,
            threshold=proof.threshold,
            n=proof.n,
            kept=proof.kept,
            risk_upper=proof.risk_upper,
            edge_digest=evidence.variant.digest,
            full_digest=manifest.full_digest,
            score_digest=selection.score.digest,
            audit_epsilon=audit_epsilon(contract, epsilon, delta, evidence.losses("disagreement")[rows][kept]),
            histogram=histogram(scores),
        )
    return Certification(evidence.variant, selection, proof, certificate)


def audit_epsilon(contract: Contract, epsilon: float, delta: float, differs: NDArray[np.bool_]) -> float:
    """Returns the bound that audits in the field can test without labels.

    Args:
        contract: the promised bound.
        epsilon: how much of it.
        delta: of the upper bound.
        differs: (kept,) whether the full model said otherwise, of the rows that the certified threshold keeps.

    Returns:
        `epsilon` where disagreement itself is promised; else the most that is likely of it.
    """
    if contract == "disagreement":
        return epsilon
    return min(binomial.upper_bound(int(differs.sum()), len(differs), delta), _NEARLY_ALL)


def policy_of(policy: Policy, found: Certification) -> Policy:
    """The bundle's policy with what was decided.

    The declared threshold is in the score's own units: with another score it becomes the certified one, which is the
    best that is known for variants without a certificate of their own; of a promise by class, the strictest, for none
    of the looser ones speaks of the other classes.
    """
    value = found.selection.value or policy.value
    if found.certificate is None or found.selection.score == policy.score:
        return msgspec.structs.replace(policy, value=value)
    by_class = [group.threshold for group in found.certificate.groups.values() if group.threshold is not None]
    return Policy(found.selection.score, max(by_class, default=found.certificate.threshold), value)


def voided(manifest: Manifest, found: Certification) -> tuple[str, ...]:
    """Ids of the other variants whose certificates are valid now, and void once the new score is the bundle's."""
    if found.selection.score.digest == manifest.policy.score.digest:
        return ()
    return tuple(m.id for m in manifest.edge if m.id != found.variant.id and valid_certificate(manifest, m) is not None)


def with_certificate(manifest: Manifest, found: Certification) -> Manifest:
    """The manifest with the variant's new certificate and what was decided; its version is the caller's to count."""
    return msgspec.structs.replace(
        manifest,
        policy=policy_of(manifest.policy, found),
        edge=tuple(
            msgspec.structs.replace(model, certificate=found.certificate) if model.id == found.variant.id else model
            for model in manifest.edge
        ),
    )


def write_certified(bundle: Bundle, found: Certification, out: Path, *, force: bool = False) -> Bundle:
    """Writes the bundle with the variant's new certificate and its score, as the next version.

    Other variants keep theirs, void or not: see `voided`. Files that are absent stay absent.

    Args:
        bundle: that was certified.
        found: with a certificate.
        out: must not exist, unless `force`; may then be the bundle itself.
        force: replaces a bundle; anything else that lies there is never touched.

    Raises:
        ConfigError: `out` may not, or cannot, be written.
    """
    manifest = bundle.manifest
    refuse_overwriting(out, force)
    certified = msgspec.structs.replace(with_certificate(manifest, found), version=manifest.version + 1)
    with staged_folder(out) as staged:
        for artefact in manifest.artefacts:
            if (source := bundle.file(artefact)).is_file():
                target = staged / artefact.file
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(source, target)
        (staged / MANIFEST_NAME).write_bytes(encode_manifest(certified))
        open_bundle(staged)
    return open_bundle(out)
