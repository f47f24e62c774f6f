"""Small ONNX models that take a chosen time."""

from pathlib import Path

import numpy as np
from onnx import TensorProto, helper

from bench.support.onnx_models import float_graph


def laborious(path: Path, classes: int = 2, *, rounds: int = 0, width: int = 256) -> Path:
    """`probabilities = softmax(x)`, with x [n, classes], after `rounds` products of `width` x `width`.

    They change nothing, and take some microseconds each.
    """
    weights = {
        "in": np.ones((classes, width), np.float32),
        "round": np.full((width, width), 1 / width, np.float32),
        "out": np.zeros((width, classes), np.float32),
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
    used = {name: weights[name] for name in ("in", "out", *(["round"] if rounds else []))}
    return float_graph(path, nodes, {"x": ["n", classes]}, {"probabilities": ["n", classes]}, **used)


def looping(path: Path, least: int = 100, width: int = 256) -> Path:
    """`probabilities = x`, with x [n, 2], after as many products as its largest value says, and `least` at least."""
    square = [width, width]
    body = helper.make_graph(
        [
            helper.make_node("MatMul", ["before", "round"], ["after"]),
            helper.make_node("Identity", ["goes_on"], ["still"]),
        ],
        "body",
        [
            helper.make_tensor_value_info("at", TensorProto.INT64, []),
            helper.make_tensor_value_info("goes_on", TensorProto.BOOL, []),
            helper.make_tensor_value_info("before", TensorProto.FLOAT, square),
        ],
        [
            helper.make_tensor_value_info("still", TensorProto.BOOL, []),
            helper.make_tensor_value_info("after", TensorProto.FLOAT, square),
        ],
    )
    nodes = [
        helper.make_node("ReduceMax", ["x"], ["largest"], keepdims=0),
        helper.make_node("Max", ["largest", "least"], ["rounds"]),
        helper.make_node("Cast", ["rounds"], ["count"], to=TensorProto.INT64),
        helper.make_node("Loop", ["count", "", "first"], ["last"], body=body),
        helper.make_node("ReduceMean", ["last"], ["mean"], keepdims=0),
        helper.make_node("Mul", ["mean", "zero"], ["nothing"]),
        helper.make_node("Add", ["x", "nothing"], ["probabilities"]),
    ]
    weights = {
        "least": np.float32(least),
        "zero": np.float32(0),
        "first": np.ones(square, np.float32),
        "round": np.full(square, 1 / width, np.float32),
    }
    return float_graph(path, nodes, {"x": ["n", 2]}, {"probabilities": ["n", 2]}, **weights)
