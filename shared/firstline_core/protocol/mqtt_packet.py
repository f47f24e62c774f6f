"""The parts of an MQTT 5 PUBLISH packet, without decoding them. Free of any MQTT library.

https://docs.oasis-open.org/mqtt/mqtt/v5.0/os/mqtt-v5.0-os.html, section 3.3
"""

from __future__ import annotations

from typing import NamedTuple

PROPERTIES_LIMIT_BYTES = 8192
"""Of one message received; Firstline's own messages take some 300."""

_LENGTH_BYTES = 4  # of a variable byte integer at most (section 1.5.5)


class PublishParts(NamedTuple):
    """The parts of a PUBLISH packet.

    Attributes:
        packet_id: 0 at QoS 0.
        properties: with their length in front.
    """

    topic: bytes
    packet_id: int
    properties: bytes
    payload: bytes


def split_publish(qos: int, packet: bytes | bytearray) -> PublishParts:
    """Splits a PUBLISH packet.

    Args:
        qos: from the fixed header.
        packet: everything after the fixed header.

    Raises:
        ValueError: the packet ends too early.
    """
    topic_ends = start = 2 + int.from_bytes(packet[:2], "big")
    packet_id = 0
    if qos:
        packet_id, start = int.from_bytes(packet[start : start + 2], "big"), start + 2
    size_bytes = 0
    for position in range(_LENGTH_BYTES):
        at = start + position
        byte = packet[at] if at < len(packet) else 0x80
        size_bytes |= (byte & 0x7F) << (7 * position)
        if byte < 0x80:
            break
    else:
        raise ValueError("a PUBLISH packet without a length of its properties")
    end = at + 1 + size_bytes
    if end > len(packet):
        raise ValueError("a PUBLISH packet that ends inside its properties")
    with memoryview(packet) as view:
        return PublishParts(bytes(view[2:topic_ends]), packet_id, bytes(view[start:end]), bytes(view[end:]))
