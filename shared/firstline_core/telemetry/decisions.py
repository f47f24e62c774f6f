"""The decision log: one JSON line for each answer, refusal and later correction, to explain decisions.

Bounded: two files of at most `max_bytes`. No payload, no label, no client id; the caller must leave out `local_only`
requests. Each line ends with a CRC-32, so that damaged lines are skipped.
"""

from __future__ import annotations

import errno
import os
import re
import zlib
from collections.abc import Iterator, Mapping, Sequence
from io import FileIO
from pathlib import Path
from typing import Any

import msgspec
from msgspec import structs

from firstline_core.types import InferResponse

_ENCODER = msgspec.json.Encoder()
_CRC = re.compile(rb',"crc":"([0-9a-f]{8})"}\n?\Z')


class DecisionLog:
    """Appends to `path`; when it is full it becomes `path` + ".1" and a fresh one starts.

    The disk may fail at any time; the next line is tried again.

    Args:
        path: the file; its directory exists.
        max_bytes: size of one of the two files.
    """

    def __init__(self, path: Path, max_bytes: int = 8 * 1024 * 1024) -> None:
        self._path = path
        self._max_bytes = max_bytes
        self._stream: FileIO | None = None
        self._size_bytes = 0
        self._torn = False

    def append(self, *records: Mapping[str, object]) -> None:
        """Adds a line for each record in one write.

        Raises:
            OSError: the disk refused.
        """
        lines = [_with_crc(_ENCODER.encode(record)) for record in records]
        if self._torn:  # a partial line before must not damage this one
            lines[0] = b"\n" + lines[0]
        if self._stream is None:
            self._stream = _opened(self._path)
            self._size_bytes = os.fstat(self._stream.fileno()).st_size
        fitting: list[bytes] = []
        size_bytes = 0
        for line in lines:
            if self._size_bytes + size_bytes + len(line) > self._max_bytes and self._size_bytes + size_bytes:
                self._write(fitting)
                fitting, size_bytes = [], 0
                self._rotate()
            fitting.append(line)
            size_bytes += len(line)
        self._write(fitting)

    def _write(self, lines: Sequence[bytes]) -> None:
        if not lines or self._stream is None:
            return
        text = b"".join(lines)
        written = self._stream.write(text) or 0
        self._size_bytes += written
        self._torn = written < len(text)
        if self._torn:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(self._path))

    def _rotate(self) -> None:
        """Rotates the files; the old one stays in use until the new one is in its place."""
        fresh_path = self._path.with_name(self._path.name + ".new")
        fresh = _opened(fresh_path)
        try:
            if self._path.exists():  # an earlier attempt may have stopped half-way
                self._path.replace(_older(self._path))
            fresh_path.replace(self._path)
        except OSError:
            fresh.close()
            raise
        self.close()
        self._stream, self._size_bytes = fresh, 0

    def close(self) -> None:
        """Closes the file; calling it twice is harmless."""
        if self._stream is not None:
            self._stream.close()
            self._stream = None


def about(response: InferResponse, *, wall_s: float, ms: float | None = None) -> dict[str, object]:
    """Returns the fields of a line about an answer, without its outputs.

    Args:
        response: its answer is described, if it has one.
        wall_s: wall time of the device (seconds since 1970).
        ms: time to this answer.
    """
    answer = {} if response.answer is None else structs.asdict(response.answer)
    return {"at": wall_s, "model": response.model, "version": response.version, "ms": ms} | answer


def _opened(path: Path) -> FileIO:
    return FileIO(os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600), "a")


def _older(path: Path) -> Path:
    return path.with_name(path.name + ".1")


def find(path: Path, request_id: str) -> list[dict[str, Any]]:
    """Returns every line about one request, oldest first; damaged lines are skipped."""
    return [line for line in lines(path) if line.get("request_id") == request_id]


def lines(path: Path) -> Iterator[dict[str, Any]]:
    """Yields every line of the file and of the one before it, oldest first; damaged lines are skipped.

    Raises:
        OSError: a file cannot be read.
    """
    for file in (_older(path), path):
        if not file.is_file():
            continue
        with file.open("rb") as stream:
            for text in stream:
                if (line := _read(text)) is not None:
                    yield line


def _with_crc(record: bytes) -> bytes:
    before = record.removesuffix(b"}")
    return b'%s,"crc":"%08x"}\n' % (before, zlib.crc32(before))


def _read(text: bytes) -> dict[str, Any] | None:
    """Returns the record; None for a damaged line."""
    crc = _CRC.search(text)
    if crc is not None and int(crc[1], 16) != zlib.crc32(text[: crc.start()]):
        return None
    try:
        line = msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    if not isinstance(line, dict):
        return None
    line.pop("crc", None)
    return line
