"""Pixels as a client sends them: encoded, one image for each row."""

import io
import struct
import threading
import zlib
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from firstline_core.types import Arrays, Tensor


def encode(pixels: NDArray[Any], kind: str = "PNG", **options: Any) -> bytes:
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, kind, **options)
    return file.getvalue()


def turned(pixels: NDArray[Any], orientation: int = 6, kind: str = "JPEG") -> bytes:
    """An image whose EXIF data say how it lies; with 6 its upright form is as wide as these pixels are high."""
    exif = Image.Exif()
    exif[0x0112] = orientation
    return encode(pixels, kind, exif=exif)


def grey(shade: int = 100, side: int = 8) -> bytes:
    """A PNG of one shade."""
    return encode(np.full((side, side), shade, np.uint8))


def png_chunk(name: bytes, content: bytes) -> bytes:
    return struct.pack(">I", len(content)) + name + content + struct.pack(">I", zlib.crc32(name + content))


def raw_png(
    width: int,
    height: int,
    colour: int = 0,
    bits: int = 8,
    *,
    interlace: int = 0,
    extra: bytes = b"",
    data: bytes = b"",
) -> bytes:
    """A PNG whose parts need not agree: its header, extra chunks, and its data before their compression."""
    head = png_chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, bits, colour, 0, 0, interlace))
    pixels = png_chunk(b"IDAT", zlib.compress(data))
    return b"\x89PNG\r\n\x1a\n" + head + extra + pixels + png_chunk(b"IEND", b"")


def noise(seed: int = 0, side: int = 8) -> bytes:
    """A PNG that does not compress."""
    return encode(np.random.default_rng(seed).integers(0, 256, (side, side), np.uint8))


def image_threads() -> set[threading.Thread]:
    """The threads of this process that have decoded large images."""
    return {thread for thread in threading.enumerate() if thread.name.startswith("images")}


def images(*encoded: bytes, name: str = "image") -> Tensor:
    array = np.empty(len(encoded), object)
    array[:] = encoded
    return Tensor(name, array)


def by_name(*tensors: Tensor) -> Arrays:
    """The inputs of a request by name."""
    return {tensor.name: tensor.array for tensor in tensors}
