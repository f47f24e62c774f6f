"""One MQTT connection against a broker that says what a real one rarely does, byte by byte."""

import asyncio
import contextlib
import re
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest
from hypothesis import given
from hypothesis import strategies as st

from firstline_core import errors
from firstline_core.errors import LinkDownError
from firstline_core.protocol.mqtt import MqttClient
from firstline_core.protocol.mqtt_connection import Connection, split_publish
from firstline_core.protocol.mqtt_messages import Message, MqttSettings, Publication

CONNACK = b"\x20\x03\0\0\0"
PUBLISH, PUBACK, SUBSCRIBE, SUBACK = 0x30, 0x40, 0x82, 0x90


def length(value: int) -> bytes:
    """Returns a variable byte integer (MQTT 5, section 1.5.5)."""
    found = b""
    while value >= 0x80:
        found, value = found + bytes([value & 0x7F | 0x80]), value >> 7
    return found + bytes([value])


def message(topic: bytes, payload: bytes, *, qos: int = 1, number: int = 7, properties: bytes = b"") -> bytes:
    """A PUBLISH packet."""
    head = len(topic).to_bytes(2, "big") + topic + (number.to_bytes(2, "big") if qos else b"")
    rest = head + length(len(properties)) + properties + payload
    return bytes((PUBLISH | qos << 1,)) + length(len(rest)) + rest


