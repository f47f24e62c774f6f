"""Bundles to load a gateway with: one whose rows take about so many milliseconds each, and one that takes none."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from onnx import TensorProto, helper, numpy_helper

from bench.serving.client import session
from bench.support.bundles import model, write_manifest
from bench.support.onnx_models import linear, write_graph
from firstline_core.processing.steps import InputSpec, Softmax

FEATURES = 16
_CLASSES, _TOKENS, _WIDTH = 4, 64, 384
_TRIAL_LAYERS, _TRIALS = 8, 15


def quick_bundle(folder: Path) -> None:
    """One small product: microseconds."""
    linear(folder / "full.onnx", _weights(FEATURES, _CLASSES))
    _write_bundle(folder)


def slow_bundle(folder: Path, row_ms: float) -> float:
    """Layers of products over a few tokens, as many as take the time on one core of this machine; rows add up.

    Returns:
        What a row takes in the end, the quickest of some runs (ms).
    """
    trial_ms = _timed_ms(_layers(folder, _TRIAL_LAYERS))
    layers = max(1, round(_TRIAL_LAYERS * row_ms / trial_ms))
    return _timed_ms(_layers(folder, layers))


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
    write_graph(
        folder / "full.onnx",
        nodes,
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", FEATURES])],
        [helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["n", _CLASSES])],
        [numpy_helper.from_array(array, name) for name, array in weights.items()],
    )
    return _write_bundle(folder)


def _weights(rows: int, columns: int, seed: int = 0) -> Any:
    return (np.random.default_rng(seed).standard_normal((rows, columns)) / np.sqrt(rows)).astype(np.float32)


def _write_bundle(folder: Path) -> Path:
    path = folder / "full.onnx"
    full = model(path, folder, postprocess=(Softmax(),))
    write_manifest(folder, [], "abcd", name=folder.name, full=full, inputs=(InputSpec("x", "FP32", (-1, FEATURES)),))
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
    alone, row = session(folder / "full.onnx"), np.zeros((1, FEATURES), np.float32)
    times_s: list[float] = []
    while sum(times_s) < seconds:
        started_s = time.perf_counter()
        alone.run(None, {"x": row})
        times_s.append(time.perf_counter() - started_s)
    middle_s, slow_s = np.quantile(times_s, [0.5, 0.995])
    return Alone(len(times_s) / sum(times_s), float(slow_s / middle_s))


def _timed_ms(path: Path) -> float:
    alone = session(path)
    row = np.zeros((1, FEATURES), np.float32)
    times = []
    for _ in range(_TRIALS):
        started_s = time.perf_counter()
        alone.run(None, {"x": row})
        times.append(time.perf_counter() - started_s)
    return min(times) * 1000  # what other work on this machine did not lengthen
