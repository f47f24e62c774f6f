"""Event streams in pieces of any size, and what is none."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from firstline.client.sse import Event, EventReader
from firstline_core.errors import ProtocolError

STREAM = b':\n\nid: 1\ndata: {"a": 1}\n\n:\n\nid: 2\ndata: {"a": 2}\n\n'
EVENTS = [Event(1, b'{"a": 1}'), Event(2, b'{"a": 2}')]


@given(st.lists(st.integers(0, len(STREAM)), max_size=8))
def test_pieces_of_any_size_say_the_same(cuts: list[int]) -> None:
    reader = EventReader()
    bounds = pairwise([0, *sorted(cuts), len(STREAM)])
    found = [event for start, end in bounds for event in reader.read(STREAM[start:end])]
    assert found == EVENTS


def test_a_space_after_the_colon_is_not_needed() -> None:
    assert EventReader().read(b"id:1\ndata:x\n\n") == [Event(1, b"x")]


@pytest.mark.parametrize(
    ("stream", "fault"),
    [
        (b"<html>\n\n", "a field b'<html>'"),
        (b"data: x\n\n", "id b''"),
        (b"id: -1\ndata: x\n\n", "id b'-1'"),
        (b"id: " + b"1" * 19 + b"\ndata: x\n\n", "a number is expected"),
        (b"id: 1\r\ndata: x\r\n\r\n" + b"x" * 100, "larger than 64 bytes"),
        (b"id: 1\ndata: " + b"x" * 100, "larger than 64 bytes"),
    ],
)
def test_what_is_no_event_stream_is_an_error(stream: bytes, fault: str) -> None:
    reader = EventReader(limit_bytes=64)
    with pytest.raises(ProtocolError, match=fault):
        reader.read(stream)
