"""Where the pixels of a model's input lie in the upright original image, so that boxes can be mapped back. Pure.

The geometry of a row has six numbers: width and height of the upright original, then the scales of both axes, then
their offsets. A model's pixel is the original pixel times the scale, plus the offset.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from firstline_core.processing.steps import CenterCrop, Resize

SizeStep = CenterCrop | Resize
"""The image steps after decoding."""

GEOMETRY = "firstline/geometry"
"""Name of the array of geometries that accompanies a model's prepared rows, and of no model's input: FP32 (rows, 6)."""


class InputSize(NamedTuple):
    """Width and height of a model's input, in pixels."""

    width: int
    height: int


class Placement(NamedTuple):
    """The size of a resized picture, and where it begins in the step's result. All in pixels."""

    width: int
    height: int
    left: int
    top: int


def crop_side(step: CenterCrop, width: int, height: int) -> int:
    """Returns the side of the central square, in pixels."""
    return max(1, round(step.fraction * min(width, height)))


def placed(step: Resize, width: int, height: int) -> Placement:
    """Returns where the step puts a picture of this size."""
    if not step.letterbox:
        return Placement(step.width, step.height, 0, 0)
    ratio = min(step.width / width, step.height / height)
    whole = round if step.rounding == "nearest" else int
    # A side of less than a pixel would be no picture.
    across, down = max(1, whole(width * ratio)), max(1, whole(height * ratio))
    if step.letterbox == "corner":
        return Placement(across, down, 0, 0)
    return Placement(across, down, (step.width - across) // 2, (step.height - down) // 2)


def geometry(sizes: Iterable[tuple[int, int]], steps: Sequence[SizeStep]) -> NDArray[np.float32]:
    """Returns the geometry of images after the steps.

    Args:
        sizes: (width, height) of each upright original.
        steps: in order.

    Returns:
        FP32 (rows, 6): width, height, scale_x, scale_y, offset_x, offset_y.
    """
    return np.array([_geometry(width, height, steps) for width, height in sizes], np.float32).reshape(-1, 6)


def to_original(boxes: NDArray[np.float32], row: NDArray[np.float32]) -> NDArray[np.float32]:
    """Maps boxes from a model's input to the upright original image, without clipping.

    Args:
        boxes: FP32 (k, 4), x1, y1, x2, y2 in pixels of the model's input.
        row: FP32 (6,), the geometry of the image.

    Returns:
        FP32 (k, 4), in pixels of the original.
    """
    scale, offset = np.tile(row[2:4], 2), np.tile(row[4:6], 2)
    return (boxes - offset) / scale


def _geometry(width: int, height: int, steps: Sequence[SizeStep]) -> tuple[float, ...]:
    scale_x = scale_y = 1.0
    offset_x = offset_y = 0.0
    across, down = width, height
    for step in steps:
        if isinstance(step, CenterCrop):
            side = crop_side(step, across, down)
            offset_x, offset_y = offset_x - (across - side) // 2, offset_y - (down - side) // 2
            across = down = side
            continue
        place = placed(step, across, down)
        wider, taller = place.width / across, place.height / down
        scale_x, scale_y = scale_x * wider, scale_y * taller
        offset_x, offset_y = offset_x * wider + place.left, offset_y * taller + place.top
        across, down = step.width, step.height
    return width, height, scale_x, scale_y, offset_x, offset_y
