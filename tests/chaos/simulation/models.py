"""Three bundles whose answers anybody can compute: the input is the edge model's probability of "yes".

One has a certificate, one has none, and that of the third was made for another full model, so it is void.
"""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import numpy as np

from bench.support.bundles import with_certificate
from chaos.simulation.core import OneCore
from chaos.simulation.plan import CERTIFIED, UNCERTIFIED, VOID
from firstline_core.bundle.loading import Prediction
from firstline_core.bundle.manifest import Manifest, Model, Policy, valid_certificate
from firstline_core.bundle.store import Bundle
from firstline_core.clock import Clock
from firstline_core.processing.steps import InputSpec, ModelInput
from firstline_core.storage.artefact import Artefact
from firstline_core.tasks.base import Task
from firstline_core.tasks.classification import Classification
from firstline_core.types import PROBABILITIES, Array, Arrays, AuditNote, InferRequest, ModelKey, Tensor
from firstline_edge.models.models import DeviceModel, EdgeModel
from firstline_gateway.models.repository import Repository, ServedModel

INPUT = "x"
THRESHOLD = 0.8
"""From which an answer is kept, in every bundle."""


def full_says(values: Array) -> Array:
    """(rows, 2) float32: the full model is certain, and one time in three that it is not what the edge thinks."""
    yes = np.rint(values.astype(np.float64) * 1e6).astype(np.int64) % 3 != 0
    return np.where(yes[:, None], [[0.99, 0.01]], [[0.01, 0.99]]).astype(np.float32)


def edge_says(values: Array) -> Array:
    """(rows, 2) float32."""
    return np.stack([values, 1 - values], axis=1).astype(np.float32)


def _manifest(name: str, digit: str) -> Manifest:
    edge, full = (
        Model(file, Artefact(f"{file}.onnx", digit * 63 + last, 1), "onnx", "fp32", (ModelInput(INPUT),))
        for file, last in (("edge", "a"), ("full", "b"))
    )
    manifest = Manifest(
        name=name,
        version=1,
        task=Classification(("yes", "no")),
        inputs=(InputSpec(INPUT, "FP32", (-1, 1)),),
        edge=(edge,),
        full=full,
        policy=Policy(threshold=THRESHOLD),
    )
    if name == UNCERTIFIED:
        return manifest
    other = {"full_digest": "f" * 64} if name == VOID else {}
    return msgspec.structs.replace(manifest, edge=(with_certificate(edge, manifest, THRESHOLD, **other),))


MANIFESTS = {name: _manifest(name, digit) for name, digit in ((CERTIFIED, "1"), (UNCERTIFIED, "2"), (VOID, "3"))}


class _Echo:
    """What `EdgeModel` needs of a `LoadedModel`."""

    has_costs = False
    row_s = 0.0

    def __init__(self, model: Model, task: Task) -> None:
        self.model, self.digest, self.input_names, self.task = model, model.digest, model.input_names, task
        self.runtime = SimpleNamespace(provider="echo")

    def predict(self, inputs: Arrays) -> Prediction:
        return Prediction({PROBABILITIES: edge_says(inputs[INPUT][:, 0])}, {})

    def close(self) -> None:
        pass


def held(row_ms: float, clock: Clock) -> list[DeviceModel]:
    """The bundles as a device has them."""
    core = OneCore(row_ms, clock)

    def edge_of(manifest: Manifest) -> EdgeModel:
        loaded: Any = _Echo(manifest.edge[0], manifest.task)
        return EdgeModel(
            loaded,
            lambda outputs, _: outputs[PROBABILITIES].max(axis=1),
            f"evidence of {manifest.name}",
            row_ms,
            4,
            core,
            valid_certificate(manifest, manifest.edge[0]),
        )

    return [DeviceModel(Bundle(Path(), manifest), edge_of(manifest)) for manifest in MANIFESTS.values()]


def repeated(value: float, request_id: str, promised: bool) -> InferRequest:
    """What another device asks of the certified model: to keep a promise, or to audit the answer that it kept."""
    manifest = MANIFESTS[CERTIFIED]
    certificate = valid_certificate(manifest, manifest.edge[0])
    assert certificate.audit_epsilon is not None
    values = np.array([[value]], np.float32)
    note = AuditNote(
        propensity=0.1,
        epsilon=certificate.audit_epsilon,
        threshold=certificate.threshold,
        edge_digest=certificate.edge_digest,
    )
    return InferRequest(
        CERTIFIED,
        (Tensor(INPUT, values),),
        request_id,
        principal="device:d2",
        promised=promised,
        audit=None if promised else note,
        edge_outputs={} if promised else {PROBABILITIES: full_says(values[:, 0])},  # an alarm would be another story
    )


def served() -> Repository:
    """The same as a gateway has them."""
    unloaded: Any = None
    return Repository(
        {
            (key := ModelKey(name, manifest.version)): ServedModel(
                key, Path(), manifest, unloaded, manifest.full_digest
            )
            for name, manifest in MANIFESTS.items()
        }
    )
