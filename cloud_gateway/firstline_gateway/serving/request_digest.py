"""The digest of a request, by which the gateway recognises one that it has answered before."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Callable, Iterable
from typing import TypeVar

import numpy as np

from firstline_core.types import Tensor

# A larger input would occupy the event loop for more than half a millisecond.
_HASHED_HERE_BYTES = 256 * 1024

_T = TypeVar("_T")


async def hashed(size_bytes: int, digest: Callable[[], _T]) -> _T:
    """Returns the result of `digest`, which runs in a thread if it reads many bytes (`size_bytes`)."""
    return digest() if size_bytes <= _HASHED_HERE_BYTES else await asyncio.to_thread(digest)


def request_digest(texts: Iterable[str], inputs: Iterable[Tensor]) -> bytes:
    """Returns the SHA-256 of texts and of the exact inputs, in their order; the number of texts is always the same.

    Each text, and each element of BYTES, follows its length. Datatype and shape tell how long other inputs are.
    """
    digest = hashlib.sha256()

    def add(part: bytes) -> None:
        digest.update(len(part).to_bytes(8, "little"))
        digest.update(part)

    for text in texts:
        add(text.encode("utf-8", "surrogatepass"))
    for tensor in inputs:
        add(f"{tensor.name}\0{tensor.datatype}\0{tensor.shape}".encode("utf-8", "surrogatepass"))
        if tensor.array.dtype.hasobject:
            for element in tensor.array.flat:
                add(element)
        else:
            digest.update(np.ascontiguousarray(tensor.array).data)
    return digest.digest()
