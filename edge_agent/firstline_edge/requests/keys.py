"""Keys: what a row says, in one sha256, and beside it what would answer. Pure, full width, never shortened.

A key names a computation, not a request: it holds no request id, no client id and no caller's preference, so that
equal rows meet whoever sends them. A row's content is hashed once, where it comes in; every key is made of that.
"""

from __future__ import annotations

import functools
import hashlib
from typing import TYPE_CHECKING, Any

import numpy as np

from firstline_core.types import Tensor

if TYPE_CHECKING:
    from hashlib import _Hash


def content_digests(tensor: Tensor) -> list[bytes]:
    """One sha256 a row, over the input's name, datatype, row shape and content, which is not copied for it.

    Every field is preceded by its length: no two different rows spell the same bytes.
    """
    if len(tensor.array) == 1:
        return [content_digest(tensor)]
    # A slice, unlike an index, is an array whatever the number of axes.
    rows = [tensor.array[position : position + 1] for position in range(len(tensor.array))]
    return [content_digest(Tensor(tensor.name, row)) for row in rows]


def content_digest(row: Tensor) -> bytes:
    """As `content_digests`, of a tensor of one row."""
    array = row.array
    dtype = array.dtype
    head = _head(row.name, dtype, array.shape)
    if dtype.hasobject:
        return _digest(head, _fields(*array.flat))
    return _digest(head, array if array.flags.c_contiguous else np.ascontiguousarray(array))


def result_key(answering_digest: str, content: bytes) -> bytes:
    """The key under which an answer for one row is kept.

    Args:
        answering_digest: of everything that computes the answer: model, processing, and score where there is one.
        content: the row's, from `content_digests`; always of one length, so that the two do not run together.
    """
    return content + answering_digest.encode()


def flight_key(model: str, version: str, full_digest: str, content: bytes) -> bytes:
    """The key under which equal rows on their way to a full model meet.

    Args:
        model: as the gateway is asked: a bundle that names no full model has no digest to tell it by.
        version: as the gateway is asked.
        full_digest: of the full model that the bundle names, or "".
        content: the row's, from `content_digests`.
    """
    return content + _fields(model.encode(), version.encode(), full_digest.encode())


@functools.lru_cache(maxsize=64)
def _head(name: str, dtype: np.dtype[Any], shape: tuple[int, ...]) -> _Hash:
    """What all rows of an input begin with, hashed: to be copied, and gone on with. `shape` is that of one row."""
    datatype = Tensor(name, np.empty(0, dtype)).datatype
    return hashlib.sha256(_fields(name.encode(), datatype.encode(), str(shape[1:]).encode()))


def _digest(head: _Hash, content: object) -> bytes:
    row = head.copy()
    row.update(content)  # type: ignore[arg-type]  # bytes, or an array, which is a buffer
    return row.digest()


def _fields(*parts: bytes) -> bytes:
    return b"".join(len(part).to_bytes(8, "little") + part for part in parts)
