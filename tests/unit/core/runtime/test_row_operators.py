from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

from bench.support.onnx_models import float_graph
from firstline_core.runtime.row_operators import find_row_operator


def node(kind: str, *inputs: str, outputs: tuple[str, ...] = ("y",), **attributes: Any) -> Any:
    return helper.make_node(kind, ["x", *inputs], outputs, name="/layer", **attributes)


def written(file: Path, nodes: list[Any], opset: int = 17, **constants: Any) -> Path:
    arrays = {name: np.array(value) for name, value in constants.items()}
    return float_graph(file, nodes, {"x": ["n", 3]}, {"y": ["n", 3]}, opset=opset, **arrays)


@pytest.mark.parametrize(
    ("node", "opset", "constants"),
    [
        (node("Softmax", axis=0), 17, {}),
        (node("LogSoftmax", axis=0), 11, {}),
        (node("ArgMax"), 17, {}),
        (node("CumSum", "a"), 17, {"a": 0}),
        (node("ReduceMean", axes=[0, 1]), 13, {}),
        (node("ReduceSum", "a"), 17, {"a": [0]}),
        (node("ReduceMax"), 17, {}),
        (node("BatchNormalization", "s", "b", "m", "v", training_mode=1), 17, {}),
        (node("BatchNormalization", "s", "b", "m", "v", outputs=("y", "m2", "v2", "m3", "v3")), 9, {}),
        (node("DynamicQuantizeLinear", outputs=("y", "s", "z")), 17, {}),
        (node("DynamicQuantizeMatMul", "w", "s", domain="com.microsoft"), 17, {}),
        (node("LSTM", "w", "r", hidden_size=3), 17, {}),
    ],
)
def test_operators_that_mix_rows_are_named(tmp_path: Path, node: Any, opset: int, constants: dict[str, Any]) -> None:
    found = find_row_operator(written(tmp_path / "m.onnx", [node], opset, **constants), "onnx", "batch")
    assert (found.kind, found.name) == (node.op_type, "/layer")
    assert str(found).startswith(f"{node.op_type} '/layer' ")


@pytest.mark.parametrize(
    ("node", "opset", "constants"),
    [
        (node("Dropout", "ratio", "training"), 17, {"ratio": 0.5, "training": True}),
        (node("Dropout", "ratio", "training"), 17, {"ratio": 0.5}),  # the graph computes it
        (node("Dropout"), 6, {}),
        (node("RandomNormalLike"), 17, {}),
        (node("Bernoulli"), 17, {}),
    ],
)
def test_operators_of_chance_are_named(tmp_path: Path, node: Any, opset: int, constants: dict[str, Any]) -> None:
    found = find_row_operator(written(tmp_path / "m.onnx", [node], opset, **constants), "onnx", "run")
    assert found is not None and found.kind == node.op_type


@pytest.mark.parametrize(
    ("node", "opset", "constants"),
    [
        (node("Softmax"), 11, {}),
        (node("Softmax"), 17, {}),
        (node("Softmax", axis=1), 17, {}),
        (node("ArgMax", axis=1), 17, {}),
        (node("CumSum", "a"), 17, {"a": 1}),
        (node("ReduceMean", axes=[2, 3]), 13, {}),
        (node("ReduceSum", "a"), 17, {"a": [1]}),
        (node("ReduceSum", "a"), 17, {}),  # the graph computes the axes
        (node("ReduceSum", noop_with_empty_axes=1), 17, {}),
        (node("BatchNormalization", "s", "b", "m", "v"), 17, {}),
        (node("Dropout"), 17, {}),
        (node("Dropout", "ratio", "training"), 17, {"ratio": 0.5, "training": False}),
        (node("Dropout", is_test=1), 6, {}),
    ],
)
def test_innocent_operators_are_not_named(tmp_path: Path, node: Any, opset: int, constants: dict[str, Any]) -> None:
    file = written(tmp_path / "m.onnx", [node], opset, **constants)
    assert find_row_operator(file, "onnx", "batch") is None
    assert find_row_operator(file, "onnx", "run") is None


def test_constants_and_bodies_inside_the_graph_are_read(tmp_path: Path) -> None:
    training = helper.make_node("Constant", [], ["training"], value=numpy_helper.from_array(np.array(False)))
    file = written(tmp_path / "eval.onnx", [training, node("Dropout", "ratio", "training")], ratio=0.5)
    assert find_row_operator(file, "onnx", "run") is None
    ports = [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", 3])]
    body = helper.make_graph([node("RandomUniformLike")], "body", [], ports)
    branch = helper.make_node("If", ["c"], ["y"], then_branch=body, else_branch=body)
    found = find_row_operator(written(tmp_path / "if.onnx", [branch], c=True), "onnx", "run")
    assert found is not None and found.kind == "RandomUniformLike"


def test_an_unreadable_file_names_no_operator(tmp_path: Path) -> None:
    (tmp_path / "m").write_bytes(b"\xff\xff\xff\xff")
    assert find_row_operator(tmp_path / "m", "onnx", "batch") is None
    assert find_row_operator(tmp_path / "absent", "onnx", "run") is None
    assert find_row_operator(tmp_path / "m", "tflite", "run") is None
