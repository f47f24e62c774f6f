"""Bundles of one small task: sixteen numbers to four classes, by models that are good, or bad in one way each.

The certificate is written and not proved: it is that of the first version, with a threshold that keeps four fifths.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from bench.support.bundles import model, with_certificate, write_manifest
from bench.support.onnx_models import write_graph
from firstline.workbench.golden import write_golden
from firstline_core.bundle.manifest import Manifest, Model, Policy
from firstline_core.bundle.store import Bundle, open_bundle
from firstline_core.processing.steps import InputSpec, Softmax
from firstline_core.routing.certificate import Histogram
from firstline_core.routing.drift import histogram
from firstline_core.runtime.select import RuntimeOptions

FEATURES, CLASSES = 16, 4
_LABELS = tuple("abcd")
_SHARPNESS, _NOISE = 2.5, 0.05
_KEPT, _SAMPLE = 0.8, 4000
_WIDTH = 256
_GOLDEN_ROWS = 4

Floats = NDArray[np.float32]


@dataclass(frozen=True)
class Character:
    """Of an edge model.

    Attributes:
        sharpness: factor of its logits: its answers stay the same, and it is surer of them or less sure.
        mistaken: takes two classes for each other, as sure as ever.
        layers: products of 256 by 256 that a row goes through, and that say nothing.
    """

    sharpness: float = 1.0
    mistaken: bool = False
    layers: int = 0


SOUND = Character()
RETRAINED = Character(sharpness=1.01)
"""Other bytes, and as good as before."""


def write_bundle(folder: Path, name: str, version: int, character: Character = SOUND) -> Bundle:
    """Writes a bundle with an edge model, a full one, a certificate and golden answers."""
    folder.mkdir(parents=True)
    full = _as_model(_write_model(folder / "full.onnx", _weights(), 0), folder)
    kernel = _edge_weights() * np.float32(character.sharpness)
    if character.mistaken:
        kernel = kernel[:, [1, 0, *range(2, CLASSES)]]
    edge = _as_model(_write_model(folder / "edge.onnx", kernel, character.layers), folder)
    threshold, scores = _certified()
    spec = InputSpec("x", "FP32", (-1, FEATURES))
    known: dict[str, Any] = {"name": name, "version": version, "full": full, "input": spec}
    plain = Manifest(labels=_LABELS, edge=(edge,), policy=Policy(threshold=threshold), **known)
    certified = with_certificate(edge, plain, threshold, n=_SAMPLE, kept=_KEPT, histogram=scores)
    rows = folder / "rows.npy"
    np.save(rows, sample(1)[:_GOLDEN_ROWS])
    bundle = write_manifest(folder, [certified], _LABELS, policy=plain.policy, **known)
    golden = write_golden(bundle, [rows], RuntimeOptions())
    rows.unlink()
    manifest = replace(bundle.manifest, golden=golden)
    write_manifest(folder, manifest.edge, _LABELS, policy=manifest.policy, golden=golden, **known)
    return open_bundle(folder)


def sample(seed: int, rows: int = _SAMPLE) -> Floats:
    """(rows, 16) inputs, as the field has them."""
    return np.random.default_rng(seed).standard_normal((rows, FEATURES)).astype(np.float32)


def _weights() -> Floats:
    found = np.random.default_rng(0).standard_normal((FEATURES, CLASSES)) / np.sqrt(FEATURES)
    weights: Floats = (_SHARPNESS * found).astype(np.float32)
    return weights


def _edge_weights() -> Floats:
    noise = np.random.default_rng(1).standard_normal((FEATURES, CLASSES)) / np.sqrt(FEATURES)
    weights: Floats = (_weights() + _NOISE * _SHARPNESS * noise).astype(np.float32)
    return weights


def _certified() -> tuple[float, Histogram]:
    """The threshold of the first version, and how its scores lie."""
    logits = sample(2) @ _edge_weights()
    powers = np.exp(logits - logits.max(axis=1, keepdims=True))
    scores = (powers / powers.sum(axis=1, keepdims=True)).max(axis=1)
    lie = histogram(scores)
    assert lie is not None
    return float(np.quantile(scores, 1 - _KEPT)), lie


def _as_model(file: Path, folder: Path) -> Model:
    return model(file, folder, postprocess=(Softmax(),))


def _write_model(path: Path, kernel: Floats, layers: int) -> Path:
    """`logits = x @ kernel`, plus nothing that takes as many products as there are layers."""
    held = {"kernel": kernel}
    nodes = [helper.make_node("MatMul", ["x", "kernel"], ["logits" if not layers else "product"])]
    if layers:
        rng = np.random.default_rng(3)
        held["wide"] = rng.standard_normal((FEATURES, _WIDTH)).astype(np.float32)
        # Orthogonal: numbers stay as large as they are, through however many layers.
        held["square"] = np.linalg.qr(rng.standard_normal((_WIDTH, _WIDTH)))[0].astype(np.float32)
        held["nothing"] = np.zeros((_WIDTH, CLASSES), np.float32)
        nodes.append(helper.make_node("MatMul", ["x", "wide"], ["layer_0"]))
        for number in range(layers):
            nodes.append(helper.make_node("MatMul", [f"layer_{number}", "square"], [f"layer_{number + 1}"]))
        nodes.append(helper.make_node("MatMul", [f"layer_{layers}", "nothing"], ["added"]))
        nodes.append(helper.make_node("Add", ["product", "added"], ["logits"]))
    return write_graph(
        path,
        nodes,
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", FEATURES])],
        [helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["n", CLASSES])],
        [numpy_helper.from_array(array, name) for name, array in held.items()],
    )
