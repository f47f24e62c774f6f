"""Recognises what a model file computes, from its ports, operators, metadata and one trial run. Pure.

A `Reading` is one way to feed a model and to read its outputs, in the steps of `step_syntax.py`. A `Choice` is a
property that the file leaves open, such as the order of the colours: the family's convention comes first, and data may
decide.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple

import numpy as np

from firstline.workbench.model_file import ModelFile
from firstline_core.types import DATATYPES, Array, Arrays, TensorSpec

SURE, LIKELY, GUESS = 0.95, 0.75, 0.4
"""How sure a reading is: the structure or the exporter's metadata say it; a convention says it; one of several."""

Geometry = Literal["squash", "corner", "center", "crop"]
"""How an image becomes the model's size: stretched, letterboxed in a corner or the centre, or its central square."""

Scaling = Literal["bytes", "unit", "symmetric", "imagenet", "caffe"]
"""The range of pixels: 0..255; 0..1; -1..1; ImageNet's mean and deviation; ImageNet's mean subtracted from 0..255."""

_SCALES: Mapping[str, tuple[tuple[float, ...], tuple[float, ...]]] = {
    "bytes": ((0,), (1,)),
    "unit": ((0,), (255,)),
    "symmetric": ((127.5,), (127.5,)),
    "imagenet": ((123.675, 116.28, 103.53), (58.395, 57.12, 57.375)),
    "caffe": ((123, 117, 104), (1,)),
}
_MEANINGS = {
    "RGB": "colours in the order RGB",
    "BGR": "colours in the order BGR",
    "L": "greyscale",
    "squash": "images stretched to the model's size",
    "corner": "letterbox, the picture at the top left",
    "center": "letterbox, the picture in the centre",
    "crop": "the central square of 0.875 of the short side",
    "bytes": "pixels from 0 to 255",
    "unit": "pixels from 0 to 1",
    "symmetric": "pixels from -1 to 1",
    "imagenet": "pixels with ImageNet's mean and deviation",
    "caffe": "pixels from 0 to 255 less ImageNet's mean",
    "": "classes in the order of the labels",
    "coco90": "COCO's category ids from 1, as rows from 0",
    "coco91": "COCO's category ids",
}
_COCO = """\
person, bicycle, car, motorcycle, airplane, bus, train, truck, boat, traffic light, fire hydrant, stop sign,
parking meter, bench, bird, cat, dog, horse, sheep, cow, elephant, bear, zebra, giraffe, backpack, umbrella,
handbag, tie, suitcase, frisbee, skis, snowboard, sports ball, kite, baseball bat, baseball glove, skateboard,
surfboard, tennis racket, bottle, wine glass, cup, fork, knife, spoon, bowl, banana, apple, sandwich, orange,
broccoli, carrot, hot dog, pizza, donut, cake, chair, couch, potted plant, bed, dining table, toilet, tv,
laptop, mouse, remote, keyboard, cell phone, microwave, oven, toaster, sink, refrigerator, book, clock, vase,
scissors, teddy bear, hair drier, toothbrush"""
COCO = tuple(" ".join(label.split()) for label in _COCO.split(","))
"""The labels of COCO's 80 classes, which most detectors were trained on."""
_COLON = "\\:"  # in the name of an output
_STRIDES = (8, 16, 32)
_MOST_QUERIES = 1000


class Choice(NamedTuple):
    """A property of a reading that the file does not tell.

    Attributes:
        field: of `Reading`.
        values: the preferred one first.
        known: whether the first one is the family's convention, or else a guess.
    """

    field: str
    values: tuple[str, ...]
    known: bool

    @staticmethod
    def meaning(value: str) -> str:
        """Returns a value in words."""
        return _MEANINGS.get(value, value)


