"""ONNX models whose answer to a row depends on the other rows of the batch, or on chance."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from bench.support.onnx_models import write_graph

_WEIGHTS = np.array([[3, 0, 0], [0, 3, 0], [0, 0, 3], [1, 1, 1]], np.float32)


def softmax_over_rows(file: Path) -> Path:
    """Softmax over axis 0: the rows of a batch share one sum."""
    return _write(file, [_product(), helper.make_node("Softmax", ["product"], ["y"], axis=0)], weights=_WEIGHTS)


def dropout_in_training(file: Path) -> Path:
    """Dropout that was exported switched on: every run drops other values."""
    return _write(
        file,
        [_product(), helper.make_node("Dropout", ["product", "ratio", "training"], ["y"])],
        weights=_WEIGHTS,
        ratio=np.array(0.5, np.float32),
        training=np.array(True),
    )


def dynamically_quantised(file: Path) -> Path:
    """Quantised by the range of each batch: a row with large values takes the resolution of the others."""
    scale = np.float32(3 / 127)
    nodes = [
        helper.make_node("DynamicQuantizeLinear", ["x"], ["q", "s", "z"]),
        helper.make_node("MatMulInteger", ["q", "weights", "z"], ["i"]),
        helper.make_node("Cast", ["i"], ["f"], to=TensorProto.FLOAT),
        helper.make_node("Mul", ["s", "scale"], ["t"]),
        helper.make_node("Mul", ["f", "t"], ["y"]),
    ]
    return _write(file, nodes, weights=np.rint(_WEIGHTS / scale).astype(np.int8), scale=np.array(scale, np.float32))


def _product() -> Any:
    return helper.make_node("MatMul", ["x", "weights"], ["product"])


def _write(file: Path, nodes: list[Any], **constants: NDArray[Any]) -> Path:
    """`x` FP32 [n, 4] to `y` FP32 [n, 3]."""
    return write_graph(
        file,
        nodes,
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 4])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", 3])],
        [numpy_helper.from_array(array, name) for name, array in constants.items()],
    )
