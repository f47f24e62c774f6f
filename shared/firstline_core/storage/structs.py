"""msgspec structs in JSON: files with a checksum that are replaced as a whole, and documents of other processes."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import TypeVar

import msgspec
from msgspec import Struct

from firstline_core.errors import (
    NAME_CHARACTERS,
    NAME_RULE,
    ConfigError,
    FirstlineError,
    IntegrityError,
    ProtocolError,
    similar_name,
)
from firstline_core.storage.files import (
    make_folder,
    naming,
    read_checked,
    read_limited,
    system_reason,
    with_checksum,
    write_whole,
)

S = TypeVar("S", bound=Struct)

FORMAT = 1
"""The `format` of all documents; those without this field have it too."""

_FIELD = re.compile(r"Object (missing required|contains unknown) field `(.*)`")
_TYPE = re.compile(r"Expected `([^`]*)`(.*?)(?:, got `(.*)`)?", re.DOTALL)
_SIDES = ("above", "below")
_TYPES = {
    "int": "an integer",
    "float": "a number",
    "str": "text",
    "bool": "true or false",
    "array": "a list",
    "object": "an object",
    "null": "nothing",
}


def fault_of(error: Exception, known: Sequence[str] = ()) -> str:
    """Returns what is wrong with a file or a JSON document, as the end of a sentence.

    Args:
        error: of the reader.
        known: fields of the document, of which the most similar one is suggested.
    """
    if isinstance(error, UnicodeDecodeError):
        return "it is not UTF-8 text"
    if isinstance(error, OSError) and error.strerror:
        return system_reason(error)
    if str(error) == "File is not a zip file":  # of zipfile
        return "it is not a zip archive"
    what, _, place = str(error).partition(" - at `")
    field = place.removesuffix("`").removeprefix("$").removeprefix(".")
    if (found := _FIELD.fullmatch(what)) is not None:
        name = f"{field}.{found[2]}" if field else found[2]
        if found[1].startswith("missing"):
            return f"the field '{name}' is missing"
        close = "" if field else similar_name(name, known)
        return f"the field '{name}' is unknown{f' (did you mean {close!r}?)' if close else ''}"
    if (found := _TYPE.fullmatch(what)) is not None:
        wanted = " or ".join(_TYPES.get(kind, kind) for kind in found[1].split(" | "))
        given = f", not {_TYPES.get(found[3], found[3])}" if found[3] else ""
        limits = f" of {NAME_RULE}" if NAME_CHARACTERS in found[2] else _limits(found[2])
        return f"{ascii(field) if field else 'it'} has to be {wanted}{limits}{given}"
    if what.startswith("Input data was truncated"):
        return "it is empty, or ends too early"
    if what.startswith("JSON is malformed"):
        place = what[what.find(" (") :] if "(" in what else ""
        return f"it is not JSON{place if place != ' (byte 0)' else ''}"
    end = f" in '{field}'" if field else ""
    return f"{what[:1].lower()}{what[1:]}{end}"


def _limits(text: str) -> str:
    """Returns msgspec's limits of a value or a length in words."""
    for sign, words in ((">=", "at least"), ("<=", "at most"), (">", "above"), ("<", "below")):
        text = text.replace(f" {sign} ", f" {words} " if "length" in text or words in _SIDES else f" of {words} ")
    return re.sub(r"(\d)\.0\b", r"\1", text)


def read_struct(path: Path, kind: type[S]) -> S:
    """Returns the struct in a file that `write_struct` wrote.

    Raises:
        FileNotFoundError: there is no such file.
        IntegrityError: the file is damaged, holds something else, or is of another format.
        OSError: the disk refuses.
    """
    return _decoded(read_checked(path), kind, str(path), fault="is damaged", refusal=IntegrityError)


def write_struct(path: Path, value: Struct) -> os.stat_result:
    """Writes a struct durably, in a folder that is created if necessary; a power cut leaves the old or the new content.

    Raises:
        OSError: the disk refuses; the old content stays.
    """
    make_folder(path.parent)
    return write_whole(path, with_checksum(msgspec.json.encode(value)))


def read_json_document(
    content: bytes, kind: type[S], where: str, limit_bytes: int, fault: str = "is not valid", *, advice: str = ""
) -> S:
    """Decodes a struct.

    Args:
        content: JSON.
        kind: the struct; unknown fields are ignored.
        where: origin, for errors.
        limit_bytes: maximum size.
        fault: text of the error for another document, such as "is not a profile".
        advice: what to do about it, as the end of the sentence.

    Raises:
        ProtocolError: too long, not JSON, not the struct, or another format.
    """
    if len(content) > limit_bytes:
        raise ProtocolError(f"{where} has {len(content)} bytes; at most {limit_bytes} are read.")
    return _decoded(content, kind, where, fault=fault, refusal=ProtocolError, advice=advice)


def read_json_file(path: Path, kind: type[S], limit_bytes: int, fault: str, advice: str) -> S:
    """Decodes the struct in a JSON file that a person named; see `read_json_document`.

    Raises:
        ConfigError: the file cannot be read, is too long, or has other content.
    """
    with naming(path):
        content = read_limited(path, limit_bytes)
    return _decoded(content, kind, str(path), fault=fault, refusal=ConfigError, advice=advice)


def _decoded(
    content: bytes, kind: type[S], where: str, *, fault: str, refusal: type[FirstlineError], advice: str = ""
) -> S:
    try:
        document = msgspec.json.decode(content, type=kind)
    except (msgspec.MsgspecError, UnicodeDecodeError, ValueError, RecursionError) as error:
        raise refusal(f"{where} {fault}: {fault_of(error)}{advice}.") from error
    if (found := getattr(document, "format", FORMAT)) != FORMAT:
        raise refusal(f"{where} has format {found}; this version of Firstline reads format {FORMAT}.")
    return document
