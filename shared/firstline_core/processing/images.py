"""Runs the image steps (decode, crop, resize, letterbox) on one image after the other: JPEG and PNG only.

So at most one decoded original is in memory per request. Errors name the row. Every header is checked before any image
is decoded (`image_header.py`).

A decoded image is upright (EXIF), opaque (on the background of the decode step) and has 8 bits. The memory that
decoding and the steps take is estimated before.
"""

from __future__ import annotations

import math
import struct
import zlib
from collections.abc import Sequence
from io import BytesIO

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageFile
from PIL.JpegImagePlugin import JpegImageFile
from PIL.PngImagePlugin import PngImageFile

from firstline_core.errors import InvalidTensorError, PayloadTooLargeError
from firstline_core.processing import image_header
from firstline_core.processing.geometry import SizeStep, crop_side, geometry, placed
from firstline_core.processing.steps import CHANNELS, CenterCrop, Decode, Mode, Resize
from firstline_core.protocol.limits import DEFAULT_DECODING_LIMITS, DecodingLimits
from firstline_core.telemetry.wording import counted
from firstline_core.types import Array, Tensor

PIXELS_LIMIT = 40_000_000
"""Maximum pixels of all rows of a request after the steps."""

SOURCE_PIXELS_LIMIT = 160_000_000
"""Maximum pixels of all rows of a request before any step reduces them: about two seconds of one core.

A larger limit of one image (`DecodingLimits.pixels`) replaces it.
"""

Pixels = Array  # uint8 [height, width, channels]

# Pillow warns about broken metadata, which is an error if warnings are errors.
_BROKEN = (OSError, SyntaxError, ValueError, EOFError, LookupError, TypeError, struct.error, zlib.error, Warning)
_OPENERS: dict[str, type[ImageFile.ImageFile]] = {"JPEG": JpegImageFile, "PNG": PngImageFile}
_FILTERS = {
    "nearest": Image.Resampling.NEAREST,
    "bilinear": Image.Resampling.BILINEAR,
    "bicubic": Image.Resampling.BICUBIC,
    "lanczos": Image.Resampling.LANCZOS,
}
# What makes an image upright, by EXIF's orientation.
_UPRIGHT = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}
_BLACK = (0, 0, 0)
_ROW_POINTER_BYTES = 8
_COEFFICIENT_BYTES = 2
_FULL_RANGE = 65535
_STRIP_ROWS = 64
_PART_OF_RANGE = 64  # high bytes below this: at most 14 of 16 bits are used


