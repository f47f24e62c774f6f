"""ONNX graphs in the form of detectors' exports, which report one known object."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from firstline_core.processing.boxes import anchors
from firstline_core.processing.geometry import InputSize
from firstline_core.processing.steps import Anchors

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
    """Writes a graph whose outputs hardly depend on its input: only fractions grow a little with its brightness.

    Args:
        path: of the file.
        outputs: by name, usually with an axis of one row.
        shape: of the input `images`.
        dtype: of the input.
        metadata: of the model.
        operators: further operators, which nothing reads.
    """
    nodes = [
        helper.make_node("Cast", ["images"], ["pixels"], to=TensorProto.FLOAT),
        helper.make_node("ReduceMean", ["pixels"], ["mean"], axes=[*range(len(shape))], keepdims=0),
        helper.make_node("Mul", ["mean", "small"], ["little"]),
    ]
    constants = [numpy_helper.from_array(np.array(1e-7, np.float32), "small")]
    infos = []
    for name, values in outputs.items():
        kind = helper.np_dtype_to_tensor_dtype(values.dtype)
        constants.append(numpy_helper.from_array(values.astype(np.float32), f"{name}/values"))
        constants.append(numpy_helper.from_array((values % 1 != 0).astype(np.float32), f"{name}/fractions"))
        nodes.append(helper.make_node("Mul", [f"{name}/fractions", "little"], [f"{name}/added"]))
        nodes.append(helper.make_node("Add", [f"{name}/values", f"{name}/added"], [f"{name}/sum"]))
        nodes.append(helper.make_node("Cast", [f"{name}/sum"], [name], to=kind))
        infos.append(helper.make_tensor_value_info(name, kind, values.shape))
    image = helper.make_tensor_value_info("images", dtype, shape)
    nodes += [helper.make_node(kind, ["little"], [f"unused {kind}"]) for kind in operators]
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


NAMES = {"names": str({0: "cat", 1: "dog", 2: "owl"}), "author": "Ultralytics", "task": "detect", "imgsz": "[96, 96]"}


def yolov5(path: Path) -> Path:
    return constant_outputs(path, {"output": grid_rows(80, 3, objectness=True)[None]})


def yolov8(path: Path) -> Path:
    return constant_outputs(path, {"output0": grid_rows(80, 1, objectness=False).T[None]})


def yolov8_with_names(path: Path) -> Path:
    rows = grid_rows(3, 1, objectness=False).T[None]
    return constant_outputs(path, {"output0": rows}, shape=("b", 3, "h", "w"), metadata=NAMES)


def yolo11_in_fractions(path: Path) -> Path:
    rows = grid_rows(80, 1, objectness=False)
    rows[:, :4] /= SIDE
    return constant_outputs(path, {"output0": rows.T[None]}, shape=(1, SIDE, SIDE, 3))


def yolox(path: Path) -> Path:
    return constant_outputs(path, {"output": grid_rows(80, 1, objectness=True, decoded=False)[None]})


def yolox_decoded(path: Path) -> Path:
    return constant_outputs(path, {"output": grid_rows(80, 1, objectness=True)[None]})


def end_to_end(path: Path) -> Path:
    rows = np.zeros((1, 300, 6), np.float32)
    rows[0, 0] = [*BOX, 0.9, LABEL]
    return constant_outputs(path, {"output0": rows}, metadata=NAMES)


def detr(path: Path) -> Path:
    logits = np.full((1, 100, 92), -5, np.float32)
    logits[..., 91] = 5
    logits[0, 0, [3, 91]] = [5, -5]  # COCO's category 3 is the third of its 80 classes
    boxes = np.full((1, 100, 4), 0.1, np.float32)
    boxes[0, 0] = np.array(center_box()) / SIDE
    return constant_outputs(path, {"logits": logits, "pred_boxes": boxes})


def rt_detr(path: Path) -> Path:
    logits = np.full((1, 300, 80), sigmoid_inverse(0.001), np.float32)
    logits[0, 0, LABEL] = sigmoid_inverse(0.9)
    boxes = np.full((1, 300, 4), 0.1, np.float32)
    boxes[0, 0] = np.array(center_box()) / SIDE
    return constant_outputs(path, {"logits": logits, "pred_boxes": boxes})


def queries_in_one_output(path: Path) -> Path:
    rows = np.full((1, 300, 84), 0.001, np.float32)
    rows[0, 0, :4] = np.array(center_box()) / SIDE
    rows[0, 0, 4 + LABEL] = 0.9
    return constant_outputs(path, {"output0": rows})


def tensorflow(path: Path) -> Path:
    boxes, scores, classes = np.zeros((1, 10, 4), np.float32), np.zeros((1, 10), np.float32), np.ones((1, 10))
    boxes[0, 0], scores[0, 0], classes[0, 0] = np.array(BOX)[[1, 0, 3, 2]] / SIDE, 0.9, 3
    outputs: dict[str, Any] = {
        "detection_boxes": boxes,
        "detection_classes": classes.astype(np.float32),
        "detection_scores": scores,
        "num_detections": np.ones(1, np.float32),
    }
    return constant_outputs(path, outputs, shape=(1, "h", "w", 3), dtype=TensorProto.UINT8)


def ssd_anchors(path: Path) -> Path:
    """Offsets from TensorFlow's anchors and logits, with the background first."""
    places = anchors(Anchors("offsets", "scores"), InputSize(SIDE, SIDE))
    offsets, scores = np.zeros((1, len(places), 4), np.float32), np.full((1, len(places), 91), -7, np.float32)
    x, y, width, height = np.array(center_box()) / SIDE
    anchor_x, anchor_y, anchor_width, anchor_height = places[0]
    offsets[0, 0] = [
        10 * (y - anchor_y) / anchor_height,
        10 * (x - anchor_x) / anchor_width,
        5 * np.log(height / anchor_height),
        5 * np.log(width / anchor_width),
    ]
    scores[0, 1:, 0] = 7  # background
    scores[0, 0, [3, 8]] = [
        sigmoid_inverse(0.9),
        sigmoid_inverse(0.85),
    ]  # COCO's category 3 is the third of its classes
    return constant_outputs(path, {"offsets": offsets, "scores": scores})