@dataclass(frozen=True, slots=True)
class Reading:
    """One way to feed a model and to read its outputs.

    Attributes:
        family: such as "yolox", or "softmax classifier".
        task: kind of its outputs, see `firstline_core/tasks`.
        sure: 0 to 1, see `SURE`.
        input: name of the model's input.
        classes: number of classes that the outputs have room for; 0 if the outputs do not tell.
        labels: of the model's own classes, () if unknown.
        decoder: steps after the model, without `class_map` and `suppress`.
        output: name of the model's output, "" if the decoder names them.
        mode: order of the colours.
        size: width and height; None for inputs that are no images.
        padding: further arguments of a letterbox.
        scaling: of pixels, unless `quantised`; "" for an input of bytes.
        quantised: the step that fills the range of a quantised input.
        class_map: names or numbers of the step `class_map`; "" for none.
        score: operating score of a detector.
        inside: whether suppression is inside the model.
        assumptions: sentences about what is assumed.
        choices: properties that the file leaves open.
    """

    family: str
    task: str
    sure: float
    input: str
    classes: int = 0
    labels: tuple[str, ...] = ()
    decoder: str = ""
    output: str = ""
    mode: str = "RGB"
    size: tuple[int, int] | None = None
    geometry: str = "squash"
    padding: str = "pad=114"
    scaling: str = "unit"
    quantised: str = ""
    channels_first: bool = False
    class_map: str = ""
    score: float = 0.3
    inside: bool = False
    assumptions: tuple[str, ...] = ()
    choices: tuple[Choice, ...] = ()

    @property
    def preprocess(self) -> str:
        """Returns the steps before the model."""
        if self.size is None:
            return ""
        steps = [f"decode:{self.mode}"]
        size = "x".join(map(str, self.size))
        if self.geometry == "crop":
            steps.append("center_crop:0.875")
        letterbox = f":letterbox={self.geometry}:{self.padding}" if self.geometry in ("corner", "center") else ""
        steps += [f"resize:{size}{letterbox}", self.quantised or _scale(self.scaling, self.mode)]
        if self.channels_first:
            steps.append("layout:NCHW")
        return ",".join(step for step in steps if step)

    @property
    def postprocess(self) -> str:
        """Returns the steps after the model."""
        steps = [self.decoder] if self.decoder else []
        if self.class_map:
            steps.append(f"class_map:{self.class_map}")
        if self.task == "detection":
            steps.append(f"suppress:{self.score:g}{':iou=1' if self.inside else ''}")
        return ",".join(steps)

    def with_value(self, choice: Choice, value: str) -> Reading:
        """Returns this reading with a choice made."""
        rest = tuple(other for other in self.choices if other.field != choice.field)
        return replace(self, choices=rest, **{choice.field: value})  # type: ignore[arg-type]


def recognise(file: ModelFile, raw: Arrays | None = None) -> list[Reading]:
    """Returns the possible readings of a model, the surest first; none if the model is of no known family.

    Args:
        file: the model's description.
        raw: its outputs for one image or row, which tell logits from probabilities and pixels from fractions.
    """
    outputs = [_Output.of(spec, None if raw is None else raw.get(spec.name)) for spec in file.outputs]
    image = _image(file)
    if image is None:
        found = [*_tables(file, outputs)]
    else:
        found = [reading for family in _FAMILIES for reading in family(file, image, outputs)]
    return sorted(found, key=lambda reading: -reading.sure)


class ImageInput(NamedTuple):
    """The input of a model of images.

    Attributes:
        mode: RGB or L.
        size: width and height.
        channels_first: order of the axes.
    """

    mode: str
    size: tuple[int, int]
    channels_first: bool


def image_input(file: ModelFile) -> ImageInput | None:
    """Returns the image input of a model; None for models of other inputs."""
    found = _image(file)
    if found is None or found.start.size is None:
        return None
    return ImageInput(found.start.mode, found.start.size, found.start.channels_first)


