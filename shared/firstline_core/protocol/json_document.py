"""Reads a JSON document that was written by another process: bounded, typed, and of a format that is known."""

from __future__ import annotations

from typing import TypeVar

import msgspec

from firstline_core.errors import ProtocolError

_T = TypeVar("_T")


def read_json_document(content: bytes, kind: type[_T], *, where: str, limit_bytes: int, known: int, fault: str) -> _T:
    """Reads a struct.

    Args:
        content: JSON.
        kind: the struct; what it has no field for is passed over.
        where: whence it came, for errors.
        limit_bytes: that it has at most.
        known: the `format` that is read; documents without that field are of it.
        fault: what is wrong where it is not such a struct, for the error: "is no profile".

    Raises:
        ProtocolError: too long, not JSON, no such struct, or of another format.
    """
    if len(content) > limit_bytes:
        raise ProtocolError(f"{where} has {len(content)} bytes; at most {limit_bytes} are read.")
    try:
        found = msgspec.json.decode(content, type=kind)
    except (msgspec.MsgspecError, UnicodeDecodeError, ValueError, RecursionError) as error:
        raise ProtocolError(f"{where} {fault}: {error}.") from error
    spoken = getattr(found, "format", known)
    if spoken != known:
        raise ProtocolError(f"{where} has format {spoken}; this version of Firstline reads format {known}.")
    return found
