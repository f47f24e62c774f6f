"""Small files that hold one msgspec struct as JSON with a checksum, and are replaced as a whole."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TypeVar

import msgspec
from msgspec import Struct

from firstline_core.errors import IntegrityError
from firstline_core.storage.files import make_folder, read_checked, with_checksum, write_whole

S = TypeVar("S", bound=Struct)


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
