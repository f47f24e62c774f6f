"""Families of detectors: each function yields the readings of a model that has the family's outputs."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence

import numpy as np

from firstline.workbench.model_file import ModelFile
from firstline.workbench.recognition.inputs import Start
from firstline.workbench.recognition.outputs import Output
from firstline.workbench.recognition.reading import GUESS, LIKELY, SURE, Choice, Reading, escaped
from firstline_core.processing.boxes import anchors as anchors_of
from firstline_core.processing.geometry import InputSize
from firstline_core.processing.steps import Anchors
from firstline_core.types import Array

_COLOURS = Choice("mode", ("RGB", "BGR"))
_STRETCHED = Choice("geometry", ("squash", "corner", "center"))
_STRIDES = (8, 16, 32)
_MOST_QUERIES = 1000


def ssd(file: ModelFile, image: Start, outputs: Sequence[Output]) -> Iterator[Reading]:
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
    names = ":".join(escaped(each.name) for each in (boxes, classes, scores, count) if each is not None)
    decoder = "ssd" if default and count is not None else f"ssd:{names}"
    if not tensorflow:
        largest = boxes.largest()
        decoder += f":corners=xyxy:unit={'fractions' if largest is not None and largest <= 2 else 'pixels'}"
    one_based = file.runtime != "tflite" and (classes.name.lower() in ("labels", "label") or tensorflow)
    choices = [_COLOURS]
    if not file.labels:
        maps = ("coco91", "", "coco90") if one_based else ("", "coco90", "coco91")
        # TFLite's numbers leave out the background, but not COCO's unused ids.
        choices.append(Choice("class_map", maps, known=file.runtime != "tflite"))
    scalings = ("symmetric", "unit") if tensorflow else ("unit", "imagenet")
    torchvision = not tensorflow and bool(file.without_rows)  # its detectors normalise the pixels themselves
    choices.append(Choice("scaling", scalings, known=torchvision))
    yield image.reading(
        "ssd",
        "detection",
        SURE,
        decoder=decoder,
        classes=len(file.labels),
        score=0.5,
        inside=True,
        choices=(*choices, _STRETCHED),
        assumptions=(
            f"boxes are {'top, left, bottom, right in fractions' if tensorflow else 'left, top, right, bottom'}, with "
            "suppression inside",
        ),
    )


def _ssd_roles(file: ModelFile, outputs: Sequence[Output]) -> tuple[Output, Output, Output, Output | None] | None:
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


def detr(file: ModelFile, image: Start, outputs: Sequence[Output]) -> Iterator[Reading]:
    """Yields DETR and its relatives: boxes and logits of queries, in two outputs."""
    threes = [output for output in outputs if output.real and len(output.shape) == 2]
    boxes = [output for output in threes if output.shape[1] == 4]
    logits = [output for output in threes if output.shape[1] != 4 and output.shape[1] > 1]
    if len(boxes) != 1 or len(logits) != 1 or boxes[0].shape[0] != logits[0].shape[0]:
        return
    queries, columns = logits[0].shape
    if queries > _MOST_QUERIES:  # anchors of an SSD without suppression
        return
    label_count = len(file.labels)
    softmax = (
        label_count == columns - 1 if label_count in (columns - 1, columns) else columns in (92, 22) or queries == 100
    )
    classes = columns - softmax
    names = ":".join(escaped(each.name) for each in (logits[0], boxes[0]))
    activation, other = ("softmax", "sigmoid") if softmax else ("sigmoid", "softmax")
    decoders = tuple(f"detr:{names}:{each}" for each in (activation, other))
    yield image.reading(
        "detr",
        "detection",
        LIKELY if label_count else 0.7,
        decoder=decoders[0],
        classes=classes,
        class_map="coco91" if classes == 91 and label_count in (0, 91) else "",
        score=0.5,
        inside=True,
        choices=(
            Choice("scaling", ("imagenet", "unit") if softmax else ("unit", "imagenet")),
            *(() if label_count or columns in (80, 92) else (Choice("decoder", decoders, known=False),)),
            _COLOURS,
            _STRETCHED,
        ),
        assumptions=(
            f"{queries} queries, {classes} classes"
            + (", and a last class for no object" if softmax else ", each with a score of its own"),
        ),
    )


def anchors(file: ModelFile, image: Start, outputs: Sequence[Output]) -> Iterator[Reading]:
    """Yields SSD without suppression inside: offsets from as many anchors as TensorFlow's SSD has, and their scores."""
    if len(outputs) != 2 or image.inputs.size is None:
        return
    offsets, scores = sorted(outputs, key=lambda output: output.shape[-1:] != (4,))
    count = len(anchors_of(Anchors("offsets", "scores"), InputSize(*image.inputs.size)))
    if offsets.shape != (count, 4) or scores.shape[:-1] != (count,) or scores.shape[-1] < 2:
        return
    columns, values = scores.shape[-1], scores.values
    inside = values is not None and bool(values.min() >= 0 and values.max() <= 1)
    decoder = f"anchors:{escaped(offsets.name)}:{escaped(scores.name)}"
    decoders = tuple(decoder + end for end in ((":activation=none",) if inside else ("", ":activation=softmax")))
    yield image.reading(
        "ssd anchors",
        "detection",
        SURE if inside or columns == 91 else LIKELY,
        decoder=decoders[0],
        classes=columns - 1,
        class_map="coco90" if columns == 91 and len(file.labels) != 90 else "",
        score=0.5,
        choices=(
            *(() if inside else (Choice("decoder", decoders, known=columns == 91),)),
            Choice("scaling", ("symmetric", "unit")),
            _COLOURS,
            _STRETCHED,
        ),
        assumptions=(f"{count} boxes are offsets from the anchors of TensorFlow's SSD, the first class is background",),
    )


