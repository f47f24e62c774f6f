"""Bundles to load a gateway with: one whose rows take a given time each, and one whose rows take almost none."""

from __future__ import annotations

import time
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from onnx import helper

from bench.serving.client import session
from bench.support.bundles import model, write_manifest
from bench.support.onnx_models import float_graph, linear
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
    float_graph(folder / "full.onnx", nodes, {"x": ["n", FEATURES]}, {"logits": ["n", _CLASSES]}, **weights)
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
    times_s: list[float] = []
    for took_s in _runs_s(folder / "full.onnx"):
        times_s.append(took_s)
        if sum(times_s) >= seconds:
            break
    middle_s, slow_s = np.quantile(times_s, [0.5, 0.995])
    return Alone(len(times_s) / sum(times_s), float(slow_s / middle_s))


def _timed_ms(path: Path) -> float:
    return min(islice(_runs_s(path), _TRIALS)) * 1000  # what other work on this machine did not lengthen


def _runs_s(path: Path) -> Iterator[float]:
    """Runs the model on one row again and again, and yields how long each run took."""
    alone, row = session(path), np.zeros((1, FEATURES), np.float32)
    while True:
        started_s = time.perf_counter()
        alone.run(None, {"x": row})
        yield time.perf_counter() - started_s
