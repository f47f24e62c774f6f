"""Reads what a JPEG or PNG file says about itself, without decoding it.

No pixel is decoded and nothing is allocated here: a file of 69 bytes may declare 40 million pixels.

The number of segments and chunks of a file is limited too. Pillow reads them one by one in Python, and every scan of a
progressive JPEG processes the whole image: a file of 240 KB with a hundred scans of 65 bytes takes 4 seconds, and one
with thousands of scans takes minutes.
"""

from __future__ import annotations

import base64
import re
import struct
import zlib
from collections.abc import Iterator
from typing import Literal, NamedTuple

from msgspec import Struct

from firstline_core.errors import InvalidTensorError, PayloadTooLargeError
from firstline_core.protocol.limits import DecodingLimits
from firstline_core.telemetry.wording import counted

JPEG_PIECES_LIMIT = 4096
"""Segments."""

JPEG_JUNK_LIMIT_BYTES = 1024
"""Outside of segments: padding, and markers without content. Encoders write few or none.

In scan data this limits the padding in a row: libjpeg reads it from its first byte again with each block of the file.
"""

JPEG_SCANS_LIMIT = 32
"""Encoders write 1 to about 20."""

JPEG_HEAD_LIMIT_BYTES = 16 * 1024 * 1024
"""Before the first scan: colour profile, EXIF, XMP."""

JPEG_EXIF_LIMIT = 256
"""Segments of EXIF, of which files have one. Pillow joins them one by one, in quadratic time."""

_SCANNED_PIXELS = 256_000_000  # of all scans of a JPEG together: 25 million pixels in the ten scans of common encoders

_PNG_CHUNKS = 1024  # plus one per kilobyte: encoders write 8 KB into each
_PNG_HEAD_BYTES, _PNG_CHUNK_BYTES = 8, 12

_SCAN, _END, _EXIF = 0xDA, 0xD9, 0xE1
_FRAMES = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}  # T.81, table B.1: SOF0 to SOF15
_PROGRESSIVE = frozenset({0xC2, 0xC6, 0xCA, 0xCE})
# Of a segment whose first two bytes are its length; TEM, RSTn, SOI, EOI and reserved markers have none. Pillow skips
# the same (`JpegImagePlugin.MARKER`).
_WITH_LENGTH = (
    frozenset(range(0xC0, 0x100)) - frozenset(range(0xD0, 0xDA)) - frozenset(range(0xF0, 0xFE)) - {0xC8, 0xFF}
)
# In scan data 0xFF is followed by 0 or a restart marker; otherwise the next segment starts (T.81, section B.1.1).
_AFTER_SCAN = re.compile(rb"\xff[^\x00\xd0-\xd7\xff]")

_MARKER = re.compile(rb"\xff[^\xff]")  # any number of 0xFF may precede it
_PADDING = b"\xff" * (JPEG_JUNK_LIMIT_BYTES + 1)

_JPEG, _PNG = b"\xff\xd8\xff", b"\x89PNG\r\n\x1a\n"
_EXIF_START = b"Exif\0\0"
_PNG_CHANNELS = {0: 1, 2: 3, 3: 1, 4: 2, 6: 4}  # by colour type
_PALETTE, _GREY_ALPHA, _RGBA = 3, 4, 6
_ADAM7 = ((0, 0, 8, 8), (4, 0, 8, 8), (0, 4, 4, 8), (2, 0, 4, 4), (0, 2, 2, 4), (1, 0, 2, 2), (0, 1, 1, 2))

_OTHER_FORMATS = {b"GIF87a": "GIF", b"GIF89a": "GIF", b"BM": "BMP", b"II*\0": "TIFF", b"MM\0*": "TIFF", b"%PDF": "PDF"}
_RECORDINGS = (b"RIFF", b"fLaC", b"OggS")
_HEIF_BRANDS = {b"avif": "AVIF", b"avis": "AVIF", b"heic": "HEIC", b"heix": "HEIC", b"mif1": "HEIC"}
_BASE64_STARTS = (b"iVBORw0KGgo", b"/9j/", b"R0lGOD", b"UklGR", b"data:")
_DAMAGE_SURE_BYTES = 2048  # length of compressed data that is without any line break only if the file is damaged

