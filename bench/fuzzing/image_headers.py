"""JPEG and PNG files that are whole except for their headers: sizes, depths, transparency, EXIF, animation.

The checksums and lengths fit, so that readers look at the values. The estimate of the cost must hold for what is
decoded.
"""

from __future__ import annotations

import io
import struct
import zlib
from random import Random
from typing import NamedTuple

import numpy as np
from msgspec import UNSET
from PIL import Image

from firstline_core.processing.cost import DecodingCost
from firstline_core.processing.images import ImageProcessing
from firstline_core.processing.steps import CenterCrop, Decode, Resize
from firstline_core.protocol.limits import DecodingLimits
from firstline_core.types import Tensor, object_array

_LIMITS = DecodingLimits(pixels=100_000, side=5000, memory_bytes=1 << 20)
_SIZES = (0, 1, 2, 8, 9, 255, 4999, 5001, 65_500, 65_535, 2**31 - 1, 2**31, 2**32 - 1)
_DEPTHS = (0, 1, 2, 3, 4, 8, 8, 8, 12, 16, 16, 255)
_KINDS = ((0, 1), (0, 2), (0, 4), (0, 8), (0, 16), (2, 8), (2, 16), (3, 1), (3, 8), (4, 8), (4, 16), (6, 8), (6, 16))
_CHANNELS = {0: 1, 2: 3, 3: 1, 4: 2, 6: 4}  # of PNG, by colour type


class ImageFile(NamedTuple):
    """A file, and the decode step of its bundle."""

    content: bytes
    step: Decode


def make_image(random: Random) -> ImageFile:
    """Returns a file with an unusual header."""
    background = (9, 99, 199) if random.random() < 0.3 else UNSET
    bits = random.choice((8, 12, 16)) if random.random() < 0.3 else UNSET
    step = Decode(random.choice(("RGB", "BGR", "L")), background, bits)
    return ImageFile(_png(random) if random.random() < 0.6 else _jpeg(random), step)


def read_image(file: ImageFile) -> object:
    """Returns the pixels of an image, if it is accepted.

    Raises:
        RequestError: the image is refused.
        AssertionError: the size or the cost is not what the header promised.
    """
    tensor = Tensor("image", object_array([file.content]))
    whole = ImageProcessing(file.step, (), _LIMITS)
    costs = whole.check_and_measure(tensor)
    cost = DecodingCost((costs,))
    assert cost.pixels <= _LIMITS.pixels, "over the limit of pixels"
    assert cost.memory_bytes <= _LIMITS.memory_bytes, "over the limit of memory"
    pixels = whole.run(tensor, costs)
    assert pixels.size <= cost.memory_bytes, f"{pixels.size} bytes, although it costs {cost.memory_bytes}"
    assert pixels.shape[1] * pixels.shape[2] == cost.pixels, f"{pixels.shape}, although it declares {cost.pixels}"
    small = ImageProcessing(file.step, (CenterCrop(0.5), Resize(4, 4, letterbox="center")), _LIMITS).run(tensor)
    assert small.shape == (1, 4, 4, pixels.shape[3]), f"{small.shape} after the steps"
    return small


def _size(random: Random) -> int:
    return random.choice(_SIZES) if random.random() < 0.05 else random.randint(1, 20)


def _exif(random: Random) -> bytes:
    """Returns TIFF data with an orientation; in half of them, some numbers are wrong."""
    if random.random() < 0.5:
        return b"MM\0*" + struct.pack(">IHHHIHHI", 8, 1, 0x0112, 3, 1, random.randint(1, 8), 0, 0)
    order, first = random.choice(("<", ">")), random.choice((8, 8, 8, 0, 9, 2**31, 2**32 - 1))
    entries = [
        struct.pack(
            order + "HHIHH",
            random.choice((0x0112, 0x0112, 0x010E, 0x8769)),
            random.choice((3, 3, 2, 4, 0, 13, 65_535)),
            random.choice((1, 1, 0, 2, 60_000, 2**32 - 1)),
            random.choice((*range(10), 65_535)),
            0,
        )
        for _ in range(random.randint(0, 3))
    ]
    count = random.choice((len(entries), len(entries), 0, 65_535))
    start = b"II*\0" if order == "<" else b"MM\0*"
    return start + struct.pack(order + "IH", first, count) + b"".join(entries) + bytes(random.choice((0, 4)))


def _chunk(name: bytes, content: bytes) -> bytes:
    return struct.pack(">I", len(content)) + name + content + struct.pack(">I", zlib.crc32(name + content))


def _png(random: Random) -> bytes:
    width, height = _size(random), _size(random)
    colour, bits = random.choice(_KINDS)
    if random.random() < 0.1:
        colour, bits = random.choice((*range(8), 255)), random.choice(_DEPTHS)
    interlace = random.choice((0, 0, 0, 0, 1, 2))
    chunks = [_chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, bits, colour, 0, 0, interlace))]
    if colour == 3 or random.random() < 0.1:
        chunks.append(_chunk(b"PLTE", random.randbytes(3 * random.choice((1, 2, 16, 256, 257)))))
    if random.random() < 0.3:
        chunks.append(_chunk(b"tRNS", random.randbytes(random.choice((0, 1, 2, 5, 6, 6, 256, 300)))))
    if random.random() < 0.1:
        chunks.append(_chunk(b"acTL", random.randbytes(random.choice((0, 4, 8)))))
    if random.random() < 0.3:
        chunks.append(_chunk(b"eXIf", random.choice((b"", b"Exif\0\0")) + _exif(random)))
    row_bytes = 1 + (min(width, 300) * _CHANNELS.get(colour, 1) * bits + 7) // 8
    rows = min(height, 300) + random.choice((0, 0, 0, 0, 0, 0, -1, 1, 30))
    raw = b"".join(b"\0" + random.randbytes(row_bytes - 1) for _ in range(rows))
    chunks.append(_chunk(b"IDAT", zlib.compress(raw)))
    if random.random() < 0.05:
        random.shuffle(chunks)
    return b"\x89PNG\r\n\x1a\n" + b"".join(chunks) + _chunk(b"IEND", b"")


def _jpeg(random: Random) -> bytes:
    width, height = random.randint(1, 20), random.randint(1, 20)
    pixels = np.frombuffer(random.randbytes(width * height * 3), np.uint8).reshape(height, width, 3)
    with io.BytesIO() as file:
        image = Image.fromarray(pixels).convert(random.choice(("RGB", "L", "CMYK")))
        image.save(file, "JPEG", progressive=random.random() < 0.3)
        content = bytearray(file.getvalue())
    frame = next(at for marker in (b"\xff\xc0", b"\xff\xc2") if (at := content.find(marker)) > 0)
    if random.random() < 0.2:
        content[frame + 1] = random.choice((*range(0xC0, 0xD0), 0xC0))
        content[frame + 4] = random.choice(_DEPTHS)
    if random.random() < 0.4:
        struct.pack_into(">HH", content, frame + 5, _size(random) & 0xFFFF, _size(random) & 0xFFFF)
    if random.random() < 0.2:
        content[frame + 9] = random.choice((0, 1, 2, 3, 4, 5, 255))
    if random.random() < 0.2:  # two frames
        content[frame:frame] = content[frame : frame + 2 + int.from_bytes(content[frame + 2 : frame + 4], "big")]
    if random.random() < 0.5:
        exif = b"Exif\0\0" + _exif(random)
        length = len(exif) + 2 + random.choice((0, 0, 0, -1, 1, 200))
        content[2:2] = b"\xff\xe1" + struct.pack(">H", length) + exif
    return bytes(content)
