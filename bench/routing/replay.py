"""Models that say again what they said of each row of a pool, and the bundle that they are of."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace

import numpy as np
from msgspec.structs import replace

from bench.pools import Pool
from bench.simulation.core import OneCore
from firstline.workbench.selection import fit_value
from firstline_core.bundle.loading import Prediction
from firstline_core.bundle.manifest import Manifest, Model, Policy
from firstline_core.bundle.store import Bundle
from firstline_core.clock import Clock
from firstline_core.processing.steps import InputSpec
from firstline_core.routing.certificate import Certificate
from firstline_core.routing.certification import certify
from firstline_core.routing.policy import score
from firstline_core.storage.artefact import Artefact
from firstline_core.types import (
    PROBABILITIES,
    Answer,
    Attempt,
    InferRequest,
    InferResponse,
    Reason,
    Status,
    Tensor,
    Tier,
)
from firstline_edge.models.models import DeviceModel, EdgeModel

NAME = "pair"
DECLARED = 0.9
"""The threshold that the pairs' bundles declare, on the likeliest class's probability."""

_INPUT = InputSpec("image", "BYTES", (-1,))
_INDEX_BYTES = 4


def tensor_of(pool: Pool, row: int) -> Tensor:
    """An input as large as the row's image, which says which row it is."""
    element = np.empty(1, object)
    element[0] = row.to_bytes(_INDEX_BYTES, "little").ljust(int(pool.size_bytes[row]), b"\0")
    return Tensor(_INPUT.name, element)


def rows_of(tensor: Tensor) -> list[int]:
    """Returns the rows that the inputs encode."""
    return [int.from_bytes(element[:_INDEX_BYTES], "little") for element in tensor.array]


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
        Model(name, Artefact(f"{name}.onnx", digit * 64, 1), "onnx", "fp32")
        for name, digit in (("edge", "a"), ("full", "b"))
    )
    losses = fitted.losses()
    manifest = Manifest(
        name=NAME,
        version=1,
        labels=tuple(map(str, range(fitted.edge.shape[1]))),
        input=_INPUT,
        edge=(edge,),
        full=full,
        policy=Policy(threshold=DECLARED, value=fit_value(fitted.edge, losses["harm"], losses["disagreement"])),
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


class _ReplayedModel:
    """What `EdgeModel` needs of a `LoadedModel`."""

    def __init__(self, model: Model, pool: Pool) -> None:
        self.model, self.digest = model, model.digest
        self.runtime = SimpleNamespace(provider="replay")
        self._pool = pool

    def predict_with_logits(self, tensor: Tensor) -> Prediction:
        return Prediction(self._pool.edge[rows_of(tensor)], None)

    def close(self) -> None:
        pass


def held_model(manifest: Manifest, pool: Pool, run_ms: float, clock: Clock) -> DeviceModel:
    """The bundle on a device that answers any row of the pool within `run_ms`; below 1 ms, at once."""
    model = manifest.edge[0]
    edge = EdgeModel(
        loaded=_ReplayedModel(model, pool),  # type: ignore[arg-type]
        score=lambda probabilities, _logits=None: score("max_probability", probabilities),
        digest="evidence",
        row_ms=run_ms,
        sample_bytes=int(pool.size_bytes.max()),
        workers=OneCore(run_ms, clock),
        certificate=model.certificate,
        value=manifest.policy.value,
    )
    return DeviceModel(Bundle(Path(), manifest), edge)


class ReplayedGateway:
    """Answers with the full model's words, after the time that it is stated to take.

    Args:
        service_ms: of one request; so many as come run side by side.
    """

    def __init__(self, manifest: Manifest, pool: Pool, service_ms: float, clock: Clock) -> None:
        self._digest = manifest.full_digest
        self._version = str(manifest.version)
        self._pool = pool
        self._service_ms = service_ms
        self._clock = clock

    async def answer(self, request: InferRequest) -> InferResponse:
        await self._clock.sleep(self._service_ms / 1000)
        answer = Answer(
            request_id=request.request_id,
            status=Status.FINAL,
            certified=True,
            durable=False,
            tier=Tier.CLOUD,
            reason=Reason.REQUESTED,
            confidence=None,
            model_digest=self._digest,
            attempts=(Attempt(Tier.CLOUD, "ok", self._service_ms),),
        )
        output = Tensor(PROBABILITIES, self._pool.full[rows_of(request.inputs[0])])
        return InferResponse(request.model, self._version, (output,), answer=answer)