class _Output(NamedTuple):
    """An output: its shape without the axis of rows, and the smallest and largest value of the trial run."""

    name: str
    real: bool
    shape: tuple[int, ...]
    values: Array | None

    @classmethod
    def of(cls, spec: TensorSpec, found: Array | None) -> _Output:
        shape = found.shape[1:] if found is not None else spec.shape[1:]
        real = DATATYPES[spec.datatype].kind == "f"
        return cls(spec.name, real, tuple(shape), None if found is None else found[0])

    def largest(self, *index: Any) -> float | None:
        """Returns the largest absolute value of a part; None without a trial run."""
        if self.values is None or not self.values.size:
            return None
        return float(np.abs(self.values[index] if index else self.values).max(initial=0))

    @property
    def probable(self) -> bool:
        """Whether the values of the trial run are from 0 to 1 and sum to about 1."""
        if self.values is None or not self.values.size:
            return False
        flat = self.values.reshape(-1).astype(np.float64)
        return bool(flat.min() >= -1e-6 and flat.max() <= 1 + 1e-6 and 0.5 <= flat.sum() <= 1.05)

    @property
    def whole(self) -> bool:
        """Whether all values are whole numbers, and any is above 1."""
        if self.values is None or not self.values.size:
            return False
        return bool((self.values == np.rint(self.values)).all() and self.values.max() > 1)


class _Image(NamedTuple):
    """The input of a model of images, as the start of each reading; `free` if the model takes any size."""

    start: Reading
    free: bool

    def reading(self, family: str, task: str, sure: float, **fields: Any) -> Reading:
        extra = fields.pop("assumptions", ())
        merged = {"assumptions": (*self.start.assumptions, *extra), **fields}
        made = replace(self.start, family=family, task=task, sure=sure, **merged)
        if made.mode == "L":
            made = replace(made, choices=tuple(choice for choice in made.choices if choice.field != "mode"))
        if made.quantised or not self.start.scaling:
            fixed = tuple(choice for choice in made.choices if choice.field != "scaling")
            made = replace(made, choices=fixed, scaling=self.start.scaling)
        return made


def _image(file: ModelFile) -> _Image | None:
    """Returns the image input of a model; None if it has another one."""
    if len(file.inputs) != 1 or len(file.inputs[0].shape) != 4:
        return None
    spec = file.inputs[0]
    if DATATYPES[spec.datatype].kind != "f" and spec.datatype != "UINT8":
        return None
    first, last = spec.shape[1], spec.shape[3]
    if (first in (1, 3)) == (last in (1, 3)) and first != 3:
        return None
    channels_first = first in (1, 3)
    channels = first if channels_first else last
    height, width = spec.shape[2:] if channels_first else spec.shape[1:3]
    assumptions: list[str] = []
    free = min(height, width) < 1
    if free:
        width, height, why = _free_size(file)
        assumptions.append(f"the model takes any size; {width}x{height} {why}")
    quantised = ""
    if (held := file.ranges.get(spec.name)) is not None:
        low, high = held
        std = 255 / (high - low)
        quantised = f"scale:{-low * std + 0.0:.5g}:{std:.5g}"
    start = Reading(
        "",
        "",
        0,
        spec.name,
        labels=file.labels,
        mode="L" if channels == 1 else "RGB",
        size=(width, height),
        quantised=quantised,
        channels_first=channels_first,
        assumptions=tuple(assumptions),
        scaling="" if spec.datatype == "UINT8" else "unit",
    )
    return _Image(start, free)


def _free_size(file: ModelFile) -> tuple[int, int, str]:
    numbers = [int(number) for number in re.findall(r"\d+", file.metadata.get("imgsz", ""))]
    if numbers and min(numbers) >= 32:
        return numbers[-1], numbers[0], "is what its metadata name"
    if file.runtime == "onnx" and any(len(spec.shape) == 3 for spec in file.outputs):
        return 640, 640, "is the usual size of such detectors"
    return 224, 224, "is the usual size of such classifiers"


