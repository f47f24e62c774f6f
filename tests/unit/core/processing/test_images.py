from __future__ import annotations

import io
import struct
import zlib

import numpy as np
import pytest
from PIL import Image

from firstline_core.errors import FirstlineError, PayloadTooLargeError
from firstline_core.processing.images import decode, jpeg_problem, png_problem


def encoded(kind: str, side: int = 64, **options: object) -> bytes:
    noise = np.random.default_rng(0).integers(0, 256, (side, side, 3), np.uint8)
    with io.BytesIO() as file:
        Image.fromarray(noise).save(file, kind, **options)  # type: ignore[arg-type]
        return file.getvalue()


def segment(marker: int, content: bytes) -> bytes:
    return bytes([0xFF, marker]) + struct.pack(">H", len(content) + 2) + content


def chunk(name: bytes, content: bytes) -> bytes:
    return struct.pack(">I", len(content)) + name + content + struct.pack(">I", zlib.crc32(name + content))


JPEG, PROGRESSIVE, PNG = encoded("JPEG"), encoded("JPEG", progressive=True), encoded("PNG")
LAST_SCAN = PROGRESSIVE[PROGRESSIVE.rindex(b"\xff\xda") : -2]

DEAR = {
    "segments": JPEG[:2] + segment(0xE5, b"x") * 10_000 + JPEG[2:],
    "scans": PROGRESSIVE[:-2] + LAST_SCAN * 100 + PROGRESSIVE[-2:],
    "an end inside a comment, then scans": PROGRESSIVE[:-2]
    + segment(0xFE, b"\xff\xd9")
    + LAST_SCAN * 100
    + PROGRESSIVE[-2:],
    "junk between segments": JPEG[:2] + segment(0xE5, b"x") + b"\0" * 10_000 + JPEG[2:],
    "padding": JPEG[:2] + b"\xff" * 10_000 + JPEG[2:],
    "what Pillow reads byte by byte": JPEG[:2] + b"\xff\xf0" * 10_000 + JPEG[2:],
    "EXIF by the megabyte": JPEG[:2] + segment(0xE1, b"Exif\0\0" + bytes(65_000)) * 300 + JPEG[2:],
    "chunks": PNG[:33] + chunk(b"abCd", b"") * 10_000 + PNG[33:],
    "text chunks": PNG[:33] + chunk(b"tEXt", b"k\0v") * 10_000 + PNG[33:],
    "chunks after the picture": PNG[:-12] + chunk(b"IDAT", b"") * 10_000 + PNG[-12:],
}
BOMB = zlib.compress(bytes(100_000_000), 9)
MEGABYTE = zlib.compress(bytes(1_000_000))
BOMBS = {
    "compressed text": PNG[:33] + chunk(b"zTXt", b"k\0\0" + BOMB) + PNG[33:],
    "compressed international text": PNG[:33] + chunk(b"iTXt", b"k\0\1\0\0\0" + BOMB) + PNG[33:],
    "colour profile": PNG[:33] + chunk(b"iCCP", b"k\0\0" + BOMB) + PNG[33:],
    "many texts": PNG[:33] + b"".join(chunk(b"zTXt", b"%d\0\0" % number + MEGABYTE) for number in range(70)) + PNG[33:],
}


@pytest.mark.parametrize("name", DEAR)
def test_costly_images_are_refused_before_decoding(name: str) -> None:
    with pytest.raises(PayloadTooLargeError, match=r"Row 0 is a (JPEG|PNG) .*which takes too long to read"):
        decode(DEAR[name], "RGB", "Row 0")


@pytest.mark.parametrize("name", BOMBS)
def test_metadata_that_inflates_is_refused(name: str) -> None:
    with pytest.raises(FirstlineError, match="Row 0 is a broken PNG"):
        decode(BOMBS[name], "RGB", "Row 0")


@pytest.mark.parametrize("options", [{}, {"quality": 5}, {"progressive": True}, {"restart_marker_blocks": 1}])
def test_images_of_common_encoders_are_decoded(options: dict[str, object]) -> None:
    plain = encoded("JPEG", **options)
    assert jpeg_problem(plain) == ""
    assert jpeg_problem(plain[:2] + segment(0xE2, bytes(65_000)) * 100 + plain[2:]) == ""


def test_a_second_picture_after_the_end_does_not_count() -> None:
    assert jpeg_problem(JPEG + JPEG * 200) == ""


@pytest.mark.parametrize("side", [1, 64, 1000])
def test_png_images_of_common_encoders_are_decoded(side: int) -> None:
    assert png_problem(encoded("PNG", side)) == ""


@pytest.mark.parametrize("content", [JPEG, PROGRESSIVE, PNG])
def test_truncated_images_are_examined_without_errors(content: bytes) -> None:
    for end in range(3, len(content), 97):
        assert jpeg_problem(content[:end]) == ""
        assert png_problem(content[:end]) == ""
