"""Cache keys: sha256 over what a row says and over what would answer it. Pure, full width, never shortened.

A key names a computation, not a request: it holds no request id, no client id and no caller's preference, so that
equal rows meet whoever sends them.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator

from firstline_core.types import Array, Tensor


def content_digests(tensor: Tensor) -> list[bytes]:
    """One sha256 a row, over the input's name, datatype, row shape and content.

    Every field is preceded by its length: no two different rows spell the same bytes.
    """
    head = _fields(tensor.name.encode(), tensor.datatype.encode(), str(tensor.shape[1:]).encode())
    if tensor.array.dtype.hasobject:
        return [hashlib.sha256(head + _fields(*row.reshape(-1))).digest() for row in _rows(tensor)]
    return [hashlib.sha256(head + row.tobytes()).digest() for row in _rows(tensor)]


def result_key(answering_digest: str, content: bytes) -> bytes:
    """The key under which an answer for one row is kept.

    Args:
        answering_digest: of everything that computes the answer: model, processing, and score where there is one.
        content: the row's, from `content_digests`.
    """
    return hashlib.sha256(_fields(answering_digest.encode(), content)).digest()


def flight_key(model: str, version: str, full_digest: str, content: bytes) -> bytes:
    """The key under which equal rows on their way to a full model meet.

    Args:
        model: as the gateway is asked: a bundle that names no full model has no digest to tell it by.
        version: as the gateway is asked.
        full_digest: of the full model that the bundle names, or "".
        content: the row's, from `content_digests`.
    """
    return hashlib.sha256(_fields(model.encode(), version.encode(), full_digest.encode(), content)).digest()


def _rows(tensor: Tensor) -> Iterator[Array]:
    # A slice, unlike an index, is an array whatever the number of axes.
    return (tensor.array[position : position + 1] for position in range(tensor.shape[0]))


def _fields(*parts: bytes) -> bytes:
    return b"".join(len(part).to_bytes(8, "little") + part for part in parts)
