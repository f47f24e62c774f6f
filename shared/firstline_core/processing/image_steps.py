"""Runs image steps (decode, centre crop, resize) on one image after the other.

So at most one decoded original is in memory per request.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal

import numpy as np
from PIL.Image import Image

from firstline_core.errors import InvalidTensorError, PayloadTooLargeError
from firstline_core.processing import images
from firstline_core.processing.images import PIXELS_LIMIT, SOURCE_PIXELS_LIMIT, ImageStep, Pixels
from firstline_core.processing.steps import CHANNELS
from firstline_core.types import Array, Tensor


def image_steps(steps: tuple[ImageStep, ...], mode: Literal["RGB", "L"] | None) -> Callable[[Tensor], Array]:
    """Returns a function from a bundle's input to pixels, (rows, height, width, channels) uint8.

    Args:
        steps: after decoding.
        mode: of decoded images; None if the input is pixels.
    """
    transform = images.transform(steps)

    def original(element: bytes | Pixels, where: str) -> Image:
        if not isinstance(element, np.ndarray):
            return images.decode(element, mode or "RGB", where)
        image = images.from_pixels(element)
        return images.convert(image, mode) if mode else image

    def run(tensor: Tensor) -> Array:
        array = tensor.array
        if not array.dtype.hasobject:
            if array.ndim != 4 or array.shape[3] not in CHANNELS.values() or 0 in array.shape:
                raise InvalidTensorError(
                    f"Input '{tensor.name}' has shape {list(array.shape)}; pixels come as UINT8 "
                    "[rows, height, width, 1 or 3], none of them 0."
                )
            if not steps and (mode is None or array.shape[3] == CHANNELS[mode]):
                return array
        return _stack(tensor.name, list(array), original, transform)

    return run


def _stack(
    name: str,
    elements: Sequence[bytes | Pixels],
    original: Callable[[bytes | Pixels, str], Image],
    transform: images.Transform,
) -> Array:
    done: list[Pixels] = []
    source_pixels = pixels = 0
    for row, element in enumerate(elements):
        image = original(element, f"Row {row} of input '{name}'")
        source_pixels += image.width * image.height
        found = images.to_pixels(transform(image))
        pixels += found.shape[0] * found.shape[1]
        for sum_, limit in ((source_pixels, SOURCE_PIXELS_LIMIT), (pixels, PIXELS_LIMIT)):
            if sum_ > limit:
                raise PayloadTooLargeError(
                    f"Input '{name}' has more than {limit} pixels by row {row}; send fewer or smaller images."
                )
        if done and found.shape != done[0].shape:
            raise InvalidTensorError(
                f"Row {row} of input '{name}' has {found.shape[1]}x{found.shape[0]} pixels and row 0 has "
                f"{done[0].shape[1]}x{done[0].shape[0]}; this model does not resize, so send images of one size."
            )
        done.append(found)
    return done[0][None] if len(done) == 1 else np.stack(done)
