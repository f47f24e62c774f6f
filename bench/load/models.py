"""Bundles to load a gateway with.

For overload: one whose rows take about so many milliseconds each, and one that takes none. For what a request costs:
S, a perceptron of 64 inputs that takes some 20 us and gains by batches, and M, a convolutional network over images of
224 by 224 that takes some 13 ms and does not.
"""

from __future__ import annotations

import hashlib
import time
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import onnxruntime
from onnx import TensorProto, helper, numpy_helper, save

from firstline_core.bundle.artefact import Artefact
from firstline_core.bundle.manifest import MANIFEST_NAME, InputSpec, Manifest, Model, encode_manifest
from firstline_core.bundle.steps import Softmax

FEATURES = 16
_CLASSES, _TOKENS, _WIDTH = 4, 64, 384
_TRIAL_LAYERS, _TRIALS = 8, 15
S_FEATURES, _S_WIDTHS, _S_CLASSES = 64, (512, 256), 10
M_SHAPE, _M_CHANNELS, _M_CLASSES = (3, 224, 224), (40, 80, 160, 256), 10


def quick_bundle(folder: Path) -> None:
    """One small product: microseconds."""
    nodes = [helper.make_node("MatMul", ["x", "last"], ["logits"])]
    _write_bundle(folder, nodes, {"last": _weights(FEATURES, _CLASSES)})


def slow_bundle(folder: Path, row_ms: float) -> float:
    """Layers of products over a few tokens, as many as take the time on one core of this machine; rows add up.

    Returns:
        What a row takes in the end, the quickest of some runs (ms).
    """
    trial_ms = _timed_ms(_layers(folder, _TRIAL_LAYERS))
    layers = max(1, round(_TRIAL_LAYERS * row_ms / trial_ms))
    return _timed_ms(_layers(folder, layers))


def s_bundle(folder: Path, name: str = "s") -> Path:
    """S; its file, for those that serve without a bundle."""
    weights = {
        "w0": _weights(S_FEATURES, _S_WIDTHS[0]),
        "w1": _weights(*_S_WIDTHS, seed=1),
        "w2": _weights(_S_WIDTHS[1], _S_CLASSES, seed=2),
    }
    nodes = [
        helper.make_node("MatMul", ["x", "w0"], ["a0"]),
        helper.make_node("Relu", ["a0"], ["b0"]),
        helper.make_node("MatMul", ["b0", "w1"], ["a1"]),
        helper.make_node("Relu", ["a1"], ["b1"]),
        helper.make_node("MatMul", ["b1", "w2"], ["logits"]),
        helper.make_node("Softmax", ["logits"], ["probabilities"], axis=-1),
    ]
    return _write_classifier(folder, name, nodes=nodes, weights=weights, shape=(S_FEATURES,), classes=_S_CLASSES)


def m_bundle(folder: Path, name: str = "m") -> Path:
    """M; its file, for those that serve without a bundle."""
    nodes, weights = [], {}
    before, channels = "x", M_SHAPE[0]
    for layer, wider in enumerate(_M_CHANNELS):
        for step, stride in (("a", 2), ("b", 1)):
            kernel = f"k{layer}{step}"
            weights[kernel] = _weights(channels * 9, wider, seed=layer).T.reshape(wider, channels, 3, 3).copy()
            nodes += [
                helper.make_node("Conv", [before, kernel], [f"c{kernel}"], pads=[1] * 4, strides=[stride] * 2),
                helper.make_node("Relu", [f"c{kernel}"], [f"r{kernel}"]),
            ]
            before, channels = f"r{kernel}", wider
    weights["last"] = _weights(channels, _M_CLASSES)
    nodes += [
        helper.make_node("GlobalAveragePool", [before], ["pooled"]),
        helper.make_node("Flatten", ["pooled"], ["flat"]),
        helper.make_node("MatMul", ["flat", "last"], ["logits"]),
        helper.make_node("Softmax", ["logits"], ["probabilities"], axis=-1),
    ]
    return _write_classifier(folder, name, nodes=nodes, weights=weights, shape=M_SHAPE, classes=_M_CLASSES)