_ORIENTATION = 0x0112
_TIFF_SIZES = {1: 1, 2: 1, 3: 2, 4: 4, 5: 8, 6: 1, 7: 1, 8: 2, 9: 4, 10: 8, 11: 4, 12: 8, 13: 4, 16: 8}
_TIFF_ENTRY_BYTES = 12


class ImageHeader(Struct, frozen=True):
    """The declarations of a file about its image.

    Args:
        kind: format of the file.
        width: in pixels, as stored: before the orientation is applied.
        height: in pixels, as stored.
        channels: of the file, alpha included; 1 for palettes.
        bits: of each channel; JPEG files of other than 8 bits are refused.
        palette: whether pixels are indices of a palette.
        alpha: whether pixels may be transparent.
        interlaced: PNG: in seven passes.
        scans: JPEG: number of scans.
        progressive: JPEG: whether libjpeg holds the coefficients of the whole image.
        orientation: EXIF's value, 1 to 8; 1 is upright.
        complete: whether the file has its end; only known for PNG.
    """

    kind: Literal["JPEG", "PNG", "pixels"]
    width: int
    height: int
    channels: int
    bits: int = 8
    palette: bool = False
    alpha: bool = False
    interlaced: bool = False
    scans: int = 1
    progressive: bool = False
    orientation: int = 1
    complete: bool = True

    @property
    def pixels(self) -> int:
        return self.width * self.height

    @property
    def upright_size(self) -> tuple[int, int]:
        """Returns (width, height) after the orientation is applied."""
        return (self.width, self.height) if self.orientation <= 4 else (self.height, self.width)

    @property
    def is_wide_grey(self) -> bool:
        """Returns whether this is a greyscale image of 16 bits, which Pillow does not convert."""
        return self.bits == 16 and self.channels == 1

    @property
    def is_wide_grey_alpha(self) -> bool:
        """Returns whether this is a greyscale image of 16 bits with alpha, of which Pillow drops the low bytes."""
        return self.bits == 16 and self.channels == 2


class MeasuredImage(NamedTuple):
    """The cost of processing one image.

    Attributes:
        header: of the image, checked.
        result_pixels: after the image steps.
        working_bytes: the most that is held at one moment while it is processed.
        result_bytes: that its result, and what later steps make of it, take while the other rows are processed.
        encoded_bytes: of the file; 0 of pixels.
    """

    header: ImageHeader
    result_pixels: int
    working_bytes: int
    result_bytes: int
    encoded_bytes: int = 0


def read_header(encoded: bytes, where: str, *, whole: bool = True) -> ImageHeader:
    """Reads the header of one JPEG or PNG.

    Args:
        encoded: the file's bytes.
        where: the row, for messages, e.g. "Row 3 of input 'image'".
        whole: follow a JPEG to its end; otherwise only to its picture, without the scans and most limits: enough for
            the size of an image that was decoded before.

    Raises:
        InvalidTensorError: neither JPEG nor PNG, animated, or a header that cannot be read.
        PayloadTooLargeError: its structure takes too long to read.
    """
    check_format(encoded, where)
    return _jpeg_header(encoded, where, whole=whole) if encoded.startswith(_JPEG) else _png_header(encoded, where)


def check_format(encoded: bytes, where: str) -> None:
    """Checks that a file begins like a JPEG or a PNG.

    Raises:
        InvalidTensorError: it does not; the message says what it is, if that is known.
    """
    if not isinstance(encoded, bytes):
        raise InvalidTensorError(f"{where} is of type {type(encoded).__name__}; encoded images are bytes.")
    if not is_encoded_image(encoded):
        raise InvalidTensorError(f"{where} is {_other_format(encoded)}")


def is_encoded_image(content: bytes) -> bool:
    """Returns whether a file begins like a JPEG or a PNG."""
    return content.startswith((_JPEG, _PNG))


