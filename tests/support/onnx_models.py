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
