"""ONNX graphs in the form of detectors' exports, which report one known object."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

BOX = (24.0, 16.0, 72.0, 48.0)
"""Left, top, right and bottom of the object, in pixels of the model's input of 96 x 96."""
SIDE = 96
LABEL = 2
"""The number of its class."""


def constant_outputs(
    path: Path,
    outputs: Mapping[str, NDArray[Any]],
    *,
    shape: tuple[Any, ...] = (1, 3, SIDE, SIDE),
    dtype: int = TensorProto.FLOAT,
    metadata: Mapping[str, str] | None = None,
    operators: tuple[str, ...] = (),
) -> Path:
    """Writes a graph whose outputs do not depend on its input.

    Args:
        path: of the file.
        outputs: by name, with an axis of one row.
        shape: of the input `images`.
        dtype: of the input.
        metadata: of the model.
        operators: further operators, which nothing reads.
    """
    nodes = [
        helper.make_node("Cast", ["images"], ["pixels"], to=TensorProto.FLOAT),
        helper.make_node("ReduceMean", ["pixels"], ["mean"], axes=[0, 1, 2, 3], keepdims=0),
        helper.make_node("Mul", ["mean", "zero"], ["nothing"]),
    ]
    constants = [numpy_helper.from_array(np.zeros((), np.float32), "zero")]
    infos = []
    for name, values in outputs.items():
        kind = helper.np_dtype_to_tensor_dtype(values.dtype)
        constants.append(numpy_helper.from_array(values.astype(np.float32), f"{name}/values"))
        nodes.append(helper.make_node("Add", [f"{name}/values", "nothing"], [f"{name}/sum"]))
        nodes.append(helper.make_node("Cast", [f"{name}/sum"], [name], to=kind))
        infos.append(helper.make_tensor_value_info(name, kind, values.shape))
    image = helper.make_tensor_value_info("images", dtype, shape)
    nodes += [helper.make_node(kind, ["nothing"], [f"unused {kind}"]) for kind in operators]
    graph = helper.make_graph(nodes, "detector", [image], infos, constants)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8)
    helper.set_model_props(model, dict(metadata or {}))
    onnx.save(model, path)
    return path


def center_box() -> tuple[float, float, float, float]:
    """Returns the object as centre, width and height."""
    left, top, right, bottom = BOX
    return (left + right) / 2, (top + bottom) / 2, right - left, bottom - top


def grid_rows(classes: int, boxes: int, *, objectness: bool, decoded: bool = True) -> NDArray[np.float32]:
    """Returns [cells x boxes, 4 or 5 + classes] of a YOLO with strides 8, 16 and 32, with one object.

    Args:
        classes: number of classes.
        boxes: of each cell.
        objectness: whether the fifth column is the objectness.
        decoded: whether boxes are in pixels, else in YOLOX's cells.
    """
    cells = np.concatenate(
        [
            np.stack(
                (
                    *(axis.ravel() for axis in np.indices((SIDE // stride, SIDE // stride))[::-1]),
                    np.full((SIDE // stride) ** 2, stride),
                ),
                axis=1,
            )
            for stride in (8, 16, 32)
        ]
    ).astype(np.float32)
    cells = np.tile(cells, (boxes, 1))
    first = 5 if objectness else 4
    rows = np.zeros((len(cells), first + classes), np.float32)
    if decoded:
        rows[:, :2] = (cells[:, :2] + 0.5) * cells[:, 2:]
        rows[:, 2:4] = cells[:, 2:]
    at = 7  # of stride 8
    box = np.array(center_box(), np.float32)
    if decoded:
        rows[at, :4] = box
    else:
        rows[at, :2] = box[:2] / 8 - cells[at, :2]
        rows[at, 2:4] = np.log(box[2:] / 8)
    if objectness:
        rows[at, 4] = 1
    rows[at, first + LABEL] = 0.9
    return rows


def sigmoid_inverse(probability: float) -> float:
    return float(np.log(probability / (1 - probability)))
