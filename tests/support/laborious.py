"""A small ONNX model that takes a chosen time."""

from pathlib import Path

import numpy as np
from onnx import helper

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