def _write_classifier(
    folder: Path, name: str, *, nodes: list[Any], weights: dict[str, Any], shape: tuple[int, ...], classes: int
) -> Path:
    """A bundle whose model ends in its own softmax, so that what others serve of it gives the same."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "full.onnx"
    graph = helper.make_graph(
        nodes,
        name,
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", *shape])],
        [helper.make_tensor_value_info("probabilities", TensorProto.FLOAT, ["n", classes])],
        [numpy_helper.from_array(array, each) for each, array in weights.items()],
    )
    save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=10), path)
    content = path.read_bytes()
    full = Model(
        id="full",
        artefact=Artefact("full.onnx", hashlib.sha256(content).hexdigest(), len(content)),
        runtime="onnx",
        precision="fp32",
    )
    labels = tuple(f"class_{number}" for number in range(classes))
    manifest = Manifest(
        name=name, version=1, labels=labels, input=InputSpec("x", "FP32", (-1, *shape)), edge=(), full=full
    )
    (folder / MANIFEST_NAME).write_bytes(encode_manifest(manifest))
    return path


def _layers(folder: Path, count: int) -> Path:
    weights = {
        "tokens": np.ones((_TOKENS, 1), np.float32),
        "axis": np.array([1]),
        "first": _weights(FEATURES, _WIDTH),
        "last": _weights(_WIDTH, _CLASSES),
    }
    nodes = [
        helper.make_node("Unsqueeze", ["x", "axis"], ["row"]),
        helper.make_node("Mul", ["row", "tokens"], ["wide"]),
        helper.make_node("MatMul", ["wide", "first"], ["layer_0"]),
    ]
    for n in range(count):
        weights[f"weights_{n}"] = _weights(_WIDTH, _WIDTH, seed=n)
        nodes.append(helper.make_node("MatMul", [f"layer_{n}", f"weights_{n}"], [f"product_{n}"]))
        nodes.append(helper.make_node("Relu", [f"product_{n}"], [f"layer_{n + 1}"]))
    nodes.append(helper.make_node("ReduceMean", [f"layer_{count}"], ["mean"], axes=[1], keepdims=0))
    nodes.append(helper.make_node("MatMul", ["mean", "last"], ["logits"]))
    return _write_bundle(folder, nodes, weights)


def _weights(rows: int, columns: int, seed: int = 0) -> Any:
    return (np.random.default_rng(seed).standard_normal((rows, columns)) / np.sqrt(rows)).astype(np.float32)


def _write_bundle(folder: Path, nodes: list[Any], weights: dict[str, Any]) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "full.onnx"
    graph = helper.make_graph(
        nodes,
        folder.name,
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", FEATURES])],
        [helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["n", _CLASSES])],
        [numpy_helper.from_array(array, name) for name, array in weights.items()],
    )
    save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=10), path)
    content = path.read_bytes()
    full = Model(
        id="full",
        artefact=Artefact("full.onnx", hashlib.sha256(content).hexdigest(), len(content)),
        runtime="onnx",
        precision="fp32",
        postprocess=(Softmax(),),
    )
    manifest = Manifest(
        name=folder.name,
        version=1,
        labels=tuple("abcd"),
        input=InputSpec("x", "FP32", (-1, FEATURES)),
        edge=(),
        full=full,
    )
    (folder / MANIFEST_NAME).write_bytes(encode_manifest(manifest))
    return path


class Alone(NamedTuple):
    """A model alone on one core, a row at a time.

    Attributes:
        slow_ratio: what the slowest half of a percent of rows took at least, over the median: this machine's own doing.
    """

    rows_per_s: float
    slow_ratio: float


def rows_alone(folder: Path, seconds: float) -> Alone:
    """What a bundle's model alone gives."""
    session, row = _session(folder / "full.onnx"), np.zeros((1, FEATURES), np.float32)
    times_s: list[float] = []
    while sum(times_s) < seconds:
        started_s = time.perf_counter()
        session.run(None, {"x": row})
        times_s.append(time.perf_counter() - started_s)
    middle_s, slow_s = np.quantile(times_s, [0.5, 0.995])
    return Alone(len(times_s) / sum(times_s), float(slow_s / middle_s))


def _session(path: Path) -> onnxruntime.InferenceSession:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    return onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])


def _timed_ms(path: Path) -> float:
    session = _session(path)
    row = np.zeros((1, FEATURES), np.float32)
    times = []
    for _ in range(_TRIALS):
        started_s = time.perf_counter()
        session.run(None, {"x": row})
        times.append(time.perf_counter() - started_s)
    return min(times) * 1000  # what other work on this machine did not lengthen
