from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties

from firstline_core.protocol.mqtt_packet import PublishProperties, packed, publish_parts, unpacked


def length(value: int) -> bytes:
    """A variable byte integer (MQTT 5, section 1.5.5)."""
    found = b""
    while value >= 0x80:
        found, value = found + bytes([value & 0x7F | 0x80]), value >> 7
    return found + bytes([value])


@given(st.binary(max_size=300), st.integers(0, 2), st.binary(max_size=20_000), st.binary(max_size=50))
def test_the_parts_of_a_message(topic: bytes, qos: int, properties: bytes, payload: bytes) -> None:
    head = len(topic).to_bytes(2, "big") + topic + (b"\x12\x34" if qos else b"")
    packet = head + length(len(properties)) + properties + payload
    parts = publish_parts(qos, packet)
    assert parts == (topic, 0x1234 if qos else 0, properties, payload)


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
def test_what_ends_too_early_is_no_message(packet: bytes) -> None:
    with pytest.raises(ValueError, match="a PUBLISH packet"):
        publish_parts(1, packet)


TEXT = st.text(st.characters(exclude_categories=("Cs",), exclude_characters="\0"), max_size=20)
PROPERTIES = st.builds(
    PublishProperties,
    st.lists(st.tuples(TEXT, TEXT), max_size=5).map(tuple),
    TEXT,
    st.binary(max_size=40),
    st.none() | st.integers(0, 2**32 - 1),
)


@given(PROPERTIES)
def test_properties_are_those_of_paho(properties: PublishProperties) -> None:
    theirs = Properties(PacketTypes.PUBLISH)
    theirs.unpack(packed(properties))
    assert tuple(getattr(theirs, "UserProperty", ())) == properties.user
    assert getattr(theirs, "ResponseTopic", "") == properties.response_topic
    assert getattr(theirs, "CorrelationData", b"") == properties.correlation_data
    assert getattr(theirs, "MessageExpiryInterval", None) == properties.expiry_s
    theirs.ContentType, theirs.PayloadFormatIndicator, theirs.SubscriptionIdentifier = "text", 1, 300
    assert unpacked(content_of(theirs.pack())) == properties


def content_of(with_length: bytes) -> bytes:
    return with_length[next(at for at, byte in enumerate(with_length) if byte < 0x80) + 1 :]


@given(PROPERTIES, st.data())
def test_damaged_properties_are_a_value_error(properties: PublishProperties, data: st.DataObject) -> None:
    content = content_of(packed(properties))
    cut = content[: data.draw(st.integers(0, len(content)))] + data.draw(st.binary(max_size=4))
    with contextlib.suppress(ValueError):
        unpacked(cut)


@pytest.mark.parametrize(
    "content", [b"\x02\0\0\0\1\x02\0\0\0\1", b"\x08\0\5ab", b"\x21\0\1", b"\x02\0", b"\x26\0\1a\0\2b"]
)
def test_properties_that_a_publish_cannot_have_are_refused(content: bytes) -> None:
    with pytest.raises(ValueError, match="a PUBLISH packet"):
        unpacked(content)


def test_what_no_field_can_say_is_refused() -> None:
    for properties in (PublishProperties(((("n" * 65_536), ""),)), PublishProperties(expiry_s=2**32)):
        with pytest.raises(ValueError, match="does not fit"):
            packed(properties)
