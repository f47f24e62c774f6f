"""Finds damage in SQLite's write-ahead log that SQLite itself takes for the end of the log.

The format is at https://www.sqlite.org/fileformat2.html#walformat. A commit is synced before the next one begins, so a
power cut can damage the last one alone: frames behind it show that acknowledged commits would be lost.
"""

from __future__ import annotations

import struct
import time
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

_HEADER_BYTES, _FRAME_HEADER_BYTES = 32, 24
_LARGEST_PAGE_BYTES = 65_536
_BIG_ENDIAN_MAGIC, _LITTLE_ENDIAN_MAGIC = 0x377F0683, 0x377F0682
_MASK = 0xFFFF_FFFF
# Another process may write while this one reads: damage is still there after this time, and the same.
_AGAIN_S = 0.1


class _Damage(NamedTuple):
    """The header of the log, and the position and content of the first frame that is not valid."""

    header: bytes
    frame: int
    content: bytes


def loses_commits(log: Path) -> bool:
    """Returns whether SQLite would drop acknowledged commits of this log; False if there is no log.

    Raises:
        OSError: the disk refuses.
    """
    found = _damage(log)
    if found is None:
        return False
    time.sleep(_AGAIN_S)
    return _damage(log) == found


def _damage(log: Path) -> _Damage | None:
    try:
        content = log.read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        return None
    header = content[:_HEADER_BYTES]
    if len(content) <= _HEADER_BYTES or not any(header):
        return None
    magic, _, page_bytes, _, *salt_and_sum = struct.unpack(">8I", header)
    salts, stored = tuple(salt_and_sum[:2]), tuple(salt_and_sum[2:])
    order = ">" if magic == _BIG_ENDIAN_MAGIC else "<"
    known = magic in (_BIG_ENDIAN_MAGIC, _LITTLE_ENDIAN_MAGIC) and 512 <= page_bytes <= _LARGEST_PAGE_BYTES
    if not known or _checksum(header[:24], (0, 0), order) != stored:
        return _Damage(header, -1, b"")
    frames = list(_frames(content[_HEADER_BYTES:], page_bytes))
    for position, frame in enumerate(frames):
        before, stored = stored, struct.unpack(">2I", frame[16:24])
        fits = struct.unpack(">2I", frame[8:16]) == salts
        if not fits or _checksum(frame[24:], _checksum(frame[:8], before, order), order) != stored:
            rest = [struct.unpack(">4I", one[:16]) for one in frames[position:]]
            later = any(earlier[1] and after[2:] == salts for earlier, after in pairwise(rest) if earlier[2:] == salts)
            return _Damage(header, position, frame) if later else None
    return None


def _frames(content: bytes, page_bytes: int) -> Iterator[bytes]:
    size_bytes = _FRAME_HEADER_BYTES + page_bytes
    for at in range(0, len(content) - size_bytes + 1, size_bytes):
        yield content[at : at + size_bytes]


def _checksum(content: bytes, seed: tuple[int, ...], order: str) -> tuple[int, int]:
    first, second = seed
    words = struct.unpack(f"{order}{len(content) // 4}I", content)
    for even, odd in zip(words[::2], words[1::2], strict=True):
        first = (first + even + second) & _MASK
        second = (second + odd + first) & _MASK
    return first, second
