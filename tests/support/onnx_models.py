"""Tiny ONNX models, made on the spot."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper


def linear_model(
    file: Path, *, pixels: int, classes: int, softmax: bool = False, outputs: int = 1, seed: int = 0
) -> Path:
    """`image` FP32 [n, pixels] times made-up weights: `scores` FP32 [n, classes], `outputs` times over."""
    weights = np.random.default_rng(seed).standard_normal((pixels, classes)).astype(np.float32)
    names = ["scores", *(f"scores_{n}" for n in range(1, outputs))]
    nodes = [helper.make_node("MatMul", ["image", "weights"], ["product"])]
    last = "Softmax" if softmax else "Identity"
    nodes += [helper.make_node(last, ["product"], [name]) for name in names]
    return _write(file, nodes, ("image", ["n", pixels]), [(name, ["n", classes]) for name in names], weights)


def reversing_graph(file: Path, classes: int) -> Path:
    """A processing graph that turns the classes round."""
    backwards = np.eye(classes, dtype=np.float32)[::-1].copy()
    nodes = [helper.make_node("MatMul", ["given", "weights"], ["turned"])]
    return _write(file, nodes, ("given", ["n", classes]), [("turned", ["n", classes])], backwards)


def first_column_graph(file: Path, classes: int) -> Path:
    """A score graph: the first class's probability."""
    column = np.zeros((classes, 1), np.float32)
    column[0] = 1
    nodes = [helper.make_node("MatMul", ["probabilities", "weights"], ["score"])]
    return _write(file, nodes, ("probabilities", ["n", classes]), [("score", ["n", 1])], column)


def _write(
    file: Path,
    nodes: list[onnx.NodeProto],
    given: tuple[str, list[str | int]],
    taken: list[tuple[str, list[str | int]]],
    weights: np.ndarray,
) -> Path:
    graph = helper.make_graph(
        nodes,
        "made_up",
        [helper.make_tensor_value_info(given[0], TensorProto.FLOAT, given[1])],
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in taken],
        [numpy_helper.from_array(weights, "weights")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    file.write_bytes(model.SerializeToString())
    return file