def _scale(name: str, mode: str) -> str:
    """Returns the step that scales pixels; statistics by channel follow the order of the colours."""
    if not name:
        return ""
    mean, std = _SCALES[name]
    if mode == "BGR":
        mean, std = mean[::-1], std[::-1]
    elif mode == "L":
        mean, std = mean[1:2] or mean, std[1:2] or std
    if name == "bytes":
        return "scale:0:1"
    return f"scale:{'/'.join(f'{value:g}' for value in mean)}:{'/'.join(f'{value:g}' for value in std)}"


def _choice(field: str, *values: str, known: bool = True) -> Choice:
    return Choice(field, values, known)


# Detectors.


def _ssd(file: ModelFile, image: _Image, outputs: Sequence[_Output]) -> Iterator[Reading]:
    """Yields detectors with suppression inside, whose boxes, classes and scores are outputs of their own."""
    named = _ssd_roles(file, outputs)
    if named is None:
        return
    boxes, classes, scores, count = named
    if boxes.shape and (len(boxes.shape), boxes.shape[-1]) != (2, 4):  # such as torchvision's, without an axis of rows
        return
    tensorflow = any("PostProcess" in kind for kind in file.operators) or "detection" in boxes.name.lower()
    tensorflow = tensorflow or boxes.name.startswith(("TFLite", "StatefulPartitionedCall"))
    default = [output.name for output in outputs] == [each.name for each in (boxes, classes, scores, count) if each]
    names = ":".join(each.name.replace(":", "\\:") for each in (boxes, classes, scores, count) if each is not None)
    decoder = "ssd" if default and count is not None else f"ssd:{names}"
    if not tensorflow:
        largest = boxes.largest()
        decoder += f":corners=xyxy:unit={'fractions' if largest is not None and largest <= 2 else 'pixels'}"
    one_based = file.runtime != "tflite" and (classes.name.lower() in ("labels", "label") or tensorflow)
    maps: tuple[str, ...] = ("coco91", "", "coco90") if one_based else ("", "coco90", "coco91")
    choices = [_choice("mode", "RGB", "BGR")]
    if file.labels:
        maps = ()
    else:
        choices.append(_choice("class_map", *maps, known=False))
    scalings = ("symmetric", "unit") if tensorflow else ("unit", "imagenet")
    choices.append(_choice("scaling", *scalings, known=False))
    yield image.reading(
        "ssd",
        "detection",
        SURE,
        decoder=decoder,
        classes=len(file.labels),
        class_map=maps[0] if maps else "",
        score=0.5,
        inside=True,
        scaling=scalings[0],
        choices=(*choices, _choice("geometry", "squash", "corner", "center")),
        assumptions=(
            f"boxes are {'top, left, bottom, right in fractions' if tensorflow else 'left, top, right, bottom'}, with "
            "suppression inside",
        ),
    )


def _ssd_roles(file: ModelFile, outputs: Sequence[_Output]) -> tuple[_Output, _Output, _Output, _Output | None] | None:
    """Returns the outputs of boxes, classes, scores and count (or None), by names, values or TFLite's order."""
    if not 3 <= len(outputs) <= 4:
        return None
    by_name = {
        role: [output for output in outputs if re.search(pattern, output.name.lower())]
        for role, pattern in {
            "boxes": "box",
            "classes": "class|label",
            "scores": "score|conf",
            "count": "num|count|valid",
        }.items()
    }
    if all(len(by_name[role]) == 1 for role in ("boxes", "classes", "scores")):
        count = by_name["count"]
        return by_name["boxes"][0], by_name["classes"][0], by_name["scores"][0], count[0] if count else None
    if len(outputs) != 4:
        return None
    if any("PostProcess" in kind for kind in file.operators) or outputs[0].name.startswith("TFLite_Detection"):
        corners = [output for output in outputs if len(output.shape) == 2 and output.shape[1] == 4]
        counts = [output for output in outputs if math.prod(output.shape) == 1]
        pair = [output for output in outputs if len(output.shape) == 1 and output not in counts]
        if len(corners) == 1 and len(counts) == 1 and len(pair) == 2:
            classes, scores = pair if pair[0].whole or not pair[1].whole else pair[::-1]
            return corners[0], classes, scores, counts[0]
        return outputs[0], outputs[1], outputs[2], outputs[3]
    return None


