"""What is read from other processes is bounded, typed, and of a format that is known."""

import pytest
from msgspec import Struct

from firstline_core.errors import ProtocolError
from firstline_core.storage.structs import read_json_document


class Note(Struct):
    text: str
    format: int = 1


class Plain(Struct):
    text: str


def _read(content: bytes, kind: type[Note] | type[Plain] = Note) -> Note | Plain:
    return read_json_document(content, kind, "note.json", 40, "is no note")


@pytest.mark.parametrize("kind", [Note, Plain])
def test_unknown_fields_are_ignored(kind: type[Note] | type[Plain]) -> None:
    assert _read(b'{"text": "a", "newer": 1}', kind) == kind("a")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"{}", "note.json is no note: the field 'text' is missing"),
        (b"\xff", "note.json is no note"),
        (b'{"text": "a", "format": 2}', "note.json has format 2; this version of Firstline reads format 1."),
        (b" " * 41, "note.json has 41 bytes; at most 40 are read."),
    ],
)
def test_another_document_is_refused_with_a_reason(content: bytes, message: str) -> None:
    with pytest.raises(ProtocolError, match=message.replace(".", r"\.")):
        _read(content)
