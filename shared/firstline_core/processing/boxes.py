"""Compiles a detector's declared steps into one function, from raw outputs to boxes in the upright original image.

Every decoder gives x1, y1, x2, y2 in pixels of the model's input; suppression, mapping and clipping are the same for
all. The steps are declared in `steps.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache, partial
from typing import NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from firstline_core.errors import InferenceError, ModelLoadError
from firstline_core.processing import steps as ops
from firstline_core.processing.compile import sigmoid, softmax
from firstline_core.processing.geometry import InputSize, to_original
from firstline_core.telemetry.wording import counted
from firstline_core.types import Array, all_finite

BOXES, SCORES, CLASSES, COUNT = "boxes", "scores", "classes", "count"
"""The outputs of a detector: FP32 (n, k, 4), FP32 (n, k), INT64 (n, k), INT64 (n,)."""

CANDIDATE = "candidate_"
"""Prefix of boxes, scores and classes below the operating score, which confidence scores use; they have no count."""

_Float = TypeVar("_Float", np.float32, np.float64)
_Floats = NDArray[np.float32]
_Ints = NDArray[np.int64]
_LARGEST_EXPONENT = 20.0  # e ** 20 cells are more than any image has


class Boxes(NamedTuple):
    """Boxes of one image: (n, 4) x1, y1, x2, y2, scores (n,), classes (n,)."""

    boxes: _Floats
    scores: _Floats
    classes: _Ints

    def take(self, index: NDArray[np.intp] | NDArray[np.bool_] | slice) -> Boxes:
        """Returns the boxes at an index."""
        return Boxes(self.boxes[index], self.scores[index], self.classes[index])


Detect = Callable[[Mapping[str, Array], _Floats], dict[str, Array]]
"""From raw outputs by name, and geometries FP32 (n, 6), to the outputs and candidates of n rows.

Raises:
    InferenceError: outputs that the decoder does not understand, or NaN or infinity in them.