class Broker:
    """The far side of one connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    async def packet(self) -> tuple[int, bytes]:
        """The next one that came: its first byte, and what follows its length."""
        head = (await self.reader.readexactly(1))[0]
        length = place = 0
        while True:
            byte = (await self.reader.readexactly(1))[0]
            length |= (byte & 0x7F) << (7 * place)
            place += 1
            if byte < 0x80:
                return head, await self.reader.readexactly(length)


@asynccontextmanager
async def connected(on_message: Callable[[Message], None]) -> AsyncIterator[tuple[Connection, Broker]]:
    arrived: asyncio.Future[Broker] = asyncio.get_running_loop().create_future()

    async def greet(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        broker = Broker(reader, writer)
        await broker.packet()
        writer.write(CONNACK)
        arrived.set_result(broker)

    async with asyncio.timeout(10), await asyncio.start_server(greet, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        connection = Connection(MqttSettings("127.0.0.1", port), will=None, on_message=on_message)
        await connection.open()
        broker = await arrived
        try:
            yield connection, broker
        finally:
            await connection.close()
            broker.writer.close()


async def test_packets_of_one_read_are_all_handled() -> None:
    got: asyncio.Queue[bytes] = asyncio.Queue()
    async with connected(lambda message: got.put_nowait(message.payload)) as (_, broker):
        last = message(b"t", b"last")
        broker.writer.write(message(b"t", b"1") + message(b"t", b"2", qos=0) + message(b"t", b"3") + last[:5])
        assert [await got.get() for _ in range(3)] == [b"1", b"2", b"3"]
        broker.writer.write(last[5:])
        assert await got.get() == b"last"


async def test_an_acknowledgement_names_its_message_and_goes_out_once() -> None:
    got: asyncio.Queue[Message] = asyncio.Queue()
    async with connected(got.put_nowait) as (_, broker):
        broker.writer.write(message(b"t", b"", number=300))
        received = await got.get()
        received.ack()
        received.ack()
        head, rest = await broker.packet()
        assert (head, rest[:2]) == (PUBACK, (300).to_bytes(2, "big"))
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(broker.packet(), 0.05)


@pytest.mark.parametrize("size_bytes", [0, 8_000_000])
async def test_a_publication_ends_when_the_broker_acknowledges(size_bytes: int) -> None:
    async with connected(lambda _: None) as (connection, broker):
        publishing = asyncio.create_task(connection.publish(Publication("t", b"x" * size_bytes)))
        head, rest = await broker.packet()  # more than a socket takes at once goes out bit by bit
        assert (head, len(rest)) == (PUBLISH | 1 << 1, size_bytes + 6)
        assert not publishing.done()
        broker.writer.write(bytes((PUBACK, 2)) + b"\x7f\xff" + bytes((PUBACK, 2)) + rest[3:5])
        assert await publishing


@pytest.mark.parametrize(
    ("code", "kind", "name"),
    [
        (0x80, errors.ProtocolError, "Unspecified error"),
        (0x87, errors.UnauthorizedError, "Not authorized"),
        (0x95, errors.PayloadTooLargeError, "Packet too large"),  # Mosquitto's message_size_limit
        (0x96, errors.CapacityError, "Message rate too high"),
        (0x97, errors.CapacityError, "Quota exceeded"),
        (0xAF, errors.ProtocolError, "an unknown reason"),
        (0xFF, errors.ProtocolError, "an unknown reason"),
    ],
)
@pytest.mark.parametrize("properties", [b"", b"\0", b"\x04\x1f\0\x01x"], ids=["none", "empty", "a reason string"])
async def test_a_refused_publication_fails_alone(
    code: int, kind: type[errors.FirstlineError], name: str, properties: bytes
) -> None:
    async with connected(lambda _: None) as (connection, broker):
        for reason in (code, 0):
            publishing = asyncio.create_task(connection.publish(Publication("t", b"x")))
            _, rest = await broker.packet()
            body = rest[3:5] + bytes((reason,)) + properties
            broker.writer.write(bytes((PUBACK, len(body))) + body)
            if reason:
                with pytest.raises(kind, match=rf"the publication on 't': {name} \(reason code {code}\)"):
                    await publishing
            else:
                assert await publishing
        assert connection.alive


async def test_a_loss_during_writing_is_reported() -> None:
    async with connected(lambda _: None) as (connection, _):
        connection._client.socket().shutdown(socket.SHUT_WR)
        with pytest.raises(LinkDownError, match="was lost"):
            await connection.publish(Publication("t", b""))
        assert not connection.alive


async def test_a_message_of_an_unsubscribed_qos_ends_the_connection() -> None:
    async with connected(lambda _: None) as (connection, broker):
        broker.writer.write(message(b"t", b"", qos=2))
        assert "QoS 2" in await connection.lost


@pytest.mark.parametrize(
    "properties", [b"\x02\0\0\0\1\x02\0\0\0\1", b"\x08\0\5ab", b"\x21\0\1", b"\x02\0", b"\x26\0\1a\0\2b", b"\x7f"]
)
async def test_properties_that_a_message_cannot_have_end_the_connection(properties: bytes) -> None:
    async with connected(lambda _: None) as (connection, broker):
        broker.writer.write(message(b"t", b"", properties=properties))
        assert re.search("not MQTT 5|Protocol error", await connection.lost)


@pytest.mark.parametrize(
    "properties",
    [b"\x26\0\3\xef\xbb\xbf\0\1b", b"\x26\0\1a\0\1b" * 1500],
    ids=["a byte order mark", "too many properties"],
)
async def test_a_message_that_paho_would_not_read_is_acknowledged_and_dropped(properties: bytes) -> None:
    """A device that may publish must not end the connection; MQTT 5 allows U+FEFF (1.5.4), and paho does not.

    Fails where paho no longer decodes messages in the method that `mqtt_connection.py` overrides.
    """
    messages: list[Message] = []
    async with connected(messages.append) as (connection, broker):
        broker.writer.write(message(b"t", b"", properties=properties))
        head, answer = await broker.packet()
        assert (head, answer[:2], messages) == (PUBACK, b"\0\7", [])
        assert connection.alive


async def test_a_listener_is_called_during_the_read() -> None:
    client = MqttClient(MqttSettings("127.0.0.1"))
    events: list[object] = []

    def hear(message: Message) -> None:
        events.append(message.payload)
        if message.payload == b"bad":
            raise RuntimeError

    await client.listen("t/+", hear)
    for payload in (b"bad", b"good"):
        client._dispatch(Message("t/1", payload, ack=lambda: events.append("acknowledged")))
    assert events == [b"bad", "acknowledged", b"good", "acknowledged"]


async def test_next_connection_makes_the_interrupted_subscription() -> None:
    connections = 0
    received: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal connections
        connections += 1
        broker = Broker(reader, writer)
        with contextlib.closing(writer), contextlib.suppress(asyncio.IncompleteReadError):
            await broker.packet()
            writer.write(CONNACK)
            head, rest = await broker.packet()
            assert head == SUBSCRIBE
            if connections > 1:
                writer.write(bytes((SUBACK, 4)) + rest[:2] + b"\0\1" + message(b"t", b"x", qos=0))
                await broker.packet()

    async with asyncio.timeout(10), await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        client = MqttClient(MqttSettings("127.0.0.1", server.sockets[0].getsockname()[1]))
        await client.connect(5)
        try:
            await client.listen("t", lambda found: received.set_result(found.payload))
            assert await received == b"x"
        finally:
            await client.close()


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
