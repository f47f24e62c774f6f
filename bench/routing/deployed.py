"""The bundle that a deployed pair of models would have, learned and certified on one half of its pool."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from msgspec.structs import replace

from bench.pools import Pool
from firstline.workbench.selection import fit_value
from firstline_core.bundle.manifest import Manifest, Model, Policy
from firstline_core.processing.steps import InputSpec, ModelInput
from firstline_core.routing.certificate import Certificate
from firstline_core.routing.certification import certify
from firstline_core.storage.artefact import Artefact
from firstline_core.tasks.classification import Classification, features, score

DECLARED = 0.9
"""The threshold that the pairs' bundles declare, on the likeliest class's probability."""


@dataclass(frozen=True, slots=True)
class Deployed:
    """A deployed pair.

    Args:
        manifest: with what was learned and certified on the fitted half of a pool.
        fitted, asked: its halves; requests are of the second.
    """

    manifest: Manifest
    fitted: Pool
    asked: Pool


def deploy(pool: Pool, *, epsilon: float = 0.05, delta: float = 0.1, seed: int = 0) -> Deployed:
    """Splits a pool at random, and makes a bundle of one half."""
    order = np.random.default_rng(seed).permutation(len(pool.labels))
    fitted, asked = pool.take(order[: len(order) // 2]), pool.take(order[len(order) // 2 :])
    return Deployed(manifest_of(fitted, epsilon, delta), fitted, asked)


def manifest_of(fitted: Pool, epsilon: float, delta: float) -> Manifest:
    """A bundle's declaration, with the value learned and the threshold certified on these rows."""
    edge, full = (
        Model(name, Artefact(f"{name}.onnx", digit * 64, 1), "onnx", "fp32", (ModelInput("image"),))
        for name, digit in (("edge", "a"), ("full", "b"))
    )
    losses = fitted.losses()
    manifest = Manifest(
        name="pair",
        version=1,
        task=Classification(tuple(map(str, range(fitted.edge.shape[1])))),
        inputs=(InputSpec("image", "BYTES", (-1,), "image"),),
        edge=(edge,),
        full=full,
        policy=Policy(
            threshold=DECLARED, value=fit_value(features(fitted.edge), losses["harm"], losses["disagreement"])
        ),
    )
    scores = score("max_probability", fitted.edge)  # the policy's, by default
    found = certify(scores, losses["disagreement"], epsilon, delta)
    if found.threshold is None or found.risk_upper is None:
        return manifest
    certificate = Certificate(
        contract="disagreement",
        epsilon=epsilon,
        delta=delta,
        threshold=found.threshold,
        n=found.n,
        kept=found.kept,
        risk_upper=found.risk_upper,
        edge_digest=edge.digest,
        full_digest=full.digest,
        score_digest=manifest.policy.score.digest,
        audit_epsilon=epsilon,
    )
    return replace(manifest, edge=(replace(edge, certificate=certificate),))