def check_limits(header: ImageHeader, limits: DecodingLimits, where: str) -> None:
    """Checks the declared size of an image.

    Raises:
        InvalidTensorError: it has no pixels, or ends early.
        PayloadTooLargeError: more pixels, or a longer side, than `limits` allow; or too many scans for its pixels.
    """
    size = f"{header.width}x{header.height} pixels"
    if not header.pixels:
        raise InvalidTensorError(f"{where} is a broken {header.kind}: it declares {size}.")
    if header.pixels > limits.pixels:
        raise PayloadTooLargeError(
            f"{where} has {size}; at most {limits.pixels} are decoded (decoding.pixels_limit). Send it smaller."
        )
    if max(header.width, header.height) > limits.side:
        raise PayloadTooLargeError(
            f"{where} has {size}; a side has at most {limits.side} (decoding.side_limit). Send it smaller."
        )
    if header.scans > 1 and header.pixels * header.scans > _SCANNED_PIXELS:
        raise PayloadTooLargeError(
            f"{where} has {size} in {header.scans} scans, which takes too long to read. Save it as a baseline JPEG."
        )
    if not header.complete:
        raise InvalidTensorError(f"{where} is a truncated {header.kind}: its end is missing. Give the whole file.")


def lacks_rows(encoded: bytes, header: ImageHeader) -> bool:
    """Returns whether a PNG's compressed data ends before its last row, which Pillow does not notice.

    It inflates the data once more without storing it.
    """
    missing = _png_data_bytes(header)
    inflate = zlib.decompressobj()
    for name, start, end in _chunks(encoded):
        if name != b"IDAT":
            continue
        data = encoded[start:end]
        while data and missing > 0 and not inflate.eof:
            missing -= len(inflate.decompress(data, 1 << 20))
            data = inflate.unconsumed_tail
        if missing <= 0:
            return False
    return missing > len(inflate.flush())


def as_four_channels(encoded: bytes) -> bytes:
    """Returns a PNG of greyscale and alpha with 16 bits as one of four channels with 8 bits.

    Only the header differs: a pixel has the same four bytes. A wrong checksum stays wrong.
    """
    start, end = next((start, end) for name, start, end in _chunks(encoded) if name == b"IHDR" and end - start >= 13)
    before, checksum = encoded[start:end], int.from_bytes(encoded[end : end + 4], "big")
    after = before[:8] + bytes((8, _RGBA)) + before[10:]
    checksum ^= zlib.crc32(b"IHDR" + before) ^ zlib.crc32(b"IHDR" + after)
    return encoded[:start] + after + checksum.to_bytes(4, "big") + encoded[end + 4 :]


def damage_hint(encoded: bytes) -> str:
    """Returns a sentence about bytes that a transfer removed, with a space before it; "" if nothing hints at it."""
    if len(encoded) >= _DAMAGE_SURE_BYTES and b"\n" not in encoded and b"\r" not in encoded:
        return " It has no line break byte at all: `curl -d` removes them; use `curl --data-binary @FILE`."
    return ""


def _other_format(encoded: bytes) -> str:
    """Returns what else a file is, and what to do, as the end of a sentence."""
    found = next((name for start, name in _OTHER_FORMATS.items() if encoded.startswith(start)), "")
    if encoded[:4] == b"RIFF" and encoded[8:12] == b"WEBP":
        found = "WebP"
    if encoded[4:8] == b"ftyp":
        found = _HEIF_BRANDS.get(encoded[8:12], "")
    if found:
        return f"neither JPEG nor PNG, but a {found} file; convert it to one of these."
    if encoded.startswith(_RECORDINGS):
        return "neither JPEG nor PNG, but a recording; give an image."
    if encoded.startswith(b"\x89PNG"):
        return (
            "neither JPEG nor PNG, but a PNG whose line breaks were removed, as `curl -d` does; use "
            "`curl --data-binary @FILE`."
        )
    if encoded.startswith(_BASE64_STARTS) and _is_base64(encoded):
        return (
            "neither JPEG nor PNG, but text in base64; send the bytes that it encodes: as the body of "
            "/firstline/v1/models/MODEL/infer (or the text in JSON as application/json), or as binary data of a V2 "
            "request ('binary_data_size')."
        )
    if not encoded:
        return "empty; give a JPEG or PNG file."
    if encoded.isascii() and encoded[:8].decode().strip().isprintable():
        return "neither JPEG nor PNG, but text; give a JPEG or PNG file."
    opening = f"{counted(len(encoded), 'byte')} that begin with {encoded[:8].hex(' ')}"
    return f"neither JPEG nor PNG: {opening}; give a JPEG or PNG file, unchanged."