def _detr(file: ModelFile, image: _Image, outputs: Sequence[_Output]) -> Iterator[Reading]:
    """Yields DETR and its relatives: boxes and logits of queries, in two outputs."""
    threes = [output for output in outputs if output.real and len(output.shape) == 2]
    boxes = [output for output in threes if output.shape[1] == 4]
    logits = [output for output in threes if output.shape[1] != 4 and output.shape[1] > 1]
    if len(boxes) != 1 or len(logits) != 1 or boxes[0].shape[0] != logits[0].shape[0]:
        return
    queries, columns = logits[0].shape
    if queries > _MOST_QUERIES:  # anchors of an SSD without suppression
        return
    known = len(file.labels)
    softmax = known == columns - 1 if known in (columns - 1, columns) else columns in (92, 22) or queries == 100
    classes = columns - softmax
    names = ":".join(each.name.replace(":", "\\:") for each in (logits[0], boxes[0]))
    activation, other = ("softmax", "sigmoid") if softmax else ("sigmoid", "softmax")
    decoders = tuple(f"detr:{names}:{each}" for each in (activation, other))
    yield image.reading(
        "detr",
        "detection",
        LIKELY if known else 0.7,
        decoder=decoders[0],
        classes=classes,
        class_map="coco91" if classes == 91 and known in (0, 91) else "",
        score=0.5,
        inside=True,
        scaling="imagenet" if softmax else "unit",
        choices=(
            _choice("scaling", *(("imagenet", "unit") if softmax else ("unit", "imagenet"))),
            *(() if known or columns in (80, 92) else (_choice("decoder", *decoders, known=False),)),
            _choice("mode", "RGB", "BGR"),
            _choice("geometry", "squash", "corner", "center"),
        ),
        assumptions=(
            f"{queries} queries, {classes} classes"
            + (", and a last class for no object" if softmax else ", each with a score of its own"),
        ),
    )


