"""Maps of classes: from a model's grid to the frame of masks, and from there to the upright image. Pure.

The frame of masks is the upright image, reduced or enlarged to fit into a fixed width and height with its aspect ratio
kept, in the top left corner. Everything else in it is `IGNORED`. So the masks of models with different inputs can be
compared, and padding is never part of a mask.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from firstline_core.errors import InferenceError, ModelLoadError
from firstline_core.processing.compile import softmax
from firstline_core.processing.geometry import InputSize, placed
from firstline_core.processing.steps import Binary, ClassMap, PostStep, Resize
from firstline_core.types import Array

IGNORED: Final = 255
"""The class of pixels without one: outside of the image, or of no label."""

Mask = NDArray[np.uint8]

_SUM_SLACK = 0.02  # rounding of probabilities


class Grid(NamedTuple):
    """Indices of a grid's rows and columns, INT64."""

    rows: NDArray[np.int64]
    columns: NDArray[np.int64]


def content(size: tuple[int, int], frame: InputSize) -> InputSize:
    """Returns the width and height that an image takes in the frame, in pixels.

    Args:
        size: width and height of the upright image.
        frame: of the masks.
    """
    place = placed(Resize(frame.width, frame.height, letterbox="corner", rounding="nearest"), *size)
    return InputSize(place.width, place.height)


def to_frame(classes: Array, place: NDArray[np.float32], model: InputSize, frame: InputSize) -> Mask:
    """Maps the classes of one image to the frame of masks, by the nearest cell.

    Args:
        classes: (rows, columns) of the model's grid, which covers its input; 0 to 255.
        place: FP32 (6,), where the image lies in the model's input, see `processing/geometry.py`.
        model: size of the model's input.
        frame: size of the mask.

    Returns:
        UINT8 (frame.height, frame.width); `IGNORED` where the model saw nothing.
    """
    width, height, scale_x, scale_y, offset_x, offset_y = place.astype(np.float64).tolist()
    inner = content((int(width), int(height)), frame)
    columns = _cells(inner.width, width, (scale_x, offset_x), model.width, classes.shape[1])
    rows = _cells(inner.height, height, (scale_y, offset_y), model.height, classes.shape[0])
    mask = np.full((frame.height, frame.width), IGNORED, np.uint8)
    seen_rows, seen_columns = rows >= 0, columns >= 0
    found = classes[rows[seen_rows]][:, columns[seen_columns]].astype(np.uint8)
    mask[np.ix_(np.flatnonzero(seen_rows), np.flatnonzero(seen_columns))] = found
    return mask


