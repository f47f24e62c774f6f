"""Decodes one image at a time: JPEG and PNG only. Errors name the row.

EXIF orientation is not applied, as in the evaluations of model cards and in training pipelines. Transparency is
dropped, not blended.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable
from io import BytesIO
from typing import Literal

import numpy as np
from PIL import Image, ImageFile
from PIL.JpegImagePlugin import JpegImageFile
from PIL.PngImagePlugin import PngImageFile

from firstline_core.errors import InvalidTensorError, PayloadTooLargeError
from firstline_core.processing.image_limits import jpeg_problem, png_problem
from firstline_core.processing.steps import CenterCrop, Resize
from firstline_core.types import Array

PIXELS_LIMIT = 40_000_000
"""Maximum pixels of an image, and of all rows of a request if no step reduces them."""

SOURCE_PIXELS_LIMIT = 160_000_000
"""Maximum pixels of all rows of a request before any step reduces them: about two seconds of one core."""

ImageStep = CenterCrop | Resize
Pixels = Array  # uint8 [height, width, channels]
Transform = Callable[[Image.Image], Image.Image]

_JPEG, _PNG = b"\xff\xd8\xff", b"\x89PNG\r\n\x1a\n"
# Pillow warns about broken metadata, which is an error if warnings are errors.
_BROKEN = (
    OSError,
    SyntaxError,
    ValueError,
    EOFError,
    IndexError,
    TypeError,
    KeyError,
    struct.error,
    zlib.error,
    Warning,
)
_FILTERS = {
    "nearest": Image.Resampling.NEAREST,
    "bilinear": Image.Resampling.BILINEAR,
    "bicubic": Image.Resampling.BICUBIC,
    "lanczos": Image.Resampling.LANCZOS,
}


def decode(encoded: bytes, mode: Literal["RGB", "L"], where: str) -> Image.Image:
    """Decodes one JPEG or PNG.

    Args:
        encoded: the file's bytes.
        mode: of the result; palettes, CMYK, transparency and 16 bits are converted.
        where: the row, for the message, e.g. "Row 3 of input 'image'".

    Raises:
        InvalidTensorError: neither JPEG nor PNG, truncated or broken.
        PayloadTooLargeError: more than `PIXELS_LIMIT` pixels, or too many segments; both are detected before decoding.
    """
    # The plugins are used instead of Image.open: no parser of another format is reachable, and Pillow's process-wide
    # limit on pixels stays under the control of the embedding application.
    if not isinstance(encoded, bytes):
        raise InvalidTensorError(f"{where} is of type {type(encoded).__name__}; encoded images are bytes.")
    opener: type[ImageFile.ImageFile]
    if encoded.startswith(_JPEG):
        opener, kind, problem = JpegImageFile, "JPEG", jpeg_problem(encoded)
    elif encoded.startswith(_PNG):
        opener, kind, problem = PngImageFile, "PNG", png_problem(encoded)
    else:
        raise InvalidTensorError(
            f"{where} is neither JPEG nor PNG: {_opening(encoded)}; send the image file's bytes as they are."
        )
    if problem:
        raise PayloadTooLargeError(
            f"{where} {problem}, which takes too long to read. Save it again with another encoder."
        )
    try:
        image = opener(BytesIO(encoded))
        if image.width * image.height > PIXELS_LIMIT:
            raise PayloadTooLargeError(
                f"{where} has {image.width}x{image.height} pixels; at most {PIXELS_LIMIT} are decoded. Send it smaller."
            )
        return _convert(image, mode)
    except _BROKEN as error:
        raise InvalidTensorError(f"{where} is a broken {kind} of {len(encoded)} bytes: {error}.") from error


def from_pixels(pixels: Pixels) -> Image.Image:
    """Returns one row of decoded pixels, [height, width, 1 or 3] uint8, as an image."""
    return Image.fromarray(pixels[:, :, 0] if pixels.shape[2] == 1 else pixels)


def to_pixels(image: Image.Image) -> Pixels:
    """Returns [height, width, channels] uint8, read-only."""
    pixels = np.asarray(image)
    return pixels[:, :, None] if pixels.ndim == 2 else pixels


def convert(image: Image.Image, mode: Literal["RGB", "L"]) -> Image.Image:
    """Returns the image in `mode`; the image itself if it has this mode."""
    return image if image.mode == mode else image.convert(mode)


def transform(steps: tuple[ImageStep, ...]) -> Transform:
    """Returns the steps as one function."""
    functions = [_crop(step) if isinstance(step, CenterCrop) else _resize(step) for step in steps]

    def apply(image: Image.Image) -> Image.Image:
        for function in functions:
            image = function(image)
        return image

    return apply


def _convert(image: Image.Image, mode: Literal["RGB", "L"]) -> Image.Image:
    image.load()
    if image.mode in ("I;16", "I;16B", "I"):  # Pillow would clip values above 255 instead of scaling
        image = Image.fromarray((np.asarray(image).astype(np.int64) >> 8).clip(0, 255).astype(np.uint8))
    return convert(image, mode)


def _crop(step: CenterCrop) -> Transform:
    def crop(image: Image.Image) -> Image.Image:
        width, height = image.size
        side = max(1, round(step.fraction * min(width, height)))
        if (width, height) == (side, side):
            return image
        left, top = (width - side) // 2, (height - side) // 2
        return image.crop((left, top, left + side, top + side))

    return crop


def _resize(step: Resize) -> Transform:
    size, resample = (step.width, step.height), _FILTERS[step.filter]

    def resize(image: Image.Image) -> Image.Image:
        return image if image.size == size else image.resize(size, resample)

    return resize


def _opening(encoded: bytes) -> str:
    return f"{len(encoded)} bytes that begin with {encoded[:8].hex(' ')}" if encoded else "it is empty"