class ImageProcessing:
    """The image steps of a model, from a bundle's input to pixels, (rows, height, width, channels) uint8.

    Args:
        decode: the decode step; None if the input is pixels.
        steps: after decoding.
        limits: of one image.
        later_bytes: bytes that the steps after these hold for each value of the result.
    """

    def __init__(
        self,
        decode: Decode | None,
        steps: tuple[SizeStep, ...],
        limits: DecodingLimits = DEFAULT_DECODING_LIMITS,
        later_bytes: int = 0,
    ) -> None:
        self._decode = decode
        self._mode = decode.mode if decode is not None else None
        self._steps = steps
        self._limits = limits
        self._later_bytes = later_bytes

    def check_and_measure(self, tensor: Tensor) -> tuple[image_header.MeasuredImage, ...]:
        """Checks the images of a request against the limits, and returns what each costs; reads only their headers.

        Returns () for pixels that need no step.

        Raises:
            InvalidTensorError: an image that cannot be decoded, as far as its header says.
            PayloadTooLargeError: an image, or all together, over a limit.
        """
        array = tensor.array
        if not array.dtype.hasobject:
            _check_pixels(tensor)
            if self._passes(array):
                return ()
        source_limit = max(SOURCE_PIXELS_LIMIT, self._limits.pixels)
        measured: list[image_header.MeasuredImage] = []
        source_pixels = pixels = 0
        for row, element in enumerate(array):
            if not measured or array.dtype.hasobject:  # rows of pixels have one size
                image = self._measured(element, f"Row {row} of input '{tensor.name}'")
            measured.append(image)
            source_pixels += image.header.pixels
            pixels += image.result_pixels
            for total, limit in ((source_pixels, source_limit), (pixels, PIXELS_LIMIT)):
                if total > limit:
                    raise PayloadTooLargeError(
                        f"Input '{tensor.name}' has more than {limit} pixels by row {row}; send fewer or smaller "
                        "images."
                    )
        return tuple(measured)

    def run(self, tensor: Tensor, costs: Sequence[image_header.MeasuredImage] | None = None) -> Array:
        """Runs the steps.

        Args:
            tensor: images, or pixels.
            costs: from `check_and_measure`, of this tensor; None to read the headers now.

        Raises:
            InvalidTensorError: a row that is not an image, or of another size than the others.
            PayloadTooLargeError: see `check_and_measure`.
        """
        images = self.check_and_measure(tensor) if costs is None else costs
        if not tensor.array.dtype.hasobject and self._passes(tensor.array):
            return tensor.array
        done: list[Pixels] = []
        for row, (element, image) in enumerate(zip(tensor.array, images, strict=True)):
            picture = self._original(element, image.header, f"Row {row} of input '{tensor.name}'")
            for step in self._steps:
                picture = _applied(picture, step)
            found = _to_pixels(picture, reverse=self._mode == "BGR")
            if done and found.shape != done[0].shape:
                raise InvalidTensorError(
                    f"Row {row} of input '{tensor.name}' has {found.shape[1]}x{found.shape[0]} pixels and row 0 has "
                    f"{done[0].shape[1]}x{done[0].shape[0]}; this model does not resize, so send images of one size."
                )
            done.append(found)
        return done[0][None] if len(done) == 1 else np.stack(done)

    def geometry(self, tensor: Tensor, costs: Sequence[image_header.MeasuredImage]) -> NDArray[np.float32]:
        """Returns where the result of `run` lies in the upright images: FP32 (rows, 6), see `processing/geometry.py`.

        Args:
            tensor: images, or pixels.
            costs: from `check_and_measure`, of this tensor.
        """
        if costs:
            return geometry([image.header.upright_size for image in costs], self._steps)
        rows, height, width, _ = tensor.array.shape
        return geometry([(width, height)] * rows, self._steps)

    def _passes(self, array: Array) -> bool:
        """Returns whether pixels need no step."""
        if self._steps or self._mode == "BGR":
            return False
        return self._mode is None or array.shape[3] == CHANNELS[self._mode]

    def _measured(self, element: bytes | Pixels, where: str) -> image_header.MeasuredImage:
        """Returns the cost of one image within the limits."""
        if isinstance(element, np.ndarray):
            height, width, channels = element.shape
            header, encoded_bytes = image_header.ImageHeader("pixels", width, height, channels), 0
        else:
            header, encoded_bytes = checked_header(element, self._limits, where), len(element)
        image = _measure(header, self._decode, self._steps, self._later_bytes, encoded_bytes)
        if image.working_bytes > self._limits.memory_bytes:
            raise PayloadTooLargeError(
                f"{where} has {header.width}x{header.height} pixels, which take {image.working_bytes} bytes of memory; "
                f"at most {self._limits.memory_bytes} are used (decoding.memory_limit_bytes). Send it smaller."
            )
        return image

    def _original(self, element: bytes | Pixels, header: image_header.ImageHeader, where: str) -> Image.Image:
        if not isinstance(element, np.ndarray):
            return _decoded(element, header, self._decode or Decode(), where)
        image = Image.fromarray(element[:, :, 0] if element.shape[2] == 1 else element)
        return _in_mode(image, self._mode) if self._mode else image


