"""Models of several exporters: the family is recognised, and its steps give the known object."""

from __future__ import annotations

from collections.abc import Callable
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto
from PIL import Image
from support.detector_graphs import (
    BOX,
    LABEL,
    SIDE,
    center_box,
    constant_outputs,
    grid_rows,
    sigmoid_inverse,
)

from firstline.workbench.decodings import Trials
from firstline.workbench.model_file import read_model_file
from firstline.workbench.recognition import COCO, SURE, Reading, recognise
from firstline.workbench.trial import trial_outputs
from firstline_core.runtime.select import RuntimeOptions
from firstline_core.tasks.detection import Detection, detections

PICTURE = Image.new("RGB", (SIDE, SIDE), "grey")
_NAMES = {"names": str({0: "cat", 1: "dog", 2: "owl"}), "author": "Ultralytics", "task": "detect", "imgsz": "[96, 96]"}


def read(path: Path) -> list[Reading]:
    described = read_model_file(path)
    return recognise(described, trial_outputs(path, described, PICTURE))


def _xyxy(scale: float = 1.0) -> list[float]:
    return [value / scale for value in BOX]


def _yolov5(path: Path) -> Path:
    return constant_outputs(path, {"output": grid_rows(80, 3, objectness=True)[None]})


def _yolov8(path: Path) -> Path:
    return constant_outputs(path, {"output0": grid_rows(80, 1, objectness=False).T[None]})


def _yolov8_with_names(path: Path) -> Path:
    rows = grid_rows(3, 1, objectness=False).T[None]
    return constant_outputs(path, {"output0": rows}, shape=("b", 3, "h", "w"), metadata=_NAMES)


def _yolo11_in_fractions(path: Path) -> Path:
    rows = grid_rows(80, 1, objectness=False)
    rows[:, :4] /= SIDE
    return constant_outputs(path, {"output0": rows.T[None]}, shape=(1, SIDE, SIDE, 3))


def _yolox(path: Path) -> Path:
    return constant_outputs(path, {"output": grid_rows(80, 1, objectness=True, decoded=False)[None]})


def _yolox_decoded(path: Path) -> Path:
    return constant_outputs(path, {"output": grid_rows(80, 1, objectness=True)[None]})


def _end_to_end(path: Path) -> Path:
    rows = np.zeros((1, 300, 6), np.float32)
    rows[0, 0] = [*BOX, 0.9, LABEL]
    return constant_outputs(path, {"output0": rows}, metadata=_NAMES)


def _detr(path: Path) -> Path:
    logits = np.full((1, 100, 92), -5, np.float32)
    logits[..., 91] = 5
    logits[0, 0, [3, 91]] = [5, -5]  # COCO's category 3 is the third of its 80 classes
    boxes = np.full((1, 100, 4), 0.1, np.float32)
    boxes[0, 0] = np.array(center_box()) / SIDE
    return constant_outputs(path, {"logits": logits, "pred_boxes": boxes})


def _rt_detr(path: Path) -> Path:
    logits = np.full((1, 300, 80), sigmoid_inverse(0.001), np.float32)
    logits[0, 0, LABEL] = sigmoid_inverse(0.9)
    boxes = np.full((1, 300, 4), 0.1, np.float32)
    boxes[0, 0] = np.array(center_box()) / SIDE
    return constant_outputs(path, {"logits": logits, "pred_boxes": boxes})


def _queries_in_one_output(path: Path) -> Path:
    rows = np.full((1, 300, 84), 0.001, np.float32)
    rows[0, 0, :4] = np.array(center_box()) / SIDE
    rows[0, 0, 4 + LABEL] = 0.9
    return constant_outputs(path, {"output0": rows})


def _tensorflow(path: Path) -> Path:
    boxes, scores, classes = np.zeros((1, 10, 4), np.float32), np.zeros((1, 10), np.float32), np.ones((1, 10))
    boxes[0, 0], scores[0, 0], classes[0, 0] = np.array(BOX)[[1, 0, 3, 2]] / SIDE, 0.9, 3
    outputs: dict[str, Any] = {
        "detection_boxes": boxes,
        "detection_classes": classes.astype(np.float32),
        "detection_scores": scores,
        "num_detections": np.ones(1, np.float32),
    }
    return constant_outputs(path, outputs, shape=(1, "h", "w", 3), dtype=TensorProto.UINT8)


def _efficient_nms(path: Path) -> Path:
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


def _fastestdet(path: Path) -> Path:
    values = np.zeros((1, 85, 6, 6), np.float32)
    x, y, width, height = center_box()
    values[0, 0, 2, 3], values[0, 5 + LABEL, 2, 3] = 0.9, 0.9
    values[0, 1:3, 2, 3] = np.arctanh([x / 16 - 3, y / 16 - 2])
    values[0, 3:5, 2, 3] = [sigmoid_inverse(width / SIDE), sigmoid_inverse(height / SIDE)]
    return constant_outputs(path, {"758": values})


DETECTORS: dict[str, tuple[Callable[[Path], Path], str]] = {
    "YOLOv5": (_yolov5, "yolov5 or yolov7"),
    "YOLOv8": (_yolov8, "yolov8 to yolo11"),
    "YOLOv8 with names and free sizes": (_yolov8_with_names, "yolov8 to yolo11"),
    "YOLO11 for TFLite": (_yolo11_in_fractions, "yolov8 to yolo11"),
    "YOLOX": (_yolox, "yolox"),
    "YOLOX decoded": (_yolox_decoded, "yolox with decoding inside"),
    "YOLOv10": (_end_to_end, "box rows"),
    "DETR": (_detr, "detr"),
    "RT-DETR": (_rt_detr, "detr"),
    "RT-DETR in one output": (_queries_in_one_output, "rt-detr"),
    "TensorFlow": (_tensorflow, "ssd"),
    "EfficientNMS": (_efficient_nms, "ssd"),
    "FastestDet": (_fastestdet, "fastestdet"),
}


