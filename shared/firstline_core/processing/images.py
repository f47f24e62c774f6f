"""Encoded images to pixels, one image at a time: JPEG and PNG only, with every failure named by its row.

EXIF orientation is not applied: model cards evaluate without, and training pipelines decode without. Transparency is
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
"""Largest image that is decoded, and largest sum over a request's rows where no step makes them smaller."""

SOURCE_PIXELS_LIMIT = 160_000_000
"""Largest sum over a request's rows before any step makes them smaller: some two seconds of one core."""

ImageStep = CenterCrop | Resize
Pixels = Array  # uint8 [height, width, channels]
Transform = Callable[[Image.Image], Image.Image]

_JPEG, _PNG = b"\xff\xd8\xff", b"\x89PNG\r\n\x1a\n"
# Pillow warns of broken metadata; where warnings are errors, that is one more way to say that a file is broken.
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
        PayloadTooLargeError: more than `PIXELS_LIMIT` pixels, or more pieces than any encoder writes; both are found
            before anything is decoded.
    """
    # The plugins themselves, not Image.open: no other format's parser is reachable, and Pillow's own limit on pixels,
    # a setting of the whole process, stays the embedding application's.
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
        raise PayloadTooLargeError(f"{where} {problem}, which takes too long to read. Save it anew.")
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
    """One row of decoded pixels, [height, width, 1 or 3] uint8, as an image."""
    return Image.fromarray(pixels[:, :, 0] if pixels.shape[2] == 1 else pixels)


def to_pixels(image: Image.Image) -> Pixels:
    """[height, width, channels] uint8; read-only, sharing no memory that anyone writes."""
    pixels = np.asarray(image)
    return pixels[:, :, None] if pixels.ndim == 2 else pixels


def convert(image: Image.Image, mode: Literal["RGB", "L"]) -> Image.Image:
    """The image in `mode`, itself where it has it."""
    return image if image.mode == mode else image.convert(mode)


def transform(steps: tuple[ImageStep, ...]) -> Transform:
    """The steps as one function."""
    functions = [_crop(step) if isinstance(step, CenterCrop) else _resize(step) for step in steps]

    def apply(image: Image.Image) -> Image.Image:
        for function in functions:
            image = function(image)
        return image

    return apply


def _convert(image: Image.Image, mode: Literal["RGB", "L"]) -> Image.Image:
    image.load()
    if image.mode in ("I;16", "I;16B", "I"):  # Pillow would cut off above 255 instead of scaling
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
