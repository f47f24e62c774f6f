"""Runs the image steps (decode, centre crop, resize) on one image after the other: JPEG and PNG only.

So at most one decoded original is in memory per request. Errors name the row.

EXIF orientation is not applied, as in the evaluations of model cards and in training pipelines. Transparency is
dropped, not blended.

The number of segments and chunks of a file is limited before decoding. Pillow reads them one by one in Python, and
every scan of a progressive JPEG processes the whole image: a file of 240 KB with a hundred scans of 65 bytes takes 4
seconds, and one with thousands of scans takes minutes.
"""

from __future__ import annotations

import re
import struct
import zlib
from collections.abc import Callable, Sequence
from io import BytesIO
from typing import Literal

import numpy as np
from PIL import Image, ImageFile
from PIL.JpegImagePlugin import MARKER, JpegImageFile
from PIL.PngImagePlugin import PngImageFile

from firstline_core.errors import InvalidTensorError, PayloadTooLargeError
from firstline_core.processing.steps import CHANNELS, CenterCrop, Resize
from firstline_core.types import Array, Tensor

PIXELS_LIMIT = 40_000_000
"""Maximum pixels of an image, and of all rows of a request if no step reduces them."""

SOURCE_PIXELS_LIMIT = 160_000_000
"""Maximum pixels of all rows of a request before any step reduces them: about two seconds of one core."""

JPEG_PIECES_LIMIT = 4096
"""Segments, and bytes outside of segments."""

JPEG_SCANS_LIMIT = 32
"""Encoders write 1 to about 20."""

JPEG_HEAD_LIMIT_BYTES = 16 * 1024 * 1024
"""Before the first scan: colour profile, EXIF, XMP. Pillow joins the parts of EXIF one by one, in quadratic time."""

_PNG_CHUNKS = 1024  # plus one per kilobyte: encoders write 8 KB into each
_PNG_HEAD_BYTES, _PNG_CHUNK_BYTES = 8, 12

_SCAN, _END = 0xDA, 0xD9
# In scan data 0xFF is followed by 0 or a restart marker; otherwise the next segment starts (T.81, section B.1.1).
_AFTER_SCAN = re.compile(rb"\xff[^\x00\xd0-\xd7\xff]")

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


def image_function(steps: tuple[ImageStep, ...], mode: Literal["RGB", "L"] | None) -> Callable[[Tensor], Array]:
    """Returns a function from a bundle's input to pixels, (rows, height, width, channels) uint8.

    Args:
        steps: after decoding.
        mode: of decoded images; None if the input is pixels.
    """
    transform = _transform(steps)

    def original(element: bytes | Pixels, where: str) -> Image.Image:
        if not isinstance(element, np.ndarray):
            return decode(element, mode or "RGB", where)
        image = _from_pixels(element)
        return _in_mode(image, mode) if mode else image

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
    original: Callable[[bytes | Pixels, str], Image.Image],
    transform: Transform,
) -> Array:
    done: list[Pixels] = []
    source_pixels = pixels = 0
    for row, element in enumerate(elements):
        image = original(element, f"Row {row} of input '{name}'")
        source_pixels += image.width * image.height
        found = _to_pixels(transform(image))
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


def _from_pixels(pixels: Pixels) -> Image.Image:
    """Returns one row of decoded pixels, [height, width, 1 or 3] uint8, as an image."""
    return Image.fromarray(pixels[:, :, 0] if pixels.shape[2] == 1 else pixels)


def _to_pixels(image: Image.Image) -> Pixels:
    """Returns [height, width, channels] uint8, read-only."""
    pixels = np.asarray(image)
    return pixels[:, :, None] if pixels.ndim == 2 else pixels


def _in_mode(image: Image.Image, mode: Literal["RGB", "L"]) -> Image.Image:
    """Returns the image in `mode`; the image itself if it has this mode."""
    return image if image.mode == mode else image.convert(mode)


def _transform(steps: tuple[ImageStep, ...]) -> Transform:
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
    return _in_mode(image, mode)


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


def jpeg_problem(encoded: bytes) -> str:
    """Returns why a JPEG is too expensive to decode, as the end of a sentence; "" if it is not.

    It follows the segments like Pillow and libjpeg, up to the end of the image; later data (a second image, a video) is
    not read. Truncated files are refused by Pillow.
    """
    at, pieces, scans = 2, 0, 0
    while at + 1 < len(encoded):
        pieces += 1
        if pieces > JPEG_PIECES_LIMIT:
            return f"is a JPEG of more than {JPEG_PIECES_LIMIT} segments"
        if not scans and at > JPEG_HEAD_LIMIT_BYTES:
            return f"is a JPEG with more than {JPEG_HEAD_LIMIT_BYTES} bytes before its picture"
        marker = encoded[at + 1]
        if encoded[at] != 0xFF or marker == 0xFF:
            at += 1
        elif marker == _END and scans:
            break
        elif marker == _SCAN or _has_length(marker):
            at += 2 + int.from_bytes(encoded[at + 2 : at + 4], "big")
            if marker == _SCAN:
                scans += 1
                if scans > JPEG_SCANS_LIMIT:
                    return f"is a JPEG of more than {JPEG_SCANS_LIMIT} scans"
                following = _AFTER_SCAN.search(encoded, at)
                if following is None:
                    break
                at = following.start()
        else:
            at += 2
    return ""


def _has_length(marker: int) -> bool:
    """Returns whether Pillow skips a segment as a whole; it treats others as two bytes."""
    found = MARKER.get(0xFF00 | marker)
    return found is not None and found[2] is not None


def png_problem(encoded: bytes) -> str:
    """Returns why a PNG is too expensive to decode, as the end of a sentence; "" if it is not."""
    limit = _PNG_CHUNKS + len(encoded) // 1024
    at, chunks = _PNG_HEAD_BYTES, 0
    while at < len(encoded):
        chunks += 1
        if chunks > limit:
            return f"is a PNG of {len(encoded)} bytes in more than {limit} chunks"
        at += _PNG_CHUNK_BYTES + int.from_bytes(encoded[at : at + 4], "big")
    return ""
