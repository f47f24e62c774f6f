"""An MQTT 5 PUBLISH packet's parts, and its properties. Free of any MQTT library.

paho copies the rest of a packet, payload included, for every property that it reads: 80,000 short ones in half a
megabyte held up a gateway for 20 seconds. It also looks each name up by spelling all that there are: a third of what
a round trip cost. So these packets are read here, and the length of their properties is looked at first.

https://docs.oasis-open.org/mqtt/mqtt/v5.0/os/mqtt-v5.0-os.html, section 3.3
"""

from __future__ import annotations

from typing import NamedTuple

PROPERTIES_LIMIT_BYTES = 8192
"""Of one message received; Firstline's own take some 300."""

_LENGTH_BYTES = 4  # of a variable byte integer at most (section 1.5.5)


class PublishParts(NamedTuple):
    """A PUBLISH packet's parts, none of them decoded yet.

    Attributes:
        packet_id: 0 at QoS 0.
        properties: without their length.
    """

    topic: bytes
    packet_id: int
    properties: bytes
    payload: bytes


def publish_parts(qos: int, packet: bytes | bytearray) -> PublishParts:
    """Takes a PUBLISH apart.

    Args:
        qos: from the fixed header.
        packet: all that follows the fixed header.

    Raises:
        ValueError: the packet ends before what it says.
    """
    topic_ends = at = 2 + int.from_bytes(packet[:2], "big")
    packet_id = 0
    if qos:
        packet_id, at = int.from_bytes(packet[at : at + 2], "big"), at + 2
    properties_bytes = 0
    for place in range(_LENGTH_BYTES):
        byte = packet[at + place] if at + place < len(packet) else 0x80
        properties_bytes |= (byte & 0x7F) << (7 * place)
        if byte < 0x80:
            at += place + 1
            break
    else:
        raise ValueError("a PUBLISH packet without a length of its properties")
    payload_at = at + properties_bytes
    if payload_at > len(packet):
        raise ValueError("a PUBLISH packet that ends inside its properties")
    with memoryview(packet) as seen:
        return PublishParts(bytes(seen[2:topic_ends]), packet_id, bytes(seen[at:payload_at]), bytes(seen[payload_at:]))


class PublishProperties(NamedTuple):
    """A PUBLISH's properties (section 3.3.2.3), as far as Firstline has a use for them.

    Attributes:
        user: pairs, in order.
        expiry_s: None for a message that does not expire.
    """

    user: tuple[tuple[str, str], ...] = ()
    response_topic: str = ""
    correlation_data: bytes = b""
    expiry_s: int | None = None


_FORMAT, _EXPIRY, _CONTENT_TYPE, _RESPONSE_TOPIC, _CORRELATION_DATA = 1, 2, 3, 8, 9
_SUBSCRIPTION, _TOPIC_ALIAS, _USER = 11, 35, 38
_PLAIN_BYTES = {_FORMAT: 1, _EXPIRY: 4, _TOPIC_ALIAS: 2}  # those of a fixed size


def packed(properties: PublishProperties) -> bytes:
    """The properties as they stand in the packet, their length first; paho takes some 100 us for it.

    Raises:
        ValueError: a text that is no text, or anything longer than its field can say.
    """
    parts: list[bytes] = []
    if properties.expiry_s is not None:
        parts.append(b"%c%b" % (_EXPIRY, _number(properties.expiry_s, 4)))
    if properties.response_topic:
        parts.append(b"%c%b" % (_RESPONSE_TOPIC, _counted(properties.response_topic.encode())))
    if properties.correlation_data:
        parts.append(b"%c%b" % (_CORRELATION_DATA, _counted(properties.correlation_data)))
    for name, value in properties.user:
        parts.append(b"%c%b%b" % (_USER, _counted(name.encode()), _counted(value.encode())))
    together = b"".join(parts)
    return _variable(len(together)) + together


def unpacked(content: bytes) -> PublishProperties:
    """The properties of a packet, without their length.

    Raises:
        ValueError: they are not what a PUBLISH may have, or one stands there twice that may not.
    """
    user: list[tuple[str, str]] = []
    found: dict[int, bytes] = {}
    at = 0
    while at < len(content):
        kind, at = content[at], at + 1
        if kind == _USER:
            name, at = _field(content, at)
            value, at = _field(content, at)
            user.append((name.decode(), value.decode()))
        elif kind == _SUBSCRIPTION:  # may repeat, and means nothing to us
            while at < len(content) and content[at] >= 0x80:
                at += 1
            at += 1
        elif kind in found:
            raise ValueError(f"a PUBLISH packet with the property {kind} twice")
        elif kind in _PLAIN_BYTES:
            end = at + _PLAIN_BYTES[kind]
            found[kind], at = content[at:end], end
        elif kind in (_CONTENT_TYPE, _RESPONSE_TOPIC, _CORRELATION_DATA):
            found[kind], at = _field(content, at)
        else:
            raise ValueError(f"a PUBLISH packet with a property {kind}, which has no place there")
    if at > len(content):
        raise ValueError("a PUBLISH packet whose properties end inside one")
    return PublishProperties(
        tuple(user),
        found.get(_RESPONSE_TOPIC, b"").decode(),
        found.get(_CORRELATION_DATA, b""),
        int.from_bytes(found[_EXPIRY], "big") if _EXPIRY in found else None,
    )


def _field(content: bytes, at: int) -> tuple[bytes, int]:
    """What stands there with its length before it, and where that ends."""
    begins = at + 2
    ends = begins + int.from_bytes(content[at:begins], "big")
    if ends > len(content):
        raise ValueError("a PUBLISH packet whose properties end inside one")
    return content[begins:ends], ends


def _counted(content: bytes) -> bytes:
    return _number(len(content), 2) + content


def _number(value: int, size_bytes: int) -> bytes:
    try:
        return value.to_bytes(size_bytes, "big")
    except OverflowError:
        raise ValueError(f"{value} does not fit {size_bytes} bytes of an MQTT property") from None


def _variable(value: int) -> bytes:
    """A variable byte integer (section 1.5.5)."""
    digits = bytearray()
    while True:
        value, digit = value >> 7, value & 0x7F
        digits.append(digit | 0x80 if value else digit)
        if not value:
            return bytes(digits)
