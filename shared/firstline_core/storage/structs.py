"""msgspec structs in JSON: files with a checksum that are replaced as a whole, and documents of other processes."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TypeVar

import msgspec
from msgspec import Struct

from firstline_core.errors import IntegrityError, ProtocolError
from firstline_core.storage.files import make_folder, read_checked, with_checksum, write_whole

S = TypeVar("S", bound=Struct)

FORMAT = 1
"""The `format` of all documents; those without this field have it too."""


def read_struct(path: Path, kind: type[S]) -> S:
    """Returns the struct in a file that `write_struct` wrote.

    Raises:
        FileNotFoundError: there is no such file.
        IntegrityError: the file is damaged, or holds something else.
        OSError: the disk refuses.
    """
    try:
        return msgspec.json.decode(read_checked(path), type=kind)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise IntegrityError(f"{path} is damaged: {error}.") from error


def write_struct(path: Path, value: Struct) -> os.stat_result:
    """Writes a struct durably, in a folder that is created if necessary; a power cut leaves the old or the new content.

    Raises:
        OSError: the disk refuses; the old content stays.
    """
    make_folder(path.parent)
    return write_whole(path, with_checksum(msgspec.json.encode(value)))


def read_json_document(content: bytes, kind: type[S], where: str, limit_bytes: int, fault: str = "is not valid") -> S:
    """Decodes a struct.

    Args:
        content: JSON.
        kind: the struct; unknown fields are ignored.
        where: origin, for errors.
        limit_bytes: maximum size.
        fault: text of the error for another document, such as "is not a profile".

    Raises:
        ProtocolError: too long, not JSON, not the struct, or another format.
    """
    if len(content) > limit_bytes:
        raise ProtocolError(f"{where} has {len(content)} bytes; at most {limit_bytes} are read.")
    try:
        document = msgspec.json.decode(content, type=kind)
    except (msgspec.MsgspecError, UnicodeDecodeError, ValueError, RecursionError) as error:
        raise ProtocolError(f"{where} {fault}: {error}.") from error
    if (found := getattr(document, "format", FORMAT)) != FORMAT:
        raise ProtocolError(f"{where} has format {found}; this version of Firstline reads format {FORMAT}.")
    return document
