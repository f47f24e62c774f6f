"""The two models that everything is measured with, made from a seed: S takes some 20 us, M some 13 ms.

As ONNX files for raw ONNX Runtime and for other servers, and as bundles for ours. Both end in a softmax of their own,
so that no server has more to compute than another.
"""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from onnx import NodeProto, helper

from bench.support.bundles import model, with_certificate, write_manifest
from bench.support.onnx_models import float_graph
from firstline_core.processing.steps import InputSpec
from firstline_core.routing.certificate import Histogram

INPUT, OUTPUT = "x", "probabilities"
_SMALL_WIDTHS = (64, 512, 384, 10)
_MEDIUM_CHANNELS = ((3, 32, 2), (32, 64, 1), (64, 64, 2), (64, 128, 1), (128, 128, 2), (128, 256, 1), (256, 256, 2))
"""Of each convolution: channels in, channels out, stride."""

_BINS = 20


class Kind(NamedTuple):
    """One of the models.

    Attributes:
        row: shape of one row of its input.
        classes: of its output.
    """

    name: str
    row: tuple[int, ...]
    classes: int


S = Kind("s", (_SMALL_WIDTHS[0],), _SMALL_WIDTHS[-1])
M = Kind("m", (3, 224, 224), 100)
KINDS = {kind.name: kind for kind in (S, M)}


def rows(kind: Kind, count: int = 1, seed: int = 0) -> np.ndarray[Any, np.dtype[np.float32]]:
    """Input of `count` rows: normal, to three decimals, so that a row of M is 962 KB of JSON."""
    return np.random.default_rng(seed).standard_normal((count, *kind.row)).round(3).astype(np.float32)


def write_onnx(kind: Kind, path: Path) -> Path:
    """The model alone."""
    nodes, weights = _small() if kind is S else _medium()
    return float_graph(path, nodes, {INPUT: ["n", *kind.row]}, {OUTPUT: ["n", kind.classes]}, **weights)


def write_bundle(kind: Kind, folder: Path, *, edge: bool = False) -> Path:
    """A bundle with this full model, named as its folder is; with `edge` it is the edge model too, and always sure."""
    path = write_onnx(kind, folder / "model.onnx")
    labels = [f"class {n}" for n in range(kind.classes)]
    fields: dict[str, Any] = {
        "name": folder.name,
        "inputs": (InputSpec(INPUT, "FP32", (-1, *kind.row)),),
        "full": model(path, folder, id="full"),
    }
    variants = [model(path, folder, id="edge")] if edge else []
    manifest = write_manifest(folder, variants, labels, **fields).manifest
    if edge:
        bins = Histogram(tuple(n / _BINS for n in range(1, _BINS)), (1 / _BINS,) * _BINS)
        certified = with_certificate(variants[0], manifest, threshold=0.0, histogram=bins)
        write_manifest(folder, [certified], labels, **fields)
    return folder


def _small() -> tuple[list[NodeProto], dict[str, Any]]:
    nodes, weights, last = [], {}, INPUT
    for n, (before, after) in enumerate(pairwise(_SMALL_WIDTHS)):
        weights[f"weights_{n}"] = _random((before, after), before**-0.5, n)
        weights[f"bias_{n}"] = np.zeros(after, np.float32)
        nodes.append(helper.make_node("Gemm", [last, f"weights_{n}", f"bias_{n}"], [f"layer_{n}"]))
        nodes.append(helper.make_node("Relu", [f"layer_{n}"], [f"relu_{n}"]))
        last = f"relu_{n}"
    nodes[-1:] = [helper.make_node("Softmax", [nodes[-1].input[0]], [OUTPUT], axis=-1)]
    return nodes, weights


def _medium() -> tuple[list[NodeProto], dict[str, Any]]:
    nodes, weights, last = [], {}, INPUT
    for n, (before, after, stride) in enumerate(_MEDIUM_CHANNELS):
        weights[f"weights_{n}"] = _random((after, before, 3, 3), (2 / (9 * before)) ** 0.5, n)
        weights[f"bias_{n}"] = np.zeros(after, np.float32)
        inputs = [last, f"weights_{n}", f"bias_{n}"]
        nodes.append(helper.make_node("Conv", inputs, [f"layer_{n}"], strides=[stride, stride], pads=[1, 1, 1, 1]))
        nodes.append(helper.make_node("Relu", [f"layer_{n}"], [f"relu_{n}"]))
        last = f"relu_{n}"
    channels = _MEDIUM_CHANNELS[-1][1]
    weights["head"] = _random((channels, M.classes), channels**-0.5, 99)
    nodes.append(helper.make_node("GlobalAveragePool", [last], ["pooled"]))
    nodes.append(helper.make_node("Flatten", ["pooled"], ["features"]))
    nodes.append(helper.make_node("MatMul", ["features", "head"], ["logits"]))
    nodes.append(helper.make_node("Softmax", ["logits"], [OUTPUT], axis=-1))
    return nodes, weights


def _random(shape: tuple[int, ...], scale: float, seed: int) -> Any:
    return (np.random.default_rng(seed).standard_normal(shape) * scale).astype(np.float32)
