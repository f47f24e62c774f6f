"""Detectors on `coco-cascade`: average precision with the declared steps, next to that of the models' own decoding."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Literal, NamedTuple, NoReturn

import numpy as np

from bench.figures import Figure, plain
from firstline.workbench.average_precision import MOST_BOXES, AveragePrecision, average_precision
from firstline_core.errors import ModelLoadError
from firstline_core.processing.boxes import (
    BOXES,
    CLASSES,
    COUNT,
    SCORES,
    Boxes,
    InputSize,
    class_map,
    compile_detection,
)
from firstline_core.processing.compile import compile_preprocess
from firstline_core.processing.steps import (
    BoxDecoder,
    ClassMap,
    Decode,
    FastestDet,
    Graph,
    InputSpec,
    Layout,
    PreStep,
    Resize,
    Scale,
    Ssd,
    Suppress,
    Yolox,
)
from firstline_core.runtime.select import RuntimeOptions, load_runtime
from firstline_core.types import Array, Tensor

_WITHIN = 0.01
_IMAGES = InputSpec("image", "BYTES", (-1,))
_LEAST_SCORE = 0.001  # COCO's curves begin there
_YOLOX = (Decode("BGR"), Resize(416, 416, letterbox="corner", pad=114), Scale((0.0,), (1.0,)), Layout("NCHW"))
_SSD_OUTPUTS = (f"TFLite_Detection_PostProcess{suffix}" for suffix in ("", ":1", ":2", ":3"))


class Detector(NamedTuple):
    """A model of `coco-cascade`.

    Attributes:
        ap50: average precision at an overlap of 0.5 that the data's README states.
        names: file with the names of its classes, if they are not the 80.
    """

    file: str
    steps: tuple[PreStep, ...]
    decoder: BoxDecoder
    ap50: float
    names: str = ""

    @property
    def size(self) -> InputSize:
        resize = next(step for step in self.steps if isinstance(step, Resize))
        return InputSize(resize.width, resize.height)

    @property
    def runtime(self) -> Literal["onnx", "tflite"]:
        return "onnx" if self.file.endswith(".onnx") else "tflite"


DETECTORS = {
    "fastestdet": Detector(
        "fastestdet.onnx", (Decode("BGR"), Resize(352, 352), Scale(), Layout("NCHW")), FastestDet(), 0.362
    ),
    "ssd_mobilenet_v1_quant": Detector(
        "ssd_mobilenet_v1_quant.tflite",
        (Decode(), Resize(300, 300), Scale((128.0,), (128.0,))),
        Ssd(*_SSD_OUTPUTS),
        0.373,
        "labels_90.txt",
    ),
    "yolox_nano_dynamic_range": Detector("yolox_nano_dynamic_range.tflite", _YOLOX, Yolox(), 0.53),
    "yolox_nano": Detector("yolox_nano.onnx", _YOLOX, Yolox(), 0.534),
}


def figures(data: Path) -> Iterator[Figure]:
    """Yields the average precision of each detector on the images of `dev`."""
    for name, detector in DETECTORS.items():
        found = evaluate(detector, data)
        yield Figure(
            f"{name}: AP50",
            round(found.ap50, 4),
            "share",
            f"{detector.ap50:g}, within {_WITHIN:g}",
            abs(found.ap50 - detector.ap50) <= _WITHIN,
        )
        yield plain(f"{name}: AP50:95", found.ap50_95, "share", 4)


def evaluate(detector: Detector, data: Path) -> AveragePrecision:
    """Returns the average precision of a detector on the images of `dev`."""
    labels = (data / "labels.txt").read_text().splitlines()
    maps: list[ClassMap] = []
    if detector.names:
        maps.append(class_map((data / detector.names).read_text().splitlines(), labels))
    pre = compile_preprocess(detector.steps, _IMAGES, _no_graph)
    iou = 1.0 if isinstance(detector.decoder, Ssd) else 0.45
    suppression = Suppress(_LEAST_SCORE, iou, _LEAST_SCORE)
    detect = compile_detection([detector.decoder, *maps, suppression], detector.size, MOST_BOXES)
    runtime = load_runtime(data / "models" / detector.file, detector.runtime, RuntimeOptions(threads=2))
    found, truth = [], []
    try:
        for file in sorted((data / "dev" / "images").iterdir()):
            tensor = Tensor("image", np.array([file.read_bytes()], object))
            if pre.images is None:
                raise ModelLoadError("A detector of this pair takes images.")
            cost = pre.images.cost(tensor)
            geometry = pre.images.geometry(tensor, cost)
            outputs = detect(runtime.run({runtime.inputs[0].name: pre.run(tensor, cost)}), geometry)
            count = int(outputs[COUNT][0])
            found.append(Boxes(*(outputs[name][0, :count] for name in (BOXES, SCORES, CLASSES))))
            truth.append(read_yolo_boxes(data / "dev" / "labels" / f"{file.stem}.txt", geometry[0, :2]))
    finally:
        runtime.close()
    return average_precision(found, truth)


def read_yolo_boxes(file: Path, size: Array) -> Boxes:
    """Returns the boxes of an image from YOLO's text form; an absent file is an image without boxes.

    Args:
        file: each line has a class, and the centre, width and height of a box in fractions.
        size: width and height of the image, in pixels.
    """
    text = file.read_text() if file.is_file() else ""
    rows = np.array(text.split(), np.float32).reshape(-1, 5)
    boxes = np.concatenate((rows[:, 1:3] - rows[:, 3:] / 2, rows[:, 1:3] + rows[:, 3:] / 2), axis=1)
    return Boxes(boxes * np.tile(size, 2), np.ones(len(rows), np.float32), rows[:, 0].astype(np.int64))


def _no_graph(step: Graph) -> NoReturn:
    raise ModelLoadError(f"No detector of this pair has a graph: {step.artefact.file}.")
