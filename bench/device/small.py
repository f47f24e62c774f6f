"""S: a perceptron of 64 inputs that takes microseconds, in a bundle whose certificate has all answers kept, or none."""

from __future__ import annotations

import hashlib
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import onnxruntime
from onnx import TensorProto, helper, numpy_helper, save

from firstline_core.bundle.manifest import MANIFEST_NAME, Manifest, Model, encode_manifest
from firstline_core.processing.steps import InputSpec, Softmax
from firstline_core.routing.certificate import Certificate, Histogram
from firstline_core.storage.artefact import Artefact

NAME, INPUT, FEATURES = "s", "x", 64
LABELS = tuple(f"class {number}" for number in range(10))
_WIDTHS = (FEATURES, 256, 128, len(LABELS))
_BINS = 20


def small_bundle(folder: Path, threshold: float) -> Path:
    """Writes the bundle: `threshold` 0 has every edge answer kept, and 1.1 none; returns the edge model's file."""
    folder.mkdir(parents=True, exist_ok=True)
    models = {name: _model(folder / f"{name}.onnx", seed) for seed, name in enumerate(("edge", "full"))}
    manifest = Manifest(
        name=NAME,
        version=1,
        labels=LABELS,
        input=InputSpec(INPUT, "FP32", (-1, FEATURES)),
        edge=(models["edge"],),
        full=models["full"],
    )
    certificate = Certificate(
        contract="disagreement",
        epsilon=0.05,
        delta=0.1,
        threshold=threshold,
        n=300,
        kept=0.8,
        risk_upper=0.04,
        edge_digest=models["edge"].digest,
        full_digest=manifest.full_digest,
        score_digest=manifest.policy.score.digest,
        audit_epsilon=0.05,
        histogram=Histogram(tuple(n / _BINS for n in range(1, _BINS)), (1 / _BINS,) * _BINS),
    )
    certified = msgspec.structs.replace(models["edge"], certificate=certificate)
    content = encode_manifest(msgspec.structs.replace(manifest, edge=(certified,)))
    (folder / MANIFEST_NAME).write_bytes(content)
    return folder / "edge.onnx"


def session(path: Path) -> onnxruntime.InferenceSession:
    """The model alone, with the threads that an agent gives it."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.inter_op_num_threads = 1
    return onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])


def _model(path: Path, seed: int) -> Model:
    random = np.random.default_rng(seed)
    weights: dict[str, Any] = {}
    nodes, before = [], INPUT
    for n, (rows, columns) in enumerate(pairwise(_WIDTHS)):
        weights[f"weights_{n}"] = (random.standard_normal((rows, columns)) / np.sqrt(rows)).astype(np.float32)
        nodes.append(helper.make_node("MatMul", [before, f"weights_{n}"], [f"product_{n}"]))
        nodes.append(helper.make_node("Relu", [f"product_{n}"], [f"layer_{n}"]))
        before = f"layer_{n}"
    nodes[-1].output[0] = "logits"
    graph = helper.make_graph(
        nodes,
        path.stem,
        [helper.make_tensor_value_info(INPUT, TensorProto.FLOAT, ["n", FEATURES])],
        [helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["n", len(LABELS)])],
        [numpy_helper.from_array(array, name) for name, array in weights.items()],
    )
    save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    content = path.read_bytes()
    return Model(
        id=path.stem,
        artefact=Artefact(path.name, hashlib.sha256(content).hexdigest(), len(content)),
        runtime="onnx",
        precision="fp32",
        postprocess=(Softmax(),),
    )
