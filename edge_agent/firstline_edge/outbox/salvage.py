"""What can still be read of a damaged outbox, page by page and past SQLite, which gives up at the first bad pointer.

Every leaf of every table is looked at, in the database and in the states that its write-ahead log adds, oldest first
(https://www.sqlite.org/fileformat2.html). Which records are what was written is for their seals to say: what is
found here may be torn, or deleted since.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO

from firstline_edge.outbox.database import PAGE_SIZES_BYTES

Row = tuple[Any, ...]

_TABLE_LEAF = 13
_LEAF_HEAD_BYTES, _FREELIST_AT = 8, 32
_RECORD_LIMIT_BYTES = 1 << 30
_WAL_HEAD, _FRAME_HEAD = 32, 24
_INTEGER_BYTES = {1: 1, 2: 2, 3: 3, 4: 4, 5: 6, 6: 8}
_UNREADABLE = (IndexError, ValueError, struct.error)


def rows(database: Path) -> Iterator[Row]:
    """Every record, its row id first: of the database, then of each transaction in its log.

    Raises:
        OSError: the disk refuses.
    """
    for page_bytes in page_sizes(database):
        with database.open("rb") as file:
            pages = _Pages(file, page_bytes)
            free = _free_pages(pages)
            for number in range(2, pages.count + 1):
                if number not in free:
                    yield from _leaf_rows(pages, number)
            yield from _logged_rows(pages, database, after=0)


def rows_beyond(database: Path, frames: int) -> Iterator[Row]:
    """The records in the log after so many frames: where SQLite stopped reading, for one did not fit its checksum.

    Raises:
        OSError: the disk refuses.
    """
    with database.open("rb") as file:
        yield from _logged_rows(_Pages(file, page_sizes(database)[0]), database, after=frames)


def transactions_beyond(database: Path, frames: int) -> int:
    """How many transactions the log holds after so many frames; a power cut leaves one at most.

    Raises:
        OSError: the disk refuses.
    """
    return sum(is_last for _, is_last, _ in _frames(_log_of(database), frames, page_sizes(database)[0]))


def page_sizes(database: Path) -> tuple[int, ...]:
    """How large its pages are, as its head says, or that of its log; all that they may be where both are damaged.

    Raises:
        OSError: the disk refuses.
    """
    for file, begins, at, length in (
        (database, b"SQLite format 3\0", 16, 2),
        (_log_of(database), b"\x37\x7f\x06", 8, 4),
    ):
        if file.exists():
            with file.open("rb") as opened:
                head = opened.read(_WAL_HEAD)
            said = int.from_bytes(head[at : at + length], "big")
            if head.startswith(begins) and said in PAGE_SIZES_BYTES:
                return (said,)
    return PAGE_SIZES_BYTES


class _Pages(Mapping[int, bytes]):
    """The database's pages by number, under those of the log so far."""

    def __init__(self, file: BinaryIO, page_bytes: int) -> None:
        self._file = file
        self.page_bytes = page_bytes
        self.count = -(-file.seek(0, 2) // page_bytes)
        self.newer: dict[int, bytes] = {}

    def __getitem__(self, number: int) -> bytes:
        if number in self.newer:
            return self.newer[number]
        self._file.seek((number - 1) * self.page_bytes)
        return self._file.read(self.page_bytes).ljust(self.page_bytes, b"\0")

    def __iter__(self) -> Iterator[int]:
        return iter(range(1, self.count + 1))

    def __len__(self) -> int:
        return self.count


def _logged_rows(pages: _Pages, database: Path, after: int) -> Iterator[Row]:
    """Whole transactions are applied, for a record may lie on several of their pages."""
    changed = []
    for number, is_last, page in _frames(_log_of(database), after, pages.page_bytes):
        pages.newer[number] = page
        changed.append(number)
        if is_last:
            for leaf in changed:
                yield from _leaf_rows(pages, leaf)
            changed = []


def _log_of(database: Path) -> Path:
    return database.with_name(database.name + "-wal")


def _frames(log: Path, after: int, page_bytes: int) -> Iterator[tuple[int, bool, bytes]]:
    """Page number, whether it ends a transaction, and the page; of the log's present round only."""
    if not log.exists():
        return
    with log.open("rb") as file:
        round_ = _round(file.read(_WAL_HEAD), file.read(_FRAME_HEAD))
        frame_bytes = _FRAME_HEAD + page_bytes
        file.seek(_WAL_HEAD + after * frame_bytes)
        while len(frame := file.read(frame_bytes)) == frame_bytes:
            number, size_pages = struct.unpack_from(">II", frame)
            if number > 0 and frame[8:16] == round_:
                yield number, size_pages > 0, frame[_FRAME_HEAD:]


def _round(head: bytes, first_frame: bytes) -> bytes:
    """What marks the log's present round: frames of an older one follow it, and are in the database already.

    It stands in the log's head, and in each frame, if the head is damaged.
    """
    if len(head) < _WAL_HEAD:
        return b""
    order = ">" if head[3] & 1 else "<"
    first = second = 0
    for one, other in struct.iter_unpack(f"{order}II", head[:24]):
        first = (first + one + second) & 0xFFFF_FFFF
        second = (second + other + first) & 0xFFFF_FFFF
    is_whole = head[24:32] == struct.pack(">II", first, second)
    return head[16:24] if is_whole else first_frame[8:16]


def _free_pages(pages: _Pages) -> set[int]:
    """Pages that hold nothing any more, though it may still be read there."""
    found: set[int] = set()
    trunk = int.from_bytes(pages[1][_FREELIST_AT : _FREELIST_AT + 4], "big")
    while 1 < trunk <= pages.count and trunk not in found:
        found.add(trunk)
        following, count, *leaves = struct.unpack(f">{pages.page_bytes // 4}I", pages[trunk])
        found.update(leaves[:count])
        trunk = following
    return found


def _leaf_rows(pages: _Pages, number: int) -> Iterator[Row]:
    page = pages[number]
    if page[0] != _TABLE_LEAF:
        return
    (count,) = struct.unpack_from(">H", page, 3)
    for cell in range(min(count, (pages.page_bytes - _LEAF_HEAD_BYTES) // 2)):
        (at,) = struct.unpack_from(">H", page, _LEAF_HEAD_BYTES + 2 * cell)
        try:
            yield _row(pages, page, at)
        except _UNREADABLE:
            continue


def _row(pages: _Pages, page: bytes, at: int) -> Row:
    size_bytes, at = _varint(page, at)
    row_id, at = _varint(page, at)
    if size_bytes > _RECORD_LIMIT_BYTES:
        raise ValueError("no record of ours is so large")
    most = pages.page_bytes - 35
    if size_bytes <= most:
        return (row_id, *_values(page[at : at + size_bytes])[1:])
    least = (pages.page_bytes - 12) * 32 // 255 - 23
    local = least + (size_bytes - least) % (pages.page_bytes - 4)
    local = local if local <= most else least
    parts, got = [page[at : at + local]], local
    (following,) = struct.unpack_from(">I", page, at + local)
    while got < size_bytes:
        if following == 0:
            raise ValueError("its chain of pages is broken")
        overflow = pages[following]
        (following,) = struct.unpack_from(">I", overflow)
        parts.append(overflow[4 : 4 + size_bytes - got])
        got += len(parts[-1])
    return (row_id, *_values(b"".join(parts))[1:])


def _values(record: bytes) -> list[Any]:
    head_bytes, at = _varint(record, 0)
    kinds = []
    while at < head_bytes:
        kind, at = _varint(record, at)
        kinds.append(kind)
    values: list[Any] = []
    for kind in kinds:
        size_bytes = _INTEGER_BYTES.get(kind, 8 if kind == 7 else max(0, kind - 12) // 2)
        content = record[at : at + size_bytes]
        if len(content) < size_bytes:
            raise ValueError("it ends too soon")
        at += size_bytes
        if kind == 0:
            values.append(None)
        elif kind in _INTEGER_BYTES:
            values.append(int.from_bytes(content, "big", signed=True))
        elif kind == 7:
            values.append(struct.unpack(">d", content)[0])
        elif kind < 12:
            values.append(kind - 8)
        else:
            values.append(content.decode() if kind % 2 else content)
    return values


def _varint(content: bytes, at: int) -> tuple[int, int]:
    """The number, and where what follows it begins."""
    value = 0
    for length in range(9):
        byte = content[at + length]
        if length == 8:
            return value << 8 | byte, at + 9
        value = value << 7 | byte & 0x7F
        if byte < 0x80:
            return value, at + length + 1
    raise AssertionError("nine bytes at most")