def _is_base64(encoded: bytes) -> bool:
    start = encoded.partition(b",")[2] if encoded.startswith(b"data:") else encoded
    try:
        base64.b64decode(start[:64], validate=True)
    except ValueError:
        return False
    return True


# JPEG.


def _jpeg_header(encoded: bytes, where: str, *, whole: bool) -> ImageHeader:
    """Follows the segments like Pillow and libjpeg, up to the end of the image.

    Later data (a second image, a video) is not read. Truncated files are refused by Pillow.
    """
    frame = bits = height = width = channels = 0  # frame: the marker of the segment that declares the others
    exif: list[bytes] = []
    scans, complete = 0, False
    for marker, start, end in _segments(encoded, where):
        if marker == _SCAN:
            if complete or not whole:
                break
            scans += 1
            if scans > JPEG_SCANS_LIMIT:
                raise _costly(where, f"is a JPEG of more than {JPEG_SCANS_LIMIT} scans")
            # libjpeg decodes no other scan of a sequential image whose first one has all channels (`initial_setup`).
            if frame and frame not in _PROGRESSIVE:
                complete = encoded[start : start + 1] == bytes((channels,))
            if complete and encoded.find(_PADDING, start) < 0:  # otherwise it may lie before the end of the image
                break
        elif marker in _FRAMES and not frame and end - start >= 6:
            frame, (bits, height, width, channels) = marker, struct.unpack_from(">BHHB", encoded, start)
        elif marker == _EXIF and not scans and encoded.startswith(_EXIF_START, start):
            exif.append(encoded[start + len(_EXIF_START) : end])
            if len(exif) > JPEG_EXIF_LIMIT:
                raise _costly(where, f"is a JPEG of more than {JPEG_EXIF_LIMIT} segments of EXIF")
    if not frame:
        raise InvalidTensorError(
            f"{where} is a broken JPEG of {len(encoded)} bytes: it declares no size. Give the whole file."
        )
    if bits != 8:
        raise InvalidTensorError(f"{where} is a JPEG of {bits} bits a channel. Save it with 8 bits.")
    return ImageHeader(
        "JPEG",
        width,
        height,
        channels,
        scans=max(1, scans),
        progressive=frame in _PROGRESSIVE or scans > 1,
        orientation=_orientation(b"".join(exif), where),
    )


def _segments(encoded: bytes, where: str) -> Iterator[tuple[int, int, int]]:
    """Yields the marker of each segment, and where its content begins and ends."""
    at, pieces, junk, scanned = 2, 0, 0, False
    while at < len(encoded):
        found = _MARKER.search(encoded, at, at + JPEG_JUNK_LIMIT_BYTES + 2)
        junk += (found.start() if found is not None else len(encoded)) - at
        if junk > JPEG_JUNK_LIMIT_BYTES:
            raise _costly(where, f"is a JPEG of more than {JPEG_JUNK_LIMIT_BYTES} bytes outside of its segments")
        if found is None:
            return
        at, pieces = found.start(), pieces + 1
        if pieces > JPEG_PIECES_LIMIT:
            raise _costly(where, f"is a JPEG of more than {JPEG_PIECES_LIMIT} segments")
        if not scanned and at > JPEG_HEAD_LIMIT_BYTES:
            raise _costly(where, f"is a JPEG with more than {JPEG_HEAD_LIMIT_BYTES} bytes before its picture")
        marker = encoded[at + 1]
        if marker == _END and scanned:
            return
        elif marker in _WITH_LENGTH:
            end = at + 2 + int.from_bytes(encoded[at + 2 : at + 4], "big")
            yield marker, at + 4, min(end, len(encoded))
            at = end
            if marker == _SCAN:
                scanned = True
                padding = encoded.find(_PADDING, at)
                following = _AFTER_SCAN.search(encoded, at, padding if padding >= 0 else len(encoded))
                if following is not None:
                    at = following.start()
                elif padding >= 0:
                    raise _costly(where, f"is a JPEG of more than {JPEG_JUNK_LIMIT_BYTES} bytes of padding in a scan")
                else:
                    return
        else:
            at += 2
            junk += 2


