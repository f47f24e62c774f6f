"""Reads JSON documents of other processes, with a size limit, a type and a format version."""

from __future__ import annotations

from typing import TypeVar

import msgspec

from firstline_core.errors import ProtocolError

_T = TypeVar("_T")


def read_json_document(content: bytes, kind: type[_T], *, where: str, limit_bytes: int, known: int, fault: str) -> _T:
    """Decodes a struct.

    Args:
        content: JSON.
        kind: the struct; unknown fields are ignored.
        where: origin, for errors.
        limit_bytes: maximum size.
        known: the supported `format`; documents without this field have it.
        fault: text of the error for another document, such as "is not a profile".

    Raises:
        ProtocolError: too long, not JSON, not the struct, or another format.
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
