"""Small ONNX models, made on the fly."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper, save

OPSET = 17
ML_OPSET = 3
IR_VERSION = 10  # older runtimes read it too


def write_graph(
    path: Path, nodes: list[Any], inputs: list[Any], outputs: list[Any], weights: list[Any], *, opset: int = OPSET
) -> Path:
    graph = helper.make_graph(nodes, "small", inputs, outputs, weights)
    opsets = [helper.make_opsetid("", opset)]
    opsets += [helper.make_opsetid(domain, ML_OPSET) for domain in sorted({node.domain for node in nodes} - {""})]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=IR_VERSION)
    path.parent.mkdir(parents=True, exist_ok=True)
    save(model, path)
    return path


def float_graph(
    path: Path,
    nodes: list[Any],
    inputs: Mapping[str, Sequence[int | str]],
    outputs: Mapping[str, Sequence[int | str]],
    *,
    opset: int = OPSET,
    **constants: NDArray[Any],
) -> Path:
    """Inputs and outputs are FP32 tensors of these shapes; the nodes read the constants by name."""
    input_infos, output_infos = (
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in of.items()]
        for of in (inputs, outputs)
    )
    weights = [numpy_helper.from_array(array, name) for name, array in constants.items()]
    return write_graph(path, nodes, input_infos, output_infos, weights, opset=opset)


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