def _costly(where: str, problem: str) -> PayloadTooLargeError:
    return PayloadTooLargeError(f"{where} {problem}, which takes too long to read. Save it again with another encoder.")


def _orientation(exif: bytes, where: str) -> int:
    """Returns EXIF's orientation, or 1 if it is absent or cannot be read (EXIF 2.32, section 4.6.2; TIFF 6.0).

    Raises:
        PayloadTooLargeError: its entries refer to much more data than there is; Pillow would copy all of it.
    """
    order = {b"II*\0": "<", b"MM\0*": ">"}.get(exif[:4])
    if order is None or len(exif) < 8:
        return 1
    (first,) = struct.unpack_from(order + "I", exif, 4)
    if first + 2 > len(exif):
        return 1
    (count,) = struct.unpack_from(order + "H", exif, first)
    count = min(count, (len(exif) - first - 2) // _TIFF_ENTRY_BYTES)
    found, referred = 1, 0
    for index in range(count):
        tag, kind, values, value = struct.unpack_from(order + "HHIH", exif, first + 2 + index * _TIFF_ENTRY_BYTES)
        size = values * _TIFF_SIZES.get(kind, 1)
        referred += min(size, len(exif)) if size > 4 else 0
        if tag == _ORIENTATION and kind == 3 and values == 1 and 1 <= value <= 8:
            found = value
    if referred > 2 * len(exif):
        raise _costly(where, "has EXIF entries that refer to the same data again and again")
    return found


# PNG.


def _png_header(encoded: bytes, where: str) -> ImageHeader:
    width = height = bits = interlace = 0
    colour = -1  # not known yet
    transparent, complete, orientation = False, False, 1
    limit = _PNG_CHUNKS + len(encoded) // 1024
    for number, (name, start, end) in enumerate(_chunks(encoded), 1):
        if number > limit:
            raise _costly(where, f"is a PNG of {len(encoded)} bytes in more than {limit} chunks")
        if name == b"IHDR" and colour < 0 and end - start >= 13:
            width, height, bits, colour, _, _, interlace = struct.unpack_from(">IIBBBBB", encoded, start)
        elif name == b"acTL":
            raise InvalidTensorError(f"{where} is an animated PNG; send one still image a row.")
        elif name == b"tRNS":
            transparent = True
        elif name == b"IEND":
            complete = end + 4 <= len(encoded)  # with its checksum
        elif name == b"eXIf":
            orientation = _orientation(encoded[start:end].removeprefix(_EXIF_START), where)
    if colour not in _PNG_CHANNELS:
        raise InvalidTensorError(
            f"{where} is a broken PNG of {len(encoded)} bytes: it declares no size. Give the whole file."
        )
    return ImageHeader(
        "PNG",
        width,
        height,
        _PNG_CHANNELS[colour],
        bits,
        palette=colour == _PALETTE,
        alpha=transparent or colour in (_GREY_ALPHA, _RGBA),
        interlaced=bool(interlace),
        orientation=orientation,
        complete=complete,
    )


def _chunks(encoded: bytes) -> Iterator[tuple[bytes, int, int]]:
    """Yields the name of each chunk up to the image's end, and where its content begins and ends."""
    at = _PNG_HEAD_BYTES
    while at < len(encoded):
        size = int.from_bytes(encoded[at : at + 4], "big")
        name = encoded[at + 4 : at + 8]
        yield name, at + 8, min(at + 8 + size, len(encoded))
        if name == b"IEND":
            return
        at += _PNG_CHUNK_BYTES + size


def _png_data_bytes(header: ImageHeader) -> int:
    """Returns the size of the inflated data: each row has one more byte, for its filter (PNG, section 7)."""
    bits = header.channels * header.bits
    passes = _ADAM7 if header.interlaced else ((0, 0, 1, 1),)
    total = 0
    for left, top, across, down in passes:
        columns, rows = -(-(header.width - left) // across), -(-(header.height - top) // down)
        if columns > 0 and rows > 0:
            total += rows * (1 + (columns * bits + 7) // 8)
    return total