def decode(encoded: bytes, step: Decode, where: str, limits: DecodingLimits = DEFAULT_DECODING_LIMITS) -> Image.Image:
    """Decodes one JPEG or PNG.

    Args:
        encoded: the file's bytes.
        step: mode of the result, background and depth.
        where: the row, for the message, e.g. "Row 3 of input 'image'".
        limits: of its declared size.

    Raises:
        InvalidTensorError: neither JPEG nor PNG, animated, truncated or broken.
        PayloadTooLargeError: over a limit, or too many segments; both are detected before decoding.
    """
    return _decoded(encoded, checked_header(encoded, limits, where), step, where)


def _decoded(encoded: bytes, header: image_header.ImageHeader, step: Decode, where: str) -> Image.Image:
    """Decodes an image whose header was checked."""
    # The plugins are used instead of Image.open: no parser of another format is reachable, and Pillow's process-wide
    # limit on pixels stays under the control of the embedding application.
    try:
        opaque = _in_mode(_opaque(_loaded(encoded, header, where), header, step, where), step.mode)
        return opaque.transpose(_UPRIGHT[header.orientation]) if header.orientation > 1 else opaque
    except _BROKEN as error:
        raise InvalidTensorError(
            f"{where} is a broken {header.kind} of {counted(len(encoded), 'byte')}: "
            f"{error}.{image_header.damage_hint(encoded)}"
        ) from error


def _loaded(encoded: bytes, header: image_header.ImageHeader, where: str) -> Image.Image:
    """Returns the image as Pillow reads it."""
    image = _OPENERS[header.kind](
        BytesIO(image_header.as_four_channels(encoded) if header.is_wide_grey_alpha else encoded)
    )
    if image.size != (header.width, header.height):
        raise InvalidTensorError(f"{where} is a broken {header.kind}: it declares two sizes.")
    image.load()
    if header.kind == "PNG" and _may_lack_rows(image, header) and image_header.lacks_rows(encoded, header):
        raise InvalidTensorError(
            f"{where} is a truncated PNG: its compressed data ends before its last row. Give the whole file."
        )
    return image


def checked_header(encoded: bytes, limits: DecodingLimits, where: str) -> image_header.ImageHeader:
    """Returns the header of an image within the limits; see `read_header` and `check_limits`."""
    header = image_header.read_header(encoded, where)
    image_header.check_limits(header, limits, where)
    return header


def _check_pixels(tensor: Tensor) -> None:
    shape = tensor.array.shape
    if len(shape) != 4 or shape[3] not in CHANNELS.values() or 0 in shape:
        raise InvalidTensorError(
            f"Input '{tensor.name}' has shape {list(shape)}; pixels come as UINT8 [rows, height, width, 1 or 3], none "
            "of them 0."
        )


def _may_lack_rows(image: Image.Image, header: image_header.ImageHeader) -> bool:
    """Returns whether a PNG's last row may not have been written: Pillow begins with zeros."""
    if header.interlaced:
        return True
    return image.crop((0, image.height - 1, image.width, image.height)).getbbox(alpha_only=False) is None


def _opaque(image: Image.Image, header: image_header.ImageHeader, step: Decode, where: str) -> Image.Image:
    """Returns an image of 8 bits without transparency."""
    if header.bits == 16:
        image = _of_8_bits(image, header, step, where)
    if not header.alpha:
        return image
    key = image.info.get("transparency")
    if image.mode == "L" and header.bits < 8 and isinstance(key, int):
        # Pillow scales the values of 2 and 4 bits to 8 bits, but not the value that is transparent.
        image.info["transparency"] = key * 255 // (2**header.bits - 1)
    if image.mode != "RGBA":
        image = image.convert("RGBA")
    background = Image.new("RGB", image.size, step.background or _BLACK)
    background.paste(image, mask=image)
    return background