"""


def compile_detection(steps: Sequence[ops.PostStep], size: InputSize, k: int) -> Detect:
    """Returns the function of a detector's postprocessing.

    Args:
        steps: a decoder, any class maps, and `suppress`.
        size: of the model's input.
        k: number of boxes of a row in the result, padding included.

    Raises:
        ModelLoadError: the steps are not in this order.
    """
    match steps:
        case [decoder, *maps, ops.Suppress() as suppression] if isinstance(decoder, ops.BoxDecoder) and all(
            isinstance(step, ops.ClassMap) for step in maps
        ):
            decode = partial(_decode, decoder, size=size, floor=min(suppression.floor, suppression.score))
            tables = [np.asarray(step.to, np.int64) for step in maps if isinstance(step, ops.ClassMap)]
        case _:
            raise ModelLoadError("Postprocessing of a detector: a decoder comes first, then class_map, then suppress.")

    def detect(raw: Mapping[str, Array], geometry: _Floats) -> dict[str, Array]:
        for name, array in raw.items():
            if array.shape[:1] != (len(geometry),):
                raise InferenceError(
                    f"Output '{name}' has shape {list(array.shape)} for "
                    f"{counted(len(geometry), 'row')}; export the model with a "
                    "dynamic first axis that counts the rows of inputs and outputs alike, or with 1 row in both."
                )
            if not all_finite(array):
                raise InferenceError(f"Output '{name}' has NaN or infinity.")
        result = _padded(len(geometry), k)
        for row, place in enumerate(geometry):
            found = decode({name: array[row] for name, array in raw.items()})
            for table in tables:
                found = _mapped(found, table)
            _fill(result, row, _suppressed(found, place, suppression), suppression.score)
        return result

    return detect


def suppress(found: Boxes, iou: float, limit: int) -> Boxes:
    """Returns the boxes that overlap no better box of their class, best first (greedy non-maximum suppression).

    The result does not depend on the order of the boxes: equal scores are ordered by class and box.

    Args:
        found: boxes of one image.
        iou: boxes with a larger intersection over union are suppressed.
        limit: number of boxes that are compared, the best ones.
    """
    if len(found.scores) > limit:
        found = found.take(found.scores >= np.partition(found.scores, -limit)[-limit])
    left, top, right, bottom = found.boxes.T
    order = np.lexsort((bottom, right, top, left, found.classes, -found.scores))
    ordered = found.take(order[:limit])
    if iou >= 1:
        return ordered
    conflicts = intersection_over_union(ordered.boxes, ordered.boxes) > iou
    conflicts &= ordered.classes[:, None] == ordered.classes
    kept = np.ones(len(ordered.scores), np.bool_)
    for index in np.flatnonzero(np.triu(conflicts, 1).any(axis=1)):
        if kept[index]:
            kept[index + 1 :] &= ~conflicts[index, index + 1 :]
    return ordered.take(kept)


def intersection_over_union(some: NDArray[_Float], others: NDArray[_Float]) -> NDArray[_Float]:
    """Returns the overlap of each box with each of the others, (n, m) in [0, 1]; 0 for boxes without area.

    Args:
        some: (n, 4) left, top, right, bottom.
        others: (m, 4) of the same dtype.
    """
    # By column: numpy is slow along an axis of two.
    left, top, right, bottom = some.T[..., None]
    lefts, tops, rights, bottoms = others.T
    shared = np.maximum(np.minimum(right, rights) - np.maximum(left, lefts), 0)
    shared *= np.maximum(np.minimum(bottom, bottoms) - np.maximum(top, tops), 0)
    area = np.maximum(right - left, 0) * np.maximum(bottom - top, 0)
    union = area + np.maximum(rights - lefts, 0) * np.maximum(bottoms - tops, 0) - shared
    overlap: NDArray[_Float] = np.divide(shared, union, out=np.zeros_like(shared), where=union > 0)
    return overlap


def partners(overlap: NDArray[_Float]) -> NDArray[np.intp]:
    """Pairs boxes one to one, as COCO's evaluation does: each takes the free partner with the largest overlap.

    Args:
        overlap: (n, m) of boxes, the surest first, with their possible partners; 0 for boxes that do not match.

    Returns:
        The index of each box's partner, (n,); -1 without one.
    """
    free = overlap.copy()
    found = np.full(len(free), -1, np.intp)
    for index in np.flatnonzero(overlap.any(axis=1)):
        best = free[index].argmax()
        if free[index, best] > 0:
            found[index] = best
            free[:, best] = 0
    return found


def _suppressed(found: Boxes, place: _Floats, step: ops.Suppress) -> Boxes:
    """Returns the remaining boxes in the original image, clipped, best first."""
    found = suppress(found._replace(boxes=to_original(found.boxes, place)), step.iou, step.limit)
    clipped = np.clip(found.boxes, 0, np.tile(place[:2], 2))
    return found._replace(boxes=clipped).take(np.all(clipped[:, 2:] > clipped[:, :2], axis=1))


def _padded(rows: int, k: int) -> dict[str, Array]:
    result: dict[str, Array] = {COUNT: np.zeros(rows, np.int64)}
    for prefix in ("", CANDIDATE):
        result[prefix + BOXES] = np.zeros((rows, k, 4), np.float32)
        result[prefix + SCORES] = np.zeros((rows, k), np.float32)
        result[prefix + CLASSES] = np.full((rows, k), -1, np.int64)
    return result


def _fill(result: dict[str, Array], row: int, found: Boxes, score: float) -> None:
    """Writes the boxes of one row, best first, into the padded result."""
    k = result[SCORES].shape[1]
    count = int(np.count_nonzero(found.scores >= score))
    result[COUNT][row] = min(count, k)
    detections, candidates = found.take(slice(min(count, k))), found.take(slice(count, count + k))
    for prefix, part in (("", detections), (CANDIDATE, candidates)):
        size = len(part.scores)
        result[prefix + BOXES][row, :size] = part.boxes
        result[prefix + SCORES][row, :size] = part.scores
        result[prefix + CLASSES][row, :size] = part.classes


def _mapped(found: Boxes, table: _Ints) -> Boxes:
    if len(found.classes) and not 0 <= found.classes.min() <= found.classes.max() < len(table):
        raise InferenceError(
            f"The model gave a class outside of 0 to {len(table) - 1}, the classes of its class map; correct class_map."
        )
    mapped = found._replace(classes=table[found.classes])
    return mapped.take(mapped.classes >= 0)


# Decoders: of one row, without the axis of rows.


def _decode(decoder: ops.BoxDecoder, raw: Mapping[str, Array], *, size: InputSize, floor: float) -> Boxes:
    match decoder:
        case ops.Yolox():
            return _yolox(_only(raw, 2), decoder, size, floor)
        case ops.FastestDet():
            return _fastestdet(_only(raw, 3), size, floor)
        case ops.Yolo():
            return _yolo(_only(raw, 2), decoder, size, floor)
        case ops.Detr():
            return _detr(raw, decoder, size, floor)
        case ops.Ssd():
            return _ssd(raw, decoder, size, floor)
        case ops.Anchors():
            return _from_anchors(raw, decoder, size, floor)
        case ops.BoxRows():
            return _box_rows(_only(raw, 2), decoder, size, floor)


def outputs_read(steps: Sequence[ops.PostStep], declared: str, names: Sequence[str]) -> tuple[str, ...]:
    """Returns the names of the model's outputs that the decoder reads, in its order; "" is the only output.

    Args:
        steps: as of `compile_detection`.
        declared: name of the output in the manifest, which decoders of one output read; "" for the only one.
        names: of all outputs of the model.
    """
    match steps:
        case [ops.Detr() as decoder, *_]:
            return decoder.logits, decoder.boxes
        case [ops.Anchors() as decoder, *_]:
            return decoder.offsets, decoder.scores
        case [ops.Ssd(boxes=""), *_]:
            return tuple(names[:4])
        case [ops.Ssd() as decoder, *_]:
            return tuple(filter(None, (decoder.boxes, decoder.classes, decoder.scores, decoder.count)))
        case _:
            return (declared,)


def _yolox(values: _Floats, step: ops.Yolox, size: InputSize, floor: float) -> Boxes:
    cells = _cells(step.strides, size)
    if len(values) != len(cells):
        raise InferenceError(
            f"YOLOX with strides {step.strides} has {len(cells)} cells for {size.width}x{size.height} pixels, but the "
            f"model gave {len(values)}; correct the strides or the size."
        )
    _check_columns(values.shape[1], 6)
    best = values[:, 5:].max(axis=1)
    kept = _above(values[:, 4] * best, floor)
    scores = (values[kept, 4] * best[kept]).astype(np.float32)
    corner, stride = cells[kept, :2], cells[kept, 2:]
    center = (values[kept, :2] + corner) * stride
    sides = np.exp(np.minimum(values[kept, 2:4], _LARGEST_EXPONENT)) * stride
    return Boxes(_from_centers(center, sides), scores, values[kept, 5:].argmax(axis=1))


def _fastestdet(values: _Floats, size: InputSize, floor: float) -> Boxes:
    channels, rows, columns = values.shape
    _check_columns(channels, 6)
    flat = values.reshape(channels, -1)
    # A weighted geometric mean, as in the authors' sample. Rounding takes values below 0, whose power is NaN.
    scores: _Floats = np.maximum(flat[0], 0) ** 0.6 * np.maximum(flat[5:].max(axis=0), 0) ** 0.4
    kept = _above(scores, floor)
    terms = flat[1:5, kept]
    corner = np.stack((kept % columns, kept // columns), axis=1).astype(np.float32)
    center: _Floats = np.divide(corner + np.tanh(terms[:2].T), (columns, rows), dtype=np.float32)
    boxes = _from_centers(center, sigmoid(terms[2:].T))
    return Boxes(boxes * _sides(size), scores[kept], flat[5:, kept].argmax(axis=0))


def _yolo(values: _Floats, step: ops.Yolo, size: InputSize, floor: float) -> Boxes:
    if values.shape[0] < values.shape[1]:
        values = values.T
    first = 5 if step.objectness else 4
    _check_columns(values.shape[1], first + 1)
    scores = values[:, first:].max(axis=1)
    if step.objectness:
        scores = scores * values[:, 4]
    kept = _above(scores, floor)
    boxes = _from_centers(values[kept, :2], values[kept, 2:4])
    return Boxes(_in_pixels(boxes, step.unit, size), scores[kept], values[kept, first:].argmax(axis=1))


def _detr(raw: Mapping[str, Array], step: ops.Detr, size: InputSize, floor: float) -> Boxes:
    logits, boxes = _named(raw, step.logits, 2), _corners(raw, step.boxes, step.logits)
    _check_columns(logits.shape[1], 2 if step.activation == "softmax" else 1)
    probabilities = softmax(logits)[:, :-1] if step.activation == "softmax" else sigmoid(logits)
    scores = probabilities.max(axis=1)
    kept = _above(scores, floor)
    centers = _from_centers(boxes[kept, :2], boxes[kept, 2:])
    return Boxes(centers * _sides(size), scores[kept], probabilities[kept].argmax(axis=1))


def _ssd(raw: Mapping[str, Array], step: ops.Ssd, size: InputSize, floor: float) -> Boxes:
    declared = (step.boxes, step.classes, step.scores, step.count)
    boxes, classes, scores, count = declared if step.boxes else (*raw, *[""] * 4)[:4]
    found, numbers, corners = _named(raw, scores, 1), _named(raw, classes, 1), _corners(raw, boxes, scores)
    if len(numbers) != len(found):
        raise InferenceError(f"Outputs '{classes}' and '{scores}' have {len(numbers)} and {len(found)} boxes.")
    if count:
        found = found[: max(round(_only_number(raw, count)), 0)]
    kept = _above(found, floor, padded=True)
    boxes_xyxy = corners[kept][:, [1, 0, 3, 2]] if step.corners == "yxyx" else corners[kept]
    return Boxes(_in_pixels(boxes_xyxy, step.unit, size), found[kept], _whole(numbers[kept]))


def _from_anchors(raw: Mapping[str, Array], step: ops.Anchors, size: InputSize, floor: float) -> Boxes:
    scores, offsets = _named(raw, step.scores, 2), _corners(raw, step.offsets, step.scores)
    _check_columns(scores.shape[1], 2)
    all_anchors = anchors(step, size)
    if len(offsets) != len(all_anchors):
        raise InferenceError(
            f"An SSD with strides {step.strides}, {len(step.ratios)} ratios and {size.width}x{size.height} pixels has "
            f"{len(all_anchors)} anchors, but the model gave {len(offsets)}; correct the arguments of 'anchors'."
        )
    if step.activation != "none":
        scores = softmax(scores) if step.activation == "softmax" else sigmoid(scores)
    probabilities = scores[:, 1:]
    best = probabilities.max(axis=1)
    kept = _above(best, floor)
    places = all_anchors[kept]
    moved: _Floats = np.divide(offsets[kept], (10, 10, 5, 5), dtype=np.float32)
    center = places[:, :2] + moved[:, 1::-1] * places[:, 2:]
    sides = places[:, 2:] * np.exp(np.minimum(moved[:, :1:-1], np.float32(_LARGEST_EXPONENT)))
    return Boxes(_from_centers(center, sides) * _sides(size), best[kept], probabilities[kept].argmax(axis=1))


def _box_rows(values: _Floats, step: ops.BoxRows, size: InputSize, floor: float) -> Boxes:
    wanted = 7 if step.numbered else 6
    if values.shape[1] != wanted:
        raise InferenceError(f"box_rows reads rows of {wanted} numbers, but the model gave {values.shape[1]}.")
    if step.numbered:
        values = values[:, [1, 2, 3, 4, 6, 5]]
    kept = _above(values[:, 4], floor, padded=True)
    return Boxes(_in_pixels(values[kept, :4], step.unit, size), values[kept, 4], _whole(values[kept, 5]))


def _above(scores: _Floats, floor: float, *, padded: bool = False) -> NDArray[np.intp]:
    """Returns the indices of scores of at least `floor`, or else of the best one; of `padded` scores only above 0."""
    if not len(scores):
        return np.zeros(0, np.intp)
    kept = scores >= min(np.float32(floor), scores.max())
    return np.flatnonzero(kept & (scores > 0) if padded else kept)


@lru_cache(maxsize=16)
def _cells(strides: tuple[int, ...], size: InputSize) -> _Floats:
    """Returns column, row and stride of each cell, (cells, 3)."""
    grids: list[Array] = []
    for stride in strides:
        rows, columns = np.indices((size.height // stride, size.width // stride))
        grids.append(np.stack((columns.ravel(), rows.ravel(), np.full(rows.size, stride)), axis=1))
    cells = np.concatenate(grids).astype(np.float32)
    cells.flags.writeable = False
    return cells


@lru_cache(maxsize=16)
def anchors(step: ops.Anchors, size: InputSize) -> _Floats:
    """Returns the centre (x, y), width and height of each anchor in fractions of the input's sides, (anchors, 4).

    The sides of an anchor are fractions of the input's shorter side, so that the anchor of ratio 1 is square.
    """
    shorter = min(size) / np.array(size)
    grids: list[Array] = []
    scales = [*np.linspace(step.least, step.most, len(step.strides)), 1.0]
    for index, (stride, scale) in enumerate(zip(step.strides, scales, strict=False)):
        shapes = [(scale * ratio**0.5, scale / ratio**0.5) for ratio in step.ratios]
        if index == 0 and step.lowest:
            shapes = [(0.1, 0.1), (scale * 2**0.5, scale / 2**0.5), (scale / 2**0.5, scale * 2**0.5)]
        else:
            shapes.append(((scale * scales[index + 1]) ** 0.5,) * 2)
        rows, columns = -(-size.height // stride), -(-size.width // stride)
        y, x, shape = (axis.ravel() for axis in np.indices((rows, columns, len(shapes))))
        grids.append(np.column_stack(((x + 0.5) / columns, (y + 0.5) / rows, (shapes * shorter)[shape])))
    found = np.concatenate(grids).astype(np.float32)
    found.flags.writeable = False
    return found


def _from_centers(center: _Floats, sides: _Floats) -> _Floats:
    return np.concatenate((center - sides / 2, center + sides / 2), axis=1)


def _in_pixels(boxes: _Floats, unit: ops.Unit, size: InputSize) -> _Floats:
    return boxes if unit == "pixels" else boxes * _sides(size)


def _sides(size: InputSize) -> _Floats:
    return np.array([*size, *size], np.float32)


def _whole(classes: Array) -> _Ints:
    return np.rint(classes).astype(np.int64)


def _only(raw: Mapping[str, Array], axes: int) -> _Floats:
    """Returns the only output."""
    return _named(raw, next(iter(raw)), axes)


def _named(raw: Mapping[str, Array], name: str, axes: int) -> _Floats:
    if name not in raw:
        raise InferenceError(f"The model has no output '{name}'; it has: {', '.join(raw)}.")
    array = raw[name]
    if array.ndim != axes:
        raise InferenceError(
            f"Output '{name}' has shape {list(array.shape)} for a row; this decoder needs {axes} axes after the rows'."
        )
    return array.astype(np.float32, copy=False)


def _only_number(raw: Mapping[str, Array], name: str) -> float:
    if raw[name].size != 1:
        raise InferenceError(f"Output '{name}' has shape {list(raw[name].shape)} for a row, but is a count of boxes.")
    return float(raw[name].reshape(()))


def _corners(raw: Mapping[str, Array], name: str, scores: str) -> _Floats:
    """Returns the named output of boxes, (k, 4), one for each of the scores."""
    found = _named(raw, name, 2)
    if found.shape != (len(raw[scores]), 4):
        raise InferenceError(
            f"Output '{name}' has shape {list(found.shape)} for a row; it needs 4 columns and the {len(raw[scores])} "
            f"boxes of '{scores}'."
        )
    return found


def _check_columns(found: int, least: int) -> None:
    if found < least:
        raise InferenceError(
            f"The model's output has {found} columns; this decoder needs at least {least}, one or more of them for "
            "classes: use another decoder."
        )
