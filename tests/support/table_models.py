"""Models of a table: the edge model reads one column, the full model also a second one and a column of strings."""

from pathlib import Path
from typing import Any

import numpy as np
from onnx import TensorProto, helper, numpy_helper

from bench.support.bundles import model, write_manifest
from bench.support.onnx_models import linear, write_graph
from firstline_core.bundle.store import Bundle
from firstline_core.processing.steps import InputSpec, ModelInput, Softmax

INPUTS = (InputSpec("a", "FP32", (-1, 1)), InputSpec("b", "INT64", (-1, 1)), InputSpec("c", "BYTES", (-1,), "text"))


def table_bundle(folder: Path, **fields: Any) -> Bundle:
    """The logit of "yes" is a for the edge model, and a + b + (1 if c is "red") for the full one."""
    folder.mkdir(parents=True, exist_ok=True)
    path = linear(folder / "edge.onnx", np.array([[0, 1]], np.float32))
    edge = model(path, folder, id="edge", inputs=(ModelInput("a"),), postprocess=(Softmax(),))
    fed = tuple(ModelInput(spec.name, f"column_{spec.name}") for spec in INPUTS)
    full = model(_full(folder / "full.onnx"), folder, id="full", inputs=fed, postprocess=(Softmax(),))
    return write_manifest(folder, [edge], ("no", "yes"), **{"name": "table", "full": full, "inputs": INPUTS} | fields)


def _full(path: Path) -> Path:
    nodes = [
        helper.make_node("Cast", ["column_b"], ["b"], to=TensorProto.FLOAT),
        helper.make_node(
            "LabelEncoder",
            ["column_c"],
            ["c"],
            domain="ai.onnx.ml",
            keys_strings=["red"],
            values_floats=[1.0],
            default_float=0.0,
        ),
        helper.make_node("Sum", ["column_a", "b", "c"], ["total"]),
        helper.make_node("MatMul", ["total", "weights"], ["logits"]),
    ]
    inputs = [
        helper.make_tensor_value_info("column_a", TensorProto.FLOAT, ["n", 1]),
        helper.make_tensor_value_info("column_b", TensorProto.INT64, ["n", 1]),
        helper.make_tensor_value_info("column_c", TensorProto.STRING, ["n", 1]),
    ]
    outputs = [helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["n", 2])]
    weights = [numpy_helper.from_array(np.array([[0, 1]], np.float32), "weights")]
    return write_graph(path, nodes, inputs, outputs, weights)
