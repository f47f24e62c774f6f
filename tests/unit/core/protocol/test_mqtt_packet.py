from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from firstline_core.protocol.mqtt_packet import split_publish


def length(value: int) -> bytes:
    """Returns a variable byte integer (MQTT 5, section 1.5.5)."""
    found = b""
    while value >= 0x80:
        found, value = found + bytes([value & 0x7F | 0x80]), value >> 7
    return found + bytes([value])


@given(st.binary(max_size=300), st.integers(0, 2), st.binary(max_size=20_000), st.binary(max_size=50))
def test_parts_of_a_message(topic: bytes, qos: int, properties: bytes, payload: bytes) -> None:
    head = len(topic).to_bytes(2, "big") + topic + (b"\x12\x34" if qos else b"")
    counted = length(len(properties)) + properties
    assert split_publish(qos, head + counted + payload) == (topic, 0x1234 if qos else 0, counted, payload)


@pytest.mark.parametrize(
    "packet",
    [
        b"",
        b"\x00",
        b"\x00\x05ab",
        b"\x00\x01a\x00\x07",
        b"\x00\x01a\x00\x07\xff\xff\xff\xff\x01",
        b"\x00\x01a\x00\x07\x05ab",
    ],
)
def test_truncated_packet_is_refused(packet: bytes) -> None:
    with pytest.raises(ValueError, match="a PUBLISH packet"):
        split_publish(1, packet)


@given(st.binary(max_size=60), st.integers(0, 2))
def test_any_bytes_are_split_or_refused(packet: bytes, qos: int) -> None:
    with contextlib.suppress(ValueError):
        split_publish(qos, packet)
