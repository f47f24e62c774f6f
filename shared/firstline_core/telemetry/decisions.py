"""The decision log: one JSON line for each answer and each later correction, so that any can be explained.

Bounded: two files of at most `max_bytes`. No payload, no label, no client id; `local_only` requests are the caller's
to keep out.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import orjson

from firstline_core.types import InferResponse


class DecisionLog:
    """Appends to `path`; when it is full it becomes `path` + ".1" and a fresh one starts.

    Args:
        path: the file; its directory exists.
        max_bytes: size of one of the two files.
    """

    def __init__(self, path: Path, max_bytes: int = 8 * 1024 * 1024) -> None:
        self._path = path
        self._max_bytes = max_bytes
        self._stream = path.open("ab", buffering=0)
        self._size_bytes = path.stat().st_size

    def write(self, response: InferResponse, *, wall_s: float, ms: float | None = None, **facts: object) -> None:
        """Adds one line.

        Args:
            response: its answer is written, its outputs are not.
            wall_s: seconds since the epoch, as the device believes.
            ms: time to this answer.
            facts: anything else worth telling, JSON-able.

        Raises:
            OSError: the disk refused.
        """
        if response.answer is None:
            return
        line = orjson.dumps(
            {
                "at": wall_s,
                "model": response.model,
                "version": response.version,
                "ms": ms,
                **dataclasses.asdict(response.answer),
                **facts,
            },
            option=orjson.OPT_APPEND_NEWLINE,
        )
        if self._size_bytes + len(line) > self._max_bytes and self._size_bytes:
            self._rotate()
        self._stream.write(line)
        self._size_bytes += len(line)

    def _rotate(self) -> None:
        self._stream.close()
        self._path.replace(_older(self._path))
        self._stream = self._path.open("ab", buffering=0)
        self._size_bytes = 0

    def close(self) -> None:
        self._stream.close()


def _older(path: Path) -> Path:
    return path.with_name(path.name + ".1")


def find(path: Path, request_id: str) -> list[dict[str, Any]]:
    """Every line about one request, oldest first; a line cut short by a power loss is passed over."""
    return [line for line in _lines(path) if line.get("request_id") == request_id]


def _lines(path: Path) -> Iterator[dict[str, Any]]:
    for file in (_older(path), path):
        if not file.exists():
            continue
        with file.open("rb") as stream:
            for text in stream:
                try:
                    line = orjson.loads(text)
                except orjson.JSONDecodeError:
                    continue
                if isinstance(line, dict):
                    yield line
