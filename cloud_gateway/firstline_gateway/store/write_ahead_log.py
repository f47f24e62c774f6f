"""Finds damage in SQLite's write-ahead log that SQLite itself takes for the end of the log.

The format is at https://www.sqlite.org/fileformat2.html#walformat. A commit is synced before the next one begins, so a
power cut can damage the last one alone: frames behind it show that acknowledged commits would be lost.
"""

from __future__ import annotations

import struct
import time
from functools import cache
from io import BufferedReader
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

_HEADER_BYTES, _FRAME_HEADER_BYTES = 32, 24
_PAGE_BYTES = tuple(1 << power for power in range(9, 17))
_BIG_ENDIAN_MAGIC, _LITTLE_ENDIAN_MAGIC = 0x377F0683, 0x377F0682
_MASK = 0xFFFF_FFFF
_BLOCK_BYTES = 8 << 20
# Another process may write while this one reads: damage is still there after this time, and the same.
_AGAIN_S = 0.1

_Words = npt.NDArray[np.uint32]


class _Damage(NamedTuple):
    """The header of the log, and the position and content of the first frame that is not valid."""

    header: bytes
    at: int
    content: bytes


def loses_commits(log: Path) -> bool:
    """Returns whether SQLite would drop acknowledged commits of this log; False if there is no log.

    Raises:
        OSError: the disk refuses.
    """
    try:
        with log.open("rb") as file:
            found = _damage(file)
            if found is None:
                return False
            time.sleep(_AGAIN_S)
            file.seek(0)
            header = file.read(len(found.header))
            file.seek(found.at)
            return (header, file.read(len(found.content))) == (found.header, found.content)
    except (FileNotFoundError, NotADirectoryError):
        return False


def _damage(file: BufferedReader) -> _Damage | None:
    header = file.read(_HEADER_BYTES)
    if len(header) < _HEADER_BYTES or not any(header) or not file.peek(1):
        return None
    magic, _, page_bytes = struct.unpack(">3I", header[:12])
    order = ">" if magic == _BIG_ENDIAN_MAGIC else "<"
    salts, stored = np.frombuffer(header[16:], ">u4").astype(np.uint32).reshape(2, 2)
    known = magic in (_BIG_ENDIAN_MAGIC, _LITTLE_ENDIAN_MAGIC) and page_bytes in _PAGE_BYTES
    summed = np.frombuffer(header[:24], f"{order}u4").astype(np.uint32)
    if not known or (_sums(summed[None], np.zeros((1, 2), np.uint32)) != stored).any():
        return _Damage(header, 0, b"")
    frame_bytes = _FRAME_HEADER_BYTES + page_bytes
    damage: _Damage | None = None
    committed = False  # whether the last frame ended a commit of this log
    at = _HEADER_BYTES
    while block := file.read(max(1, _BLOCK_BYTES // frame_bytes) * frame_bytes):
        if not (frames := len(block) // frame_bytes):  # cut off
            break
        block = block[: frames * frame_bytes]
        heads = np.frombuffer(block, ">u4").reshape(frames, -1)[:, :6].astype(np.uint32)
        same_salts = heads[:, 2:4] == salts
        fits = same_salts.any(axis=1)  # a flipped bit leaves one of them; frames before the last reset have neither
        start = 0
        if damage is None:
            words = np.frombuffer(block, f"{order}u4").reshape(frames, -1)
            summed = np.concatenate((words[:, :2], words[:, 6:]), axis=1).astype(np.uint32, copy=False)
            before = np.concatenate((stored[None], heads[:-1, 4:]))
            valid = same_salts.all(axis=1) & (_sums(summed, before) == heads[:, 4:]).all(axis=1)
            if valid.all():
                stored, at = heads[-1, 4:], at + len(block)
                continue
            first = int(valid.argmin())
            content = block[first * frame_bytes : (first + 1) * frame_bytes]
            damage, start = _Damage(header, at + first * frame_bytes, content), first + 1
        commits = np.concatenate(([committed], fits & (heads[:, 1] != 0)))
        if (commits[start:-1] & fits[start:]).any():
            return damage
        committed = bool(commits[-1])
    return None


def _sums(words: _Words, seeds: _Words) -> _Words:
    """Returns SQLite's checksums of rows of words, each seeded: UINT32 (rows, 2).

    For each pair of words (a, b): s = s + a + t, then t = t + b + s. That is linear modulo 2**32, so a checksum is a
    product of the words and fixed weights.
    """
    weights, seed_weights = _weights(words.shape[1])
    parts = [words @ one for one in weights]
    sums: _Words = np.stack(parts, axis=1) + seeds @ seed_weights
    return sums


@cache
def _weights(words: int) -> tuple[_Words, _Words]:
    """Returns the weights of the words, UINT32 (2, words), and those of the seed, UINT32 (2, 2)."""
    rows: list[list[int]] = [[], []]
    first, second = [1, 0], [0, 1]  # the effect on the checksum of a 1 in either sum, after k more pairs
    for _ in range(words // 2):
        for row, one, other in zip(rows, first, second, strict=True):
            row.extend((other, (one + other) & _MASK))
        both = [(one + other) & _MASK for one, other in zip(first, second, strict=True)]
        first, second = both, [(one + other) & _MASK for one, other in zip(both, second, strict=True)]
    return np.array(rows, np.uint32)[:, ::-1].copy(), np.array([first, second], np.uint32)
