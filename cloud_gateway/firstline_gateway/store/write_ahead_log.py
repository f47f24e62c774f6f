"""Finds damage in SQLite's write-ahead log that SQLite itself takes for the end of the log.

The format is at https://www.sqlite.org/fileformat2.html#walformat. A commit is synced before the next one begins, so a
power cut can damage the last one alone: frames behind it show that acknowledged commits would be lost.
"""

from __future__ import annotations

import struct
import time
from functools import lru_cache
from io import BufferedReader
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

_HEADER_BYTES, _FRAME_HEADER_BYTES = 32, 24
_PAGE_BYTES = tuple(1 << power for power in range(9, 17))
_BYTE_ORDERS = {0x377F0683: ">", 0x377F0682: "<"}
"""The byte order of the words that are summed, by the first word of the log."""
_MASK = 0xFFFF_FFFF
# Another process may write while this one reads: damage is still there after this time, and the same.
_AGAIN_S = 0.1

_Sums = tuple[int, int]


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
    magic, _, page_bytes, _, *salts, first, second = struct.unpack(">8I", header)
    order, sums = _BYTE_ORDERS.get(magic, ">"), (first, second)
    is_log = magic in _BYTE_ORDERS and page_bytes in _PAGE_BYTES
    if not is_log or _checksum(header[:24], order, (0, 0)) != sums:
        return _Damage(header, 0, b"")
    damage: _Damage | None = None
    committed = False  # whether the previous frame, from the damaged one on, ended a commit of this log
    frame_bytes = _FRAME_HEADER_BYTES + page_bytes
    while len(frame := file.read(frame_bytes)) == frame_bytes:  # a shorter one was cut off
        _, pages_after_commit, *own_salts, first, second = struct.unpack(">6I", frame[:_FRAME_HEADER_BYTES])
        if damage is None:
            sums = _checksum(frame[:8] + frame[_FRAME_HEADER_BYTES:], order, sums)
            if own_salts == salts and sums == (first, second):
                continue
            damage = _Damage(header, file.tell() - frame_bytes, frame)
        # A flipped bit leaves one of the salts; frames from before the last reset of the log have neither.
        is_of_log = own_salts[0] == salts[0] or own_salts[1] == salts[1]
        if committed and is_of_log:
            return damage
        committed = is_of_log and pages_after_commit != 0
    return None


def _checksum(content: bytes, order: str, sums: _Sums) -> _Sums:
    """Returns SQLite's checksum of words of 32 bits, which continues an earlier one.

    SQLite adds to each word the two sums before it. So the weights of the words are Fibonacci numbers; those of the
    earlier sums are F(n) and F(n + 1), for n words.
    """
    words = np.frombuffer(content, f"{order}u4")
    weights = _fibonacci(len(words) + 1)

    def sum_of(n: int) -> int:
        return int(words[:n] @ weights[:n][::-1]) + sums[0] * int(weights[n - 1]) + sums[1] * int(weights[n])

    first, second = sum_of(len(words) - 1), sum_of(len(words))
    return first & _MASK, second & _MASK


@lru_cache(2)  # of a header, and of a frame
def _fibonacci(count: int) -> npt.NDArray[np.uint64]:
    """Returns the first Fibonacci numbers from F(1) on, modulo 2^32."""
    numbers = [1, 1]
    while len(numbers) < count:
        numbers.append((numbers[-1] + numbers[-2]) & _MASK)
    return np.array(numbers, np.uint64)