def image_cells(grid: tuple[int, int], place: NDArray[np.float32], model: InputSize) -> Grid:
    """Returns the cells of a model's grid whose centre lies in the image, and not in the padding.

    Args:
        grid: number of rows and columns, which cover the model's input.
        place: see `to_frame`.
        model: size of the model's input.
    """
    width, height, scale_x, scale_y, offset_x, offset_y = place.astype(np.float64).tolist()
    axes = []
    for count, side, size, scale, offset in (
        (grid[0], model.height, height, scale_y, offset_y),
        (grid[1], model.width, width, scale_x, offset_x),
    ):
        centres = (np.arange(count) + 0.5) * side / count
        inside = np.flatnonzero((centres >= offset) & (centres < size * scale + offset))
        axes.append(inside if len(inside) else np.array([count // 2]))
    return Grid(*axes)


def fitted(mask: Array, frame: InputSize) -> Mask:
    """Maps a labelled mask of an upright image to the frame, by the nearest pixel.

    Args:
        mask: (height, width) of the image, 0 to 255.
        frame: size of the result.
    """
    height, width = mask.shape
    place = np.array([width, height, 1, 1, 0, 0], np.float32)
    return to_frame(mask, place, InputSize(width, height), frame)


def to_image(mask: Mask, size: tuple[int, int], frame: InputSize) -> Mask:
    """Maps a mask from the frame to the upright image, by the nearest pixel.

    Args:
        mask: UINT8 (frame.height, frame.width).
        size: width and height of the image.
        frame: size of the mask.

    Returns:
        UINT8 (height, width).
    """
    inner = content(size, frame)
    rows = (np.arange(size[1]) + 0.5) * inner.height / size[1]
    columns = (np.arange(size[0]) + 0.5) * inner.width / size[0]
    return mask[rows.astype(np.int64)][:, columns.astype(np.int64)]


def class_table(maps: Sequence[ClassMap], labels: int) -> NDArray[np.int64] | None:
    """Returns the label of each class of the model, -1 for none; None without a map.

    Raises:
        ModelLoadError: a map leads to a class that the next one does not have, or to a label that does not exist.
    """
    table: NDArray[np.int64] | None = None
    for step in maps:
        to = np.asarray(step.to, np.int64)
        if table is not None and table.max() >= len(to):
            raise ModelLoadError(f"The step class_map has {len(to)} classes, but gets class {table.max()}.")
        table = to if table is None else np.where(table < 0, -1, to[table])
    if table is not None and table.max() >= labels:
        raise ModelLoadError(f"The step class_map gives the label {table.max()}; there are {labels}, from 0, and -1.")
    return table


def to_labels(classes: Array, table: NDArray[np.int64] | None, labels: int, what: str) -> Array:
    """Returns the labels of a map of classes, `IGNORED` for none."""
    least, most = int(classes.min(initial=0)), int(classes.max(initial=0))
    count = labels if table is None else len(table)
    if least < 0 or (most >= count and most != IGNORED):
        declared = f"the bundle has {labels} labels" if table is None else f"class_map has {count}"
        raise InferenceError(f"{what} gave classes from {least} to {most}, but {declared}.")
    if table is None:
        return classes
    lookup = np.full(max(IGNORED + 1, len(table)), IGNORED, np.int64)
    lookup[: len(table)] = np.where(table < 0, IGNORED, table)
    return lookup[classes]


def label_shares(cells: Array, table: NDArray[np.int64], labels: int) -> Array:
    """Returns the probabilities of the labels, from those of the model's classes."""
    if cells.shape[1] != len(table):
        raise InferenceError(f"The model has scores of {cells.shape[1]} classes, but class_map has {len(table)}.")
    found = np.zeros((len(cells), labels), np.float32)
    for number, label in enumerate(table.tolist()):
        if label >= 0:
            found[:, label] += cells[:, number]
    return found


def class_map_of(output: Array, what: str) -> Array:
    """Returns a map of classes (n, rows, columns) as integers."""
    squeezed = output
    if output.ndim == 4 and 1 in (output.shape[1], output.shape[3]):
        squeezed = output[:, 0] if output.shape[1] == 1 else output[..., 0]
    if squeezed.ndim != 3:
        raise InferenceError(
            f"{what} gave {list(output.shape)}, which is not a map of classes [rows, height, width]; add argmax "
            "if these are scores of the classes."
        )
    if squeezed.dtype.kind in "iub":
        return squeezed
    classes = np.rint(squeezed)
    if not np.array_equal(classes, squeezed):
        raise InferenceError(f"{what} gave numbers that are not classes; add argmax if they are scores of the classes.")
    return classes.astype(np.int64)


def class_shares(before: Sequence[PostStep], layout: str, what: str) -> Callable[[Array], Array]:
    """Returns the function from an output to the probabilities of the classes, (n, rows, columns, classes)."""

    def shares(output: Array) -> Array:
        if output.ndim == 3:  # one class, without its axis
            output = output[..., None] if layout == "NHWC" else output[:, None]
        if output.ndim != 4:
            raise InferenceError(f"{what} gave {list(output.shape)}, which are not scores of classes for each pixel.")
        found = output if layout == "NHWC" else output.transpose(0, 2, 3, 1)
        found = np.array(found, np.float32)
        if not np.isfinite(found).all():
            raise InferenceError(f"{what} gave NaN or infinity.")
        for step in before:
            if isinstance(step, Binary):
                other = 1 - found if step.of == "probability" else np.zeros_like(found)
                found = np.concatenate((other, found), axis=-1)
                found = softmax(found) if step.of == "logit" else found
            else:
                found = softmax(found)
        sums = found.sum(axis=-1)
        if found.min() < -_SUM_SLACK or sums.max() > 1 + _SUM_SLACK:
            raise InferenceError(f"{what} gave scores that are not probabilities; add softmax before argmax.")
        return found

    return shares


def _cells(count: int, side: float, line: tuple[float, float], model_side: int, cells: int) -> NDArray[np.int64]:
    """Returns the cell of each pixel of the frame on one axis; -1 outside of the model's input."""
    scale, offset = line
    original = (np.arange(count) + 0.5) * side / count
    found = np.floor((original * scale + offset) * cells / model_side).astype(np.int64)
    return np.where((found >= 0) & (found < cells), found, -1)