def _of_8_bits(image: Image.Image, header: image_header.ImageHeader, step: Decode, where: str) -> Image.Image:
    """Scales a 16-bit image. Pillow takes the high byte of colours, and would clip greyscale values above 255."""
    if header.is_wide_grey_alpha:
        high, low, alpha, _ = image.split()
        both = Image.merge("LA", (high, low)).tobytes()
        scaled = _scaled_grey(Image.frombytes("I;16", image.size, both, "raw", "I;16B"), step, where)
        scaled.putalpha(alpha)
        return scaled
    if header.is_wide_grey:
        return _scaled_grey(image, step, where)
    colours = image.convert("RGB") if image.mode != "RGB" else image
    if (step.bits or 16) != 16 or (not step.bits and _extrema(colours)[1] < _PART_OF_RANGE):
        raise InvalidTensorError(f"{where} has colours of 16 bits of which only a part is used; save it with 8 bits.")
    return image


def _scaled_grey(image: Image.Image, step: Decode, where: str) -> Image.Image:
    """Scales greyscale of 16 bits by the declared depth, or by its own range; with alpha if a value is transparent.

    In strips, which take little memory.
    """
    low, high = _extrema(image)
    if step.bits:
        low, most = 0, 2**step.bits - 1
        if high > most:
            raise InvalidTensorError(
                f"{where} has the value {high:.0f}, but the bundle declares images of {step.bits} bits; send images of "
                "that depth, or correct 'bits' of its decode step."
            )
    else:
        low, most = (low, high) if high > low else (0, _FULL_RANGE)
    scale = 255 / (most - low)
    key = image.info.get("transparency")
    scaled = Image.new("L" if key is None else "LA", image.size)
    for box in _strips(image):
        strip = image.crop(box)
        part = strip.point(lambda value: value * scale + (0.5 - low * scale)).convert("L")
        if key is not None:
            part.putalpha(Image.fromarray(np.where(np.asarray(strip) == key, np.uint8(0), np.uint8(255))))
        scaled.paste(part, box)
    return scaled


def _strips(image: Image.Image) -> list[tuple[int, int, int, int]]:
    """Returns boxes of a few rows that cover an image."""
    width, height = image.size
    return [(0, top, width, min(top + _STRIP_ROWS, height)) for top in range(0, height, _STRIP_ROWS)]


def _extrema(image: Image.Image) -> tuple[float, float]:
    """Returns the lowest and the highest value of all channels.

    In strips: Pillow lets no other thread run while it looks for the extreme values of an image.
    """
    found = [image.crop(box).getextrema() for box in _strips(image)]
    return float(np.min(found)), float(np.max(found))


def _to_pixels(image: Image.Image, *, reverse: bool) -> Pixels:
    """Returns [height, width, channels] uint8, read-only; `reverse` makes BGR of RGB."""
    if reverse:
        return np.frombuffer(image.tobytes("raw", "BGR"), np.uint8).reshape(image.height, image.width, 3)
    pixels = np.asarray(image)
    return pixels[:, :, None] if pixels.ndim == 2 else pixels


def _in_mode(image: Image.Image, mode: Mode) -> Image.Image:
    """Returns the image in Pillow's form of `mode`, RGB for BGR; the image itself if it has this form."""
    form = "L" if mode == "L" else "RGB"
    return image if image.mode == form else image.convert(form)


def _applied(image: Image.Image, step: SizeStep) -> Image.Image:
    """Returns an image after a step."""
    if isinstance(step, CenterCrop):
        width, height = image.size
        side = crop_side(step, width, height)
        left, top = (width - side) // 2, (height - side) // 2
        return image if (width, height) == (side, side) else image.crop((left, top, left + side, top + side))
    place = placed(step, *image.size)
    if image.size != place[:2]:
        image = image.resize(place[:2], _FILTERS[step.filter])
    if place[:2] == (step.width, step.height):
        return image
    padded = Image.new(image.mode, (step.width, step.height), (step.pad or 0,) * len(image.getbands()))
    padded.paste(image, place[2:])
    return padded