def efficient_nms(path: Path) -> Path:
    boxes, scores = np.zeros((1, 10, 4), np.float32), np.zeros((1, 10), np.float32)
    classes = np.zeros((1, 10), np.int32)
    boxes[0, 0], scores[0, 0], classes[0, 0] = BOX, 0.9, LABEL
    outputs: dict[str, Any] = {
        "num_dets": np.ones((1, 1), np.int32),
        "det_boxes": boxes,
        "det_scores": scores,
        "det_classes": classes,
    }
    return constant_outputs(path, outputs)


def yolov7_end_to_end(path: Path) -> Path:
    """Rows of all images of a batch, without an axis of rows."""
    rows = np.array([[0, *BOX, LABEL, 0.9], [0, 0, 0, 8, 8, 0, 0.1]], np.float32)
    return constant_outputs(path, {"output": rows})


def torchvision(path: Path) -> Path:
    """One image, and lists of its boxes, labels and scores: no axis of rows."""
    outputs: dict[str, Any] = {
        "boxes": np.array([BOX, (0, 0, 8, 8), (8, 8, 20, 20)], np.float32),
        "labels": np.array([3, 1, 2], np.int64),  # COCO's category 3 is the third of its 80 classes
        "scores": np.array([0.9, 0.1, 0.05], np.float32),
    }
    return constant_outputs(path, outputs, shape=(3, SIDE, SIDE))


def fastestdet(path: Path) -> Path:
    values = np.zeros((1, 85, 6, 6), np.float32)
    x, y, width, height = center_box()
    values[0, 0, 2, 3], values[0, 5 + LABEL, 2, 3] = 0.9, 0.9
    values[0, 1:3, 2, 3] = np.arctanh([x / 16 - 3, y / 16 - 2])
    values[0, 3:5, 2, 3] = [sigmoid_inverse(width / SIDE), sigmoid_inverse(height / SIDE)]
    return constant_outputs(path, {"758": values})
