"""Limits on the number of segments and chunks of a JPEG or PNG, checked before decoding.

Pillow reads segments and chunks one by one in Python, and every scan of a progressive JPEG processes the whole image. A
file of 240 KB with a hundred scans of 65 bytes takes 4 seconds, and one with thousands of scans takes minutes.
"""

from __future__ import annotations

import re

from PIL.JpegImagePlugin import MARKER

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
