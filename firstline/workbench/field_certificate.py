"""Certifies a bundle again on a device's audits, which `edge-agent audits` prints."""

from __future__ import annotations

from collections.abc import Collection

import numpy as np
from numpy.typing import ArrayLike

from firstline.workbench.certify import Certification
from firstline.workbench.selection import Selection
from firstline_core.bundle.manifest import Manifest, Model, valid_certificate
from firstline_core.bundle.store import Bundle
from firstline_core.errors import ConfigError
from firstline_core.routing.certificate import Certificate
from firstline_core.routing.contracts import certify_weighted
from firstline_core.routing.drift import histogram
from firstline_edge.audits.records import key_of


def certify_field(
    bundle: Bundle,
    scores: ArrayLike,
    losses: ArrayLike,
    weights: ArrayLike,
    certificates: Collection[str],
    *,
    epsilon: float,
    delta: float,
    select_fraction: float = 0.0,
    seed: int = 0,
) -> Certification:
    """Returns what the rows prove about their variant: always the agreement of accepted answers with the full model.

    Args:
        bundle: that the device ran, with the certificate under which it audited.
        scores: (n,) of the edge model, by the bundle's score.
        losses: (n,) 1 where the full model said otherwise, else 0.
        weights: (n,) in proportion to one over the probability with which a row was drawn.
        certificates: of each row, the key of the record that its device kept it for.
        epsilon: as for `certify`.
        delta: as for `certify`.
        select_fraction: as for `certify`.
        seed: as for `certify`.

    Raises:
        ConfigError: rows of another bundle, version, model or score; or as for `certify_weighted`.
    """
    manifest, sure = bundle.manifest, np.asarray(scores, np.float64)
    variant = _variant_of(manifest, set(certificates))
    proof = certify_weighted(sure, losses, weights, epsilon, delta, select_fraction=select_fraction, seed=seed)
    score = manifest.policy.score
    certificate = None
    if proof.threshold is not None and proof.risk_upper is not None:
        certificate = Certificate(
            contract="disagreement",
            epsilon=epsilon,
            delta=delta,
            threshold=proof.threshold,
            n=proof.n,
            kept=proof.kept,
            risk_upper=proof.risk_upper,
            edge_digest=variant.digest,
            full_digest=manifest.full_digest,
            score_digest=score.digest,
            audit_epsilon=epsilon,
            histogram=histogram(sure, weights=weights),
        )
    selection = Selection(score, None, {}, None, 0, np.arange(len(sure)), sure)
    return Certification(variant, selection, proof, certificate)


def _variant_of(manifest: Manifest, keys: set[str]) -> Model:
    """Scores of another model, or of another score, would certify nothing of this one."""
    for variant in manifest.edge:
        found = valid_certificate(manifest, variant)
        if found is None or found.audit_epsilon is None:
            continue
        if keys == {key_of(manifest.name, str(manifest.version), found, found.audit_epsilon)}:
            return variant
    raise ConfigError(
        f"The table is not of {manifest.name} version {manifest.version}: its column `certificate` names none of this "
        "bundle's. Print it with `edge-agent audits` on a device that runs this very version."
    )