def fastestdet(file: ModelFile, image: Start, outputs: Sequence[Output]) -> Iterator[Reading]:
    """Yields FastestDet: objectness, box terms and probabilities on one grid, channels first."""
    if len(outputs) != 1 or len(outputs[0].shape) != 3 or image.inputs.size is None:
        return
    channels, rows, columns = outputs[0].shape
    width, height = image.inputs.size
    if channels < 6 or (height // rows, width // columns) != (16, 16):
        return
    fits_labels = channels - 5 in (80, len(file.labels))
    yield image.reading(
        "fastestdet",
        "detection",
        SURE if fits_labels else LIKELY,
        decoder="fastestdet",
        classes=channels - 5,
        score=0.6,
        choices=(Choice("mode", ("BGR", "RGB")), _STRETCHED, Choice("scaling", ("unit", "bytes"))),
        assumptions=(f"one grid of {columns}x{rows} cells with {channels} channels is FastestDet's",),
    )


def box_rows(file: ModelFile, image: Start, outputs: Sequence[Output]) -> Iterator[Reading]:
    """Yields detectors with suppression inside, whose one output has a row for each box."""
    if len(outputs) != 1 or len(outputs[0].shape) != 2 or outputs[0].shape[1] not in (6, 7):
        return
    output = outputs[0]
    numbered = output.shape[1] == 7
    if numbered and not file.without_rows:
        return
    if output.shape[0] > _MOST_QUERIES or (image.inputs.size and output.shape[0] in _grids(*image.inputs.size)):
        return
    largest = output.largest(slice(None), slice(1, 5) if numbered else slice(0, 4))
    unit = "fractions" if largest is not None and 0 < largest <= 2 else "pixels"
    whole = output.values is None or bool((output.values[:, 5] == np.rint(output.values[:, 5])).all())
    by_ultralytics = file.metadata.get("author") == "Ultralytics"
    yield image.reading(
        "box rows",
        "detection",
        (SURE if by_ultralytics else LIKELY) if whole else GUESS,
        decoder=f"box_rows:{unit}{':numbered=true' if numbered else ''}",
        classes=len(file.labels),
        inside=True,
        score=0.3,
        choices=(
            Choice("geometry", ("center", "squash", "corner"), known=by_ultralytics),
            Choice("mode", ("RGB", "BGR"), known=by_ultralytics),
            Choice("scaling", ("unit", "bytes", "imagenet"), known=by_ultralytics),
        ),
        assumptions=(
            f"rows are image, x1, y1, x2, y2 in {unit}, class, score, with suppression inside, as YOLOv7 writes them"
            if numbered
            else f"rows are x1, y1, x2, y2 in {unit}, score, class, with suppression inside",
        ),
    )


def _grids(width: int, height: int) -> dict[int, tuple[int, tuple[int, ...]]]:
    """Returns the boxes of a cell and the strides by the number of boxes of a YOLO of that input size."""
    found: dict[int, tuple[int, tuple[int, ...]]] = {}
    for strides in (_STRIDES, (*_STRIDES, 64)):
        cells = sum((width // stride) * (height // stride) for stride in strides)
        for boxes in (1, 3):
            found.setdefault(cells * boxes, (boxes, strides))
    return found


def yolo(file: ModelFile, image: Start, outputs: Sequence[Output]) -> Iterator[Reading]:
    """Yields the YOLO families: a column of numbers for each box of a grid."""
    candidates = [output for output in outputs if output.real and len(output.shape) == 2 and min(output.shape) >= 5]
    if len(candidates) != 1 or image.inputs.size is None:
        return
    output, ultralytics = candidates[0], file.metadata.get("author") == "Ultralytics"
    columns, count = sorted(output.shape)
    transposed = output.shape[0] == columns
    grids = _grids(*image.inputs.size)
    if file.metadata.get("task", "detect") != "detect":
        return
    if count not in grids and not ultralytics:
        yield from _queries(file, image, output, columns, count)
        return
    boxes, strides = grids.get(count, (1 if transposed else 3, _STRIDES))
    class_counts = (len(file.labels),) if file.labels else (80,)
    values = output.values if output.values is None or not transposed else output.values.T
    without_objectness = columns - 4 in class_counts or (transposed and columns - 5 not in class_counts)
    if boxes == 1 and not transposed and not without_objectness:
        yield _yolox(image, output, values, strides, class_counts)
        return
    unit = "fractions" if values is not None and float(np.abs(values[:, :4]).max()) <= 4 else "pixels"
    family = "yolov8 to yolo11" if without_objectness else "yolov5 or yolov7"
    classes = columns - (4 if without_objectness else 5)
    step = f"yolo{'' if without_objectness else ':objectness=true'}{':unit=fractions' if unit == 'fractions' else ''}"
    yield image.reading(
        family,
        "detection",
        SURE if ultralytics or classes in class_counts else LIKELY,
        decoder=step,
        output=output.name,
        classes=classes,
        choices=(
            Choice("scaling", ("unit", "bytes")),
            _COLOURS,
            Choice("geometry", ("center", "squash", "corner"), known=ultralytics),
        ),
        assumptions=(
            f"{count} boxes of {columns} numbers are those of {family} with {classes} classes, boxes in {unit}, "
            "letterboxed and padded with grey as its authors do",
        ),
    )


def _yolox(
    image: Start, output: Output, values: Array | None, strides: tuple[int, ...], class_counts: tuple[int, ...]
) -> Reading:
    """Returns YOLOX; its exports with the decoding inside have boxes in pixels, like those of YOLOv6."""
    assert image.inputs.size is not None  # noqa: S101 (checked by the caller)
    columns = min(output.shape)
    decoded = values is not None and _follows_grid(values[:, 0], strides, *image.inputs.size)
    step = "yolox" if strides == _STRIDES else f"yolox:{'/'.join(map(str, strides))}"
    return image.reading(
        "yolox with decoding inside" if decoded else "yolox",
        "detection",
        SURE if columns - 5 in class_counts else LIKELY,
        decoder="yolo:objectness=true" if decoded else step,
        output=output.name,
        classes=columns - 5,
        choices=(
            Choice("scaling", ("bytes", "unit", "imagenet")),
            Choice("mode", ("BGR", "RGB")),
            Choice("geometry", ("corner", "squash", "center")),
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


def _queries(file: ModelFile, image: Start, output: Output, columns: int, count: int) -> Iterator[Reading]:
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
        choices=(Choice("scaling", ("unit", "imagenet")), _STRETCHED),
        assumptions=(f"{count} queries with {columns - 4} scores each, boxes in fractions",),
    )