@pytest.mark.parametrize("name", DETECTORS)
def test_a_detector_is_recognised_and_gives_the_known_object(tmp_path: Path, name: str) -> None:
    make, family = DETECTORS[name]
    path = make(tmp_path / "model.onnx")
    first = read(path)[0]
    assert (first.family, first.task) == (family, "detection")
    assert first.sure >= 0.7
    encoded = BytesIO()
    PICTURE.save(encoded, "PNG")
    task = Detection(labels=first.labels or COCO)
    if first.size != (SIDE, SIDE):  # TensorFlow's takes any size
        assert (name, first.size) == ("TensorFlow", (640, 640))
    found = detections(Trials(path, task, [encoded.getvalue()], RuntimeOptions()).outputs(first), 0)
    assert found.classes.tolist() == [LABEL]
    np.testing.assert_allclose(found.boxes, [BOX], atol=0.01)


def test_labels_come_from_the_exporters_metadata(tmp_path: Path) -> None:
    first = read(_yolov8_with_names(tmp_path / "model.onnx"))[0]
    assert (first.labels, first.size, first.sure) == (("cat", "dog", "owl"), (96, 96), SURE)


@pytest.mark.parametrize("names", ["{0: 'cat'", "[1, 2", "{1: 'cat'}", "5", "(" * 5000])
def test_malformed_names_are_no_labels(tmp_path: Path, names: str) -> None:
    rows = grid_rows(80, 1, objectness=False).T[None]
    path = constant_outputs(tmp_path / "model.onnx", {"output0": rows}, metadata={**_NAMES, "names": names})
    assert read(path)[0].labels == ()


@pytest.mark.parametrize(
    ("outputs", "family", "postprocess"),
    [
        ({"probabilities": np.full((1, 10), 0.1, np.float32)}, "softmax classifier", ""),
        ({"logits": np.linspace(-3, 9, 10, dtype=np.float32)[None]}, "logits classifier", "softmax"),
        ({"logits": np.linspace(-3, 9, 1000, dtype=np.float32).reshape(1, 1000, 1, 1)}, "logits classifier", "softmax"),
    ],
)
def test_a_classifier_is_recognised(tmp_path: Path, outputs: Any, family: str, postprocess: str) -> None:
    (found,) = read(constant_outputs(tmp_path / "model.onnx", outputs))
    assert (found.family, found.task, found.postprocess, found.sure) == (family, "classification", postprocess, SURE)


@pytest.mark.parametrize(
    "outputs",
    [
        {"landmarks": np.linspace(-25, 150, 1404, dtype=np.float32)[None]},
        {"contours": np.linspace(-25, 150, 213, dtype=np.float32)[None]},
    ],
)
def test_numbers_that_nothing_shows_to_be_classes_are_a_guess(tmp_path: Path, outputs: Any) -> None:
    (found,) = read(constant_outputs(tmp_path / "model.onnx", outputs))
    assert found.sure < 0.5
    assert "nothing shows that they are classes" in found.assumptions[-1]


@pytest.mark.parametrize(
    "outputs",
    [
        {"regressors": np.ones((1, 896, 16), np.float32), "classificators": np.ones((1, 896, 1), np.float32)},
        {"boxes": np.ones((1, 1917, 4), np.float32), "scores": np.ones((1, 1917, 91), np.float32)},
        {"depth": np.ones((1, 1, 96, 96), np.float32)},
    ],
)
def test_unknown_families_are_not_guessed(tmp_path: Path, outputs: Any) -> None:
    assert read(constant_outputs(tmp_path / "model.onnx", outputs)) == []


@pytest.mark.shared_data
@pytest.mark.parametrize(
    ("file", "family", "preprocess", "postprocess"),
    [
        (
            "coco-cascade/models/fastestdet.onnx",
            "fastestdet",
            "decode:BGR,resize:352x352,scale:0:255,layout:NCHW",
            "fastestdet,suppress:0.6",
        ),
        (
            "coco-cascade/models/yolox_nano.onnx",
            "yolox",
            "decode:BGR,resize:416x416:letterbox=corner:pad=114,scale:0:1,layout:NCHW",
            "yolox,suppress:0.3",
        ),
        (
            "coco-cascade/models/yolox_nano_dynamic_range.tflite",
            "yolox",
            "decode:BGR,resize:416x416:letterbox=corner:pad=114,scale:0:1,layout:NCHW",
            "yolox,suppress:0.3",
        ),
        (
            "coco-cascade/models/ssd_mobilenet_v1_quant.tflite",
            "ssd",
            "decode:RGB,resize:300x300,scale:128:128",
            "ssd,suppress:0.5:iou=1",
        ),
        (
            "cifar10-cascade/models/mlperf_resnet8_int8.tflite",
            "softmax classifier",
            "decode:RGB,resize:32x32,scale:0:1",
            "",
        ),
        (
            "imagenet-cascade/models/tf2_mobilenet_v2_1.0_224_ptq.tflite",
            "softmax classifier",
            "decode:RGB,center_crop:0.875,resize:224x224,scale:127:127.5",
            "",
        ),
    ],
)
def test_models_of_others_are_recognised(
    shared_data: Path, file: str, family: str, preprocess: str, postprocess: str
) -> None:
    first = read(shared_data / file)[0]
    assert (first.family, first.preprocess, first.postprocess) == (family, preprocess, postprocess)
    assert first.sure == SURE
