"""Small ONNX models, made on the fly."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper, save

OPSET = 17
IR_VERSION = 10  # older runtimes read it too


def write_graph(path: Path, nodes: list[Any], inputs: list[Any], outputs: list[Any], weights: list[Any]) -> Path:
    graph = helper.make_graph(nodes, "small", inputs, outputs, weights)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=IR_VERSION)
    path.parent.mkdir(parents=True, exist_ok=True)
    save(model, path)
    return path


def linear(
    path: Path,
    weights: NDArray[np.float32],
    *,
    batch: int | str = "n",
    dtype: int = TensorProto.FLOAT,
    softmax: bool = False,
) -> Path:
    """`logits = x @ weights`, with x [batch, features]; `softmax` adds probabilities."""
    features, classes = weights.shape
    kernel = numpy_helper.from_array(weights.astype(helper.tensor_dtype_to_np_dtype(dtype)), "weights")
    nodes = [helper.make_node("MatMul", ["x", "weights"], ["logits"])]
    outputs = ["logits"]
    if softmax:
        nodes.append(helper.make_node("Softmax", ["logits"], ["probabilities"], axis=-1))
        outputs.append("probabilities")
    return write_graph(
        path,
        nodes,
        [helper.make_tensor_value_info("x", dtype, [batch, features])],
        [helper.make_tensor_value_info(name, dtype, [batch, classes]) for name in outputs],
        [kernel],
    )


def laborious(path: Path, classes: int = 2, *, rounds: int = 0, width: int = 256) -> Path:
    """`probabilities = softmax(x)`, with x [n, classes], after so many products of `width` x `width`.

    They change nothing, and take some microseconds each.
    """
    weights = {
        "in": np.ones((classes, width)),
        "round": np.full((width, width), 1 / width),
        "out": np.zeros((width, classes)),
    }
    nodes, last = [helper.make_node("MatMul", ["x", "in"], ["h0"])], "h0"
    for at in range(1, rounds + 1):
        nodes.append(helper.make_node("MatMul", [last, "round"], [f"h{at}"]))
        last = f"h{at}"
    nodes += [
        helper.make_node("MatMul", [last, "out"], ["zeros"]),
        helper.make_node("Add", ["x", "zeros"], ["logits"]),
        helper.make_node("Softmax", ["logits"], ["probabilities"], axis=-1),
    ]
    used = ["in", "out", *(["round"] if rounds else [])]
    return write_graph(
        path,
        nodes,
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", classes])],
        [helper.make_tensor_value_info("probabilities", TensorProto.FLOAT, ["n", classes])],
        [numpy_helper.from_array(weights[name].astype(np.float32), name) for name in used],
    )


def average_colours(path: Path, *, dtype: int = TensorProto.FLOAT, size: int | str = "side") -> Path:
    """[n, 3, size, size] to each channel's mean [n, 3]: a classifier of the dominant colour."""
    nodes = [
        helper.make_node("Cast", ["image"], ["pixels"], to=TensorProto.FLOAT),
        helper.make_node("ReduceMean", ["pixels"], ["logits"], axes=[2, 3], keepdims=0),
    ]
    return write_graph(
        path,
        nodes,
        [helper.make_tensor_value_info("image", dtype, ["n", 3, size, size])],
        [helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["n", 3])],
        [],
    )


def linear_model(
    file: Path, *, pixels: int, classes: int, softmax: bool = False, outputs: int = 1, seed: int = 0
) -> Path:
    """`image` FP32 [n, pixels] times made-up weights: `scores` FP32 [n, classes], `outputs` times over."""
    weights = np.random.default_rng(seed).standard_normal((pixels, classes)).astype(np.float32)
    names = ["scores", *(f"scores_{n}" for n in range(1, outputs))]
    nodes = [helper.make_node("MatMul", ["image", "weights"], ["product"])]
    nodes += [helper.make_node("Softmax" if softmax else "Identity", ["product"], [name]) for name in names]
    return write_graph(
        file,
        nodes,
        [_floats("image", pixels)],
        [_floats(name, classes) for name in names],
        [numpy_helper.from_array(weights, "weights")],
    )


def two_inputs(file: Path) -> Path:
    """`a` and `b` FP32 [n, 2] to their sum."""
    return write_graph(
        file,
        [helper.make_node("Add", ["a", "b"], ["sum"])],
        [_floats("a", 2), _floats("b", 2)],
        [_floats("sum", 2)],
        [],
    )


def reversing_graph(file: Path, classes: int) -> Path:
    """A processing graph that turns the classes round."""
    return _product_graph(file, "given", np.eye(classes, dtype=np.float32)[::-1].copy(), "turned")


def first_column_graph(file: Path, classes: int) -> Path:
    """A score graph: the first class's probability."""
    return _product_graph(file, "probabilities", np.eye(classes, 1, dtype=np.float32), "score")


def _product_graph(file: Path, given: str, weights: NDArray[np.float32], made: str) -> Path:
    return write_graph(
        file,
        [helper.make_node("MatMul", [given, "weights"], [made])],
        [_floats(given, weights.shape[0])],
        [_floats(made, weights.shape[1])],
        [numpy_helper.from_array(weights, "weights")],
    )


def _floats(name: str, width: int) -> Any:
    return helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n", width])