def _fastestdet(file: ModelFile, image: _Image, outputs: Sequence[_Output]) -> Iterator[Reading]:
    """Yields FastestDet: objectness, box terms and probabilities on one grid, channels first."""
    if len(outputs) != 1 or len(outputs[0].shape) != 3 or image.start.size is None:
        return
    channels, rows, columns = outputs[0].shape
    width, height = image.start.size
    if channels < 6 or (height // rows, width // columns) != (16, 16):
        return
    known = channels - 5 in (80, len(file.labels))
    yield image.reading(
        "fastestdet",
        "detection",
        SURE if known else LIKELY,
        decoder="fastestdet",
        classes=channels - 5,
        mode="BGR",
        score=0.6,
        scaling="unit",
        choices=(
            _choice("mode", "BGR", "RGB"),
            _choice("geometry", "squash", "corner", "center"),
            _choice("scaling", "unit", "bytes"),
        ),
        assumptions=(f"one grid of {columns}x{rows} cells with {channels} channels is FastestDet's",),
    )


def _box_rows(file: ModelFile, image: _Image, outputs: Sequence[_Output]) -> Iterator[Reading]:
    """Yields detectors with suppression inside, whose one output has a row for each box."""
    if len(outputs) != 1 or len(outputs[0].shape) != 2 or outputs[0].shape[1] != 6:
        return
    output = outputs[0]
    if output.shape[0] > _MOST_QUERIES or (image.start.size and output.shape[0] in _grids(*image.start.size)):
        return
    largest = output.largest(slice(None), slice(0, 4))
    unit = "fractions" if largest is not None and 0 < largest <= 2 else "pixels"
    whole = output.values is None or bool((output.values[:, 5] == np.rint(output.values[:, 5])).all())
    by_ultralytics = file.metadata.get("author") == "Ultralytics"
    yield image.reading(
        "box rows",
        "detection",
        (SURE if by_ultralytics else LIKELY) if whole else GUESS,
        decoder=f"box_rows:{unit}",
        classes=len(file.labels),
        geometry="center",
        inside=True,
        score=0.3,
        choices=(
            _choice("geometry", "center", "squash", "corner", known=by_ultralytics),
            _choice("mode", "RGB", "BGR", known=by_ultralytics),
            _choice("scaling", "unit", "bytes", "imagenet", known=by_ultralytics),
        ),
        assumptions=(f"rows are x1, y1, x2, y2 in {unit}, score, class, with suppression inside",),
    )


def _grids(width: int, height: int) -> dict[int, tuple[int, tuple[int, ...]]]:
    """Returns the boxes of a cell and the strides by the number of boxes of a YOLO of that input size."""
    found: dict[int, tuple[int, tuple[int, ...]]] = {}
    for strides in (_STRIDES, (*_STRIDES, 64)):
        cells = sum((width // stride) * (height // stride) for stride in strides)
        for boxes in (1, 3):
            found.setdefault(cells * boxes, (boxes, strides))
    return found


def _yolo(file: ModelFile, image: _Image, outputs: Sequence[_Output]) -> Iterator[Reading]:
    """Yields the YOLO families: a column of numbers for each box of a grid."""
    candidates = [output for output in outputs if output.real and len(output.shape) == 2 and min(output.shape) >= 5]
    if len(candidates) != 1 or image.start.size is None:
        return
    output, ultralytics = candidates[0], file.metadata.get("author") == "Ultralytics"
    columns, count = sorted(output.shape)
    transposed = output.shape[0] == columns
    grids = _grids(*image.start.size)
    if file.metadata.get("task", "detect") != "detect":
        return
    if count not in grids and not ultralytics:
        yield from _queries(file, image, output, columns, count)
        return
    boxes, strides = grids.get(count, (1 if transposed else 3, _STRIDES))
    known = (len(file.labels),) if file.labels else (80,)
    values = output.values if output.values is None or not transposed else output.values.T
    without_objectness = columns - 4 in known or (transposed and columns - 5 not in known)
    if boxes == 1 and not transposed and not without_objectness:
        yield _yolox(image, output, values, strides, known)
        return
    unit = "fractions" if values is not None and float(np.abs(values[:, :4]).max()) <= 4 else "pixels"
    family = "yolov8 to yolo11" if without_objectness else "yolov5 or yolov7"
    classes = columns - (4 if without_objectness else 5)
    step = f"yolo{'' if without_objectness else ':objectness=true'}{':unit=fractions' if unit == 'fractions' else ''}"
    yield image.reading(
        family,
        "detection",
        SURE if ultralytics or classes in known else LIKELY,
        decoder=step,
        output=output.name,
        classes=classes,
        geometry="center",
        choices=(
            _choice("scaling", "unit", "bytes"),
            _choice("mode", "RGB", "BGR"),
            _choice("geometry", "center", "squash", "corner", known=ultralytics),
        ),
        assumptions=(
            f"{count} boxes of {columns} numbers are those of {family} with {classes} classes, boxes in {unit}, "
            "letterboxed and padded with grey as its authors do",
        ),
    )


def _yolox(
    image: _Image, output: _Output, values: Array | None, strides: tuple[int, ...], known: tuple[int, ...]
) -> Reading:
    """Returns YOLOX; its exports with the decoding inside have boxes in pixels, like those of YOLOv6."""
    assert image.start.size is not None  # noqa: S101 (checked by the caller)
    columns = min(output.shape)
    decoded = values is not None and _follows_grid(values[:, 0], strides, *image.start.size)
    step = "yolox" if strides == _STRIDES else f"yolox:{'/'.join(map(str, strides))}"
    return image.reading(
        "yolox with decoding inside" if decoded else "yolox",
        "detection",
        SURE if columns - 5 in known else LIKELY,
        decoder="yolo:objectness=true" if decoded else step,
        output=output.name,
        classes=columns - 5,
        mode="BGR",
        geometry="corner",
        scaling="bytes",
        choices=(
            _choice("scaling", "bytes", "unit", "imagenet"),
            _choice("mode", "BGR", "RGB"),
            _choice("geometry", "corner", "squash", "center"),
        ),
        assumptions=(
            f"one box of {columns} numbers for each cell at strides {', '.join(map(str, strides))} is YOLOX's; its "
            "padding is 114",
        ),
    )


def _follows_grid(values: Array, strides: Sequence[int], width: int, height: int) -> bool:
    """Returns whether the boxes' x follow the columns of their cells: the model has decoded them itself."""
    columns = [
        np.tile((np.arange(width // stride) + 0.5) * stride, height // stride).astype(np.float64) for stride in strides
    ]
    cells = np.concatenate(columns)
    return len(cells) == len(values) and float(np.corrcoef(cells, values.astype(np.float64))[0, 1]) > 0.7


def _queries(file: ModelFile, image: _Image, output: _Output, columns: int, count: int) -> Iterator[Reading]:
    """Yields detectors of queries in one output: centres and sides in fractions, then scores of the classes."""
    if count > _MOST_QUERIES or columns - 4 not in (80, len(file.labels)):
        return
    yield image.reading(
        "rt-detr",
        "detection",
        LIKELY,
        decoder="yolo:unit=fractions",
        output=output.name,
        classes=columns - 4,
        score=0.5,
        choices=(_choice("scaling", "unit", "imagenet"), _choice("geometry", "squash", "corner", "center")),
        assumptions=(f"{count} queries with {columns - 4} scores each, boxes in fractions",),
    )


# Other models of images.


def _classifier(file: ModelFile, image: _Image, outputs: Sequence[_Output]) -> Iterator[Reading]:
    """Yields classifiers: one number for each class."""
    flat = [output for output in outputs if output.real and sum(size != 1 for size in output.shape) <= 1]
    many = [output for output in flat if math.prod(output.shape) >= 2]
    if len(many) != 1 or any(len(output.shape) > 1 and math.prod(output.shape) > 4096 for output in outputs):
        return
    output = many[0]
    classes = math.prod(output.shape)
    activation, sure, why = _activation(file, output)
    if activation and not file.labels and classes not in (10, 100, 1000, 1001):
        sure, why = GUESS, f"{why}; nothing shows that they are classes, so give --labels"
    quantised, imagenet = bool(image.start.quantised), classes in (1000, 1001)
    scalings = ("imagenet", "symmetric", "unit", "bytes", "caffe")
    if not image.start.channels_first:
        scalings = ("symmetric", "unit", "bytes", "imagenet", "caffe")
    yield image.reading(
        f"{'softmax' if not activation else 'logits'} classifier",
        "classification",
        sure,
        decoder=activation,
        output=output.name,
        classes=classes,
        geometry="crop" if imagenet else "squash",
        scaling=scalings[0],
        choices=(
            _choice("scaling", *scalings, known=False),
            _choice("mode", "RGB", "BGR", known=quantised),
            _choice("geometry", *(("crop", "squash") if imagenet else ("squash", "crop"))),
        ),
        assumptions=(why,),
    )


def _activation(file: ModelFile, output: _Output) -> tuple[str, float, str]:
    """Returns the step that makes probabilities, how sure it is, and why."""
    last = file.operators[-4:]
    inside = any(kind.lower() == "softmax" for kind in last)
    if output.values is not None:
        flat = output.values.reshape(-1).astype(np.float64)
        if output.probable:
            return "", SURE, "the outputs are probabilities: a trial run gives numbers from 0 to 1 that sum to 1"
        return "softmax", SURE, f"the outputs are logits: a trial run gives {flat.min():.3g} to {flat.max():.3g}"
    if inside:
        return "", SURE, "a softmax ends the graph"
    return "softmax", LIKELY, "no softmax ends the graph, so the outputs are taken as logits"


def _segmentation(file: ModelFile, image: _Image, outputs: Sequence[_Output]) -> Iterator[Reading]:
    """Yields models that give each pixel a class: as a map of classes, or as scores of the classes."""
    if image.start.size is None:
        return
    least = min(image.start.size) // 8
    maps = [output for output in outputs if not output.real and len(output.shape) == 2 and min(output.shape) >= least]
    scores = [output for output in outputs if output.real and len(output.shape) == 3]
    if len(maps) > 1 or len(scores) > 1 or not maps + scores:
        return
    decoder, classes, output = "", 0, maps[0].name if maps else ""
    if scores:
        first = scores[0].shape[0] <= min(scores[0].shape[1:])
        classes = scores[0].shape[0 if first else 2]
        if maps:
            decoder = f"class_scores:{scores[0].name.replace(':', _COLON)}"
        elif classes < 2 or min(scores[0].shape[1:] if first else scores[0].shape[:2]) < least:
            return
        else:
            output = scores[0].name
            summed = None if scores[0].values is None else scores[0].values.sum(axis=0 if first else -1)
            probable = summed is not None and bool(np.allclose(summed, 1, atol=0.1))
            decoder = f"{'' if probable else 'softmax,'}argmax{':NCHW' if first else ''}"
    tensorflow = file.runtime == "tflite"
    geometries = ("corner", "squash", "center") if tensorflow else ("squash", "corner", "center")
    scalings = ("symmetric", "unit", "bytes", "imagenet") if tensorflow else ("imagenet", "unit", "symmetric", "bytes")
    yield image.reading(
        "segmentation",
        "segmentation",
        SURE if maps or classes == len(file.labels) or classes in (19, 21) else LIKELY,
        decoder=decoder,
        output=output,
        classes=classes,
        geometry=geometries[0],
        padding="pad=128:rounding=nearest",
        scaling=scalings[0],
        choices=(
            _choice("scaling", *scalings, known=False),
            _choice("mode", "RGB", "BGR"),
            _choice("geometry", *geometries),
        ),
        assumptions=(
            f"a class for each pixel{f' of {classes}' if classes else ''}, "
            f"{'with' if scores else 'without'} scores for the confidence",
        ),
    )


_FAMILIES = (_ssd, _detr, _fastestdet, _box_rows, _yolo, _classifier, _segmentation)


def _tables(file: ModelFile, outputs: Sequence[_Output]) -> Iterator[Reading]:
    """Yields classifiers of the columns of a table, or of text: their inputs have the names of the columns."""
    many = [output for output in outputs if output.real and len(output.shape) == 1 and output.shape[0] >= 2]
    many = [output for output in many if output.probable] or many
    if len(many) != 1 or any(len(spec.shape) > 2 for spec in file.inputs):
        return
    activation, sure, why = _activation(file, many[0])
    if activation and not file.labels:
        sure, why = GUESS, f"{why}; nothing shows that they are classes, so give --labels"
    texts = [spec.datatype == "BYTES" for spec in file.inputs]
    columns = ", ".join(f"'{spec.name}'" for spec in file.inputs[:12])
    yield Reading(
        "text classifier" if texts == [True] else "table classifier",
        "classification",
        sure,
        file.inputs[0].name if len(file.inputs) == 1 else "",
        classes=many[0].shape[0],
        labels=file.labels,
        decoder=activation,
        output=many[0].name,
        assumptions=(f"its inputs are columns of the data: {columns}", why),
    )