def _measure(
    header: image_header.ImageHeader,
    decode: Decode | None,
    steps: Sequence[SizeStep],
    later_bytes: int,
    encoded_bytes: int,
) -> image_header.MeasuredImage:
    """Estimates the memory that is held while one image is processed.

    Pillow stores 1, 2 or 4 bytes a pixel and a pointer for each row, and each operation makes a new image.

    Args:
        header: of the image, checked.
        decode: the decode step; None if images come as pixels and keep their channels.
        steps: after decoding.
        later_bytes: bytes that the steps after these hold for each value of the result.
        encoded_bytes: of the file; 0 of pixels.
    """
    channels = CHANNELS[decode.mode] if decode is not None else header.channels
    sizes = _sizes(header, steps)
    result_pixels = math.prod(sizes[-1])
    result = result_pixels * channels
    result_bytes = (2 + later_bytes) * result
    steps_bytes = _steps_bytes(sizes, steps, _pillow_bytes(channels)) + 2 * result
    working_bytes = max(_decoding_bytes(header, channels), steps_bytes, result_bytes)
    return image_header.MeasuredImage(header, result_pixels, working_bytes, result_bytes, encoded_bytes)


def _decoding_bytes(header: image_header.ImageHeader, channels: int) -> int:
    """Estimates the most memory that is held until an image is upright, opaque and has `channels` channels."""

    def held(bytes_per_pixel: int) -> int:
        return _held(header.width, header.height, bytes_per_pixel)

    # Of a pixel that Pillow stores when it decodes the file, and of the result.
    own = header.bits // 8 if header.is_wide_grey else _pillow_bytes(header.channels)
    wanted = _pillow_bytes(channels)
    stages = [held(own)]
    if header.progressive:
        stages[0] += header.pixels * header.channels * _COEFFICIENT_BYTES
    if header.is_wide_grey:
        own = 4 if header.alpha else 1
        stages.append(held(2) + held(own))
    if header.is_wide_grey_alpha:  # four channels, each of them alone, two of them together, their bytes, 16 bits
        stages.append(held(4) + held(4) + held(4) + 2 * held(2))
    if header.alpha:
        stages += [held(4 if own == 4 and not header.palette else own + 4), held(8)]
        if channels == 1:
            stages.append(held(5))
    elif own != wanted or header.palette or header.channels != channels:
        stages.append(held(own + wanted))
    if header.orientation > 1:
        stages.append(2 * held(wanted))
    return max(stages)


def _steps_bytes(sizes: Sequence[tuple[int, int]], steps: Sequence[SizeStep], bytes_per_pixel: int) -> int:
    """Adds up the upright image and all images that the steps make of it: an upper bound, since some are freed."""
    total = _held(*sizes[0], bytes_per_pixel)
    for step, before, after in zip(steps, sizes, sizes[1:], strict=False):
        if isinstance(step, CenterCrop):
            total += _held(*after, bytes_per_pixel)
        elif after != before:  # Pillow resizes the columns first, then the rows
            images = 2 if step.letterbox else 1  # the resized picture, and the padded one
            total += _held(after[0], before[1], bytes_per_pixel) + images * _held(*after, bytes_per_pixel)
    return total


def _sizes(header: image_header.ImageHeader, steps: Sequence[SizeStep]) -> list[tuple[int, int]]:
    """Returns (width, height) of the upright image, and after each step."""
    sizes = [header.upright_size]
    for step in steps:
        if isinstance(step, Resize):
            sizes.append((step.width, step.height))
        else:
            sizes.append((crop_side(step, *sizes[-1]),) * 2)
    return sizes


def _held(width: int, height: int, bytes_per_pixel: int) -> int:
    """Returns the bytes of images of one size; rows begin at multiples of 4."""
    images = 2 if bytes_per_pixel > 4 else 1
    return height * (images * _ROW_POINTER_BYTES + ((width * bytes_per_pixel + 4 * images - 1) & -4))


def _pillow_bytes(channels: int) -> int:
    """Returns the bytes of a pixel of 8 bits a channel: Pillow stores three channels in four bytes."""
    return 1 if channels == 1 else 4
