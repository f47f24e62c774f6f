"""Where an MQTT 5 PUBLISH packet's parts lie, found without reading its properties. Free of any MQTT library.

paho copies the rest of a packet, payload included, for every property that it reads: 80,000 short ones in half a
megabyte held up a gateway for 20 seconds. So their length is looked at first, and the payload is taken away.

https://docs.oasis-open.org/mqtt/mqtt/v5.0/os/mqtt-v5.0-os.html, section 3.3
"""

from __future__ import annotations

from typing import NamedTuple

PROPERTIES_LIMIT_BYTES = 8192
"""Of one message received; Firstline's own take some 300."""

_LENGTH_BYTES = 4  # of a variable byte integer at most (section 1.5.5)


class PublishParts(NamedTuple):
    """Offsets into a packet, counted after its fixed header.

    Attributes:
        packet_id: 0 at QoS 0.
        properties_bytes: what the properties take.
        payload_at: where the payload begins.
    """

    packet_id: int
    properties_bytes: int
    payload_at: int


def publish_parts(qos: int, packet: bytes | bytearray) -> PublishParts:
    """Takes a PUBLISH apart.

    Args:
        qos: from the fixed header.
        packet: all that follows the fixed header.

    Raises:
        ValueError: the packet ends before what it says.
    """
    at = 2 + int.from_bytes(packet[:2], "big")
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
    if at + properties_bytes > len(packet):
        raise ValueError("a PUBLISH packet that ends inside its properties")
    return PublishParts(packet_id, properties_bytes, at + properties_bytes)
