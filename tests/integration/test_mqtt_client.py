"""The MQTT client against a real Mosquitto."""

import asyncio
import contextlib
import ipaddress
import os
import signal
import socket
import statistics
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.x509.oid import NameOID
from support.broker import Broker
from support.waiting import until

from firstline_core import errors
from firstline_core.clock import SimulatedClock
from firstline_core.protocol import mqtt
from firstline_core.protocol.mqtt import MqttClient
from firstline_core.protocol.mqtt_connection import matches
from firstline_core.protocol.mqtt_messages import Message, MqttSettings, Publication
from firstline_gateway.identity import ca

pytestmark = pytest.mark.mosquitto


def settings(broker: Broker, client_id: str = "", **fields: Any) -> MqttSettings:
    return MqttSettings(broker.host, broker.port, client_id=client_id, **({"reconnect_max_s": 0.2} | fields))


@asynccontextmanager
async def connected(mqtt_settings: MqttSettings, **arguments: Any) -> AsyncIterator[MqttClient]:
    client = MqttClient(mqtt_settings, **arguments)
    try:
        await client.connect(5)
        yield client
    finally:
        await client.close()


def collect(into: list[Message]) -> Callable[[Message], Any]:
    async def handler(message: Message) -> None:
        into.append(message)

    return handler


def make_certificate(key: Path, certificate: Path) -> None:
    """A broker's own, signed by itself."""
    new_key = ca.new_key()
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "localhost")])
    address = x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))])
    now = datetime.now(UTC)
    builder = x509.CertificateBuilder(
        name, name, new_key.public_key(), x509.random_serial_number(), now - timedelta(days=1), now + timedelta(days=1)
    )
    signed = builder.add_extension(address, critical=False).sign(new_key, hashes.SHA256())
    key.write_bytes(ca.key_pem(new_key))
    certificate.write_text(ca.pem_of(signed))


async def test_unencodable_publication_is_refused(mosquitto: Broker) -> None:
    async with connected(settings(mosquitto)) as client:
        with pytest.raises(errors.ProtocolError, match="'a' cannot be published"):
            await client.publish(Publication("a", b"", expiry_s=2**32))
        assert not client._connection._client._out_messages
        await client.publish(Publication("a", b"", expiry_s=2**32 - 1))
        with pytest.raises(errors.ProtocolError, match=r"'a/\+' cannot be published: [^.]+\.$"):
            await client.publish(Publication("a/+", b""))


async def test_everything_of_a_publication_arrives(mosquitto: Broker) -> None:
    got: list[Message] = []
    async with connected(settings(mosquitto)) as client:
        await client.subscribe("a/+", collect(got))
        sent = Publication("a/b", b"\0\xff", {"k": "v", "ü": "ö"}, "a/res", b"\1\2", expiry_s=7)
        assert await client.publish(sent)
        assert await client.publish(Publication("a/b", b"", qos=0))
        await until(lambda: len(got) == 2)
    first = got[0]
    assert (first.topic, first.payload, first.properties) == ("a/b", b"\0\xff", {"k": "v", "ü": "ö"})
    assert (first.response_topic, first.correlation_data, first.expiry_s, first.qos) == ("a/res", b"\1\2", 7, 1)
    assert got[1].qos == 0


async def test_a_round_trip_is_not_held_back_by_nagle(mosquitto: Broker) -> None:
    answered: asyncio.Queue[Message] = asyncio.Queue()
    async with connected(settings(mosquitto)) as device, connected(settings(mosquitto)) as gateway:

        async def echo(message: Message) -> None:
            await gateway.publish(Publication(message.response_topic, message.payload))

        await gateway.subscribe("$share/g/req/+", echo)
        await device.subscribe("res", answered.put)
        waits_ms = []
        for _ in range(50):
            started_s = time.perf_counter()
            await device.publish(Publication("req/m", b"x" * 4000, response_topic="res"))
            await answered.get()
            waits_ms.append((time.perf_counter() - started_s) * 1000)
    assert statistics.median(waits_ms) < 20  # 40 and more where packets wait for an acknowledgement


async def test_after_a_cut_it_returns_with_its_subscriptions(mosquitto: Broker) -> None:
    got: list[Message] = []
    greetings = losses = 0

    async def greet() -> None:
        nonlocal greetings
        greetings += 1

    def lose() -> None:
        nonlocal losses
        losses += 1

    async with connected(settings(mosquitto), on_connected=greet, on_lost=lose) as client:
        await client.subscribe("a/#", collect(got))
        mosquitto.stop()
        await until(lambda: not client.connected)
        started_s = time.perf_counter()
        with pytest.raises(errors.LinkDownError, match="Not connected"):
            await client.publish(Publication("a/b", b""))
        assert time.perf_counter() - started_s < 1  # and not what a connection may take
        mosquitto.start()
        await client.connect(5)
        await client.publish(Publication("a/b", b"again"))
        await until(lambda: len(got) == 1)
    assert (greetings, losses) == (2, 2)


async def test_clients_with_one_id_back_off(mosquitto: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    waited_after: list[int] = []

    def soon(_rng: object, failures: int, **_bounds: float) -> float:
        waited_after.append(failures)
        return 0.01

    monkeypatch.setattr(mqtt, "full_jitter_s", soon)
    async with connected(settings(mosquitto, "same")), connected(settings(mosquitto, "same")):
        await until(lambda: len(waited_after) >= 10)
    assert max(waited_after) >= 4  # each time a longer pause


async def test_a_lost_connection_asks_for_another_client_with_its_id(mosquitto: Broker) -> None:
    async with connected(settings(mosquitto, "same", reconnect_max_s=30)) as client:
        lost = client._connection.lost
        async with connected(settings(mosquitto, "same", reconnect_max_s=30)):
            assert "another client use the client id same" in await asyncio.wait_for(lost, 5)


async def test_unacknowledged_publication_fails_with_the_connection(mosquitto: Broker) -> None:
    async with connected(settings(mosquitto)) as client:
        os.kill(mosquitto._process.pid, signal.SIGSTOP)
        publishing = asyncio.create_task(client.publish(Publication("a", b"")))
        connection = client._connection
        library = connection._client
        await until(lambda: len(connection._waiting) == 1 and not library.want_write())  # it is written
        mosquitto.kill()
        with pytest.raises(errors.LinkDownError, match="lost"):
            await asyncio.wait_for(publishing, 5)


async def test_attempts_start_before_there_is_a_broker(mosquitto: Broker) -> None:
    mosquitto.stop()
    client = MqttClient(settings(mosquitto))
    client.start()
    await client.first_attempt()
    with pytest.raises(errors.LinkDownError, match="cannot be reached"):
        await client.connect(0.1)
    mosquitto.start()
    await client.connect(5)
    assert client.last_error is None
    await client.close()
    with pytest.raises(errors.LinkDownError):
        await client.publish(Publication("a", b""))


async def test_connect_ends_the_reconnect_pause(mosquitto: Broker) -> None:
    mosquitto.stop()
    clock = SimulatedClock()  # whose pauses never end
    client = MqttClient(settings(mosquitto), clock=clock)
    client.start()
    await until(lambda: clock.sleepers == 1)
    mosquitto.start()
    await client.connect(5)
    await client.close()


async def test_refused_password_is_an_error(start_mosquitto: Callable[..., Broker]) -> None:
    broker = start_mosquitto(users={"cam": "right"})
    client = MqttClient(settings(broker, username="cam", password="wrong"))
    with pytest.raises(errors.UnauthorizedError, match="Not authorized"):
        await client.connect(0.5)
    await client.close()
    async with connected(settings(broker, username="cam", password="right")):
        pass
    assert "right" not in repr(settings(broker, password="right"))


async def test_publication_over_the_brokers_limit_is_refused(start_mosquitto: Callable[..., Broker]) -> None:
    broker = start_mosquitto(settings=["max_packet_size 20000"])
    async with connected(settings(broker)) as client:
        with pytest.raises(errors.PayloadTooLargeError, match="20000"):
            await client.publish(Publication("a", b"x" * 20_000))
        for size in range(19_900, 20_000):
            try:
                await client.publish(Publication("a", b"x" * size, {"k": "v"}, "res", b"17"))
            except errors.PayloadTooLargeError:
                break
        assert client.connected
        assert size > 19_930


async def test_packets_may_be_as_large_as_mqtt_has_them(mosquitto: Broker) -> None:
    async with connected(settings(mosquitto, maximum_packet_bytes=300_000_000)) as client:
        assert await client.publish(Publication("a", b"")) is False


async def test_library_error_is_raised_and_retried() -> None:
    clock = SimulatedClock()
    client = MqttClient(MqttSettings("", client_id="x"), clock=clock)
    with pytest.raises(errors.ConfigError, match="make no sense: Invalid host"):
        await client.connect(0.5)
    await until(lambda: clock.sleepers == 1)  # the pause before the next attempt
    await client.close()


async def test_failing_callback_leads_to_a_reconnect(mosquitto: Broker) -> None:
    calls = 0

    async def fail_once() -> None:
        nonlocal calls
        calls += 1
        if calls == 1:
            raise ZeroDivisionError("a bug")

    client = MqttClient(settings(mosquitto), on_connected=fail_once)
    client.start()
    await until(lambda: client.connected)
    assert calls == 2
    assert client.last_error is None
    await client.close()


async def test_refused_subscription_prevents_no_later_connection(mosquitto: Broker) -> None:
    async with connected(settings(mosquitto)) as client:
        with pytest.raises(errors.ProtocolError, match=r"is no topic filter: [^.]+\.$"):
            await client.subscribe("a/#/b", collect([]))
        await client.reconnect()
        await client.connect(5)


async def test_subscriptions_made_while_it_connects_are_not_forgotten(mosquitto: Broker) -> None:
    got: list[Message] = []

    async def introduce() -> None:
        await client.subscribe("late", collect(got))

    async with connected(settings(mosquitto)) as sender:
        client = MqttClient(settings(mosquitto), on_connected=introduce)
        await client.subscribe("early", collect(got))
        await client.connect(5)
        assert await sender.publish(Publication("early", b"early"))
        assert await sender.publish(Publication("late", b"late"))
        await until(lambda: len(got) == 2)
        await client.close()


async def test_unsubscribed_topics_stay_silent_after_a_reconnect(mosquitto: Broker) -> None:
    got: list[Message] = []
    async with connected(settings(mosquitto)) as client, connected(settings(mosquitto)) as sender:
        await client.subscribe("a", collect(got))
        await client.subscribe("b", collect(got))
        await sender.publish(Publication("a", b"before"))
        assert await sender.publish(Publication("a", b"too")) is True
        await until(lambda: len(got) == 2)
        await client.unsubscribe("a")
        await client.unsubscribe("a")  # again is harmless
        assert await sender.publish(Publication("a", b"after")) is False
        mosquitto.stop()
        await until(lambda: not client.connected and not sender.connected)
        mosquitto.start()
        await asyncio.gather(client.connect(5), sender.connect(5))
        assert await sender.publish(Publication("a", b"much later")) is False
        await sender.publish(Publication("b", b"other"))
        await until(lambda: len(got) == 3)
    assert [message.payload for message in got] == [b"before", b"too", b"other"]


async def test_failing_handlers_do_not_block_others(mosquitto: Broker) -> None:
    seen = 0

    async def fail(message: Message) -> None:
        nonlocal seen
        seen += 1
        raise ValueError("a bug")

    async with connected(settings(mosquitto, receive_maximum=4)) as client:
        await client.subscribe("work", fail)
        for _ in range(12):
            await client.publish(Publication("work", b""))
        await until(lambda: seen == 12)


async def test_no_more_handlers_run_at_once_than_allowed(mosquitto: Broker) -> None:
    running = most = done = 0

    async def work(_message: Message) -> None:
        nonlocal running, most, done
        running += 1
        most = max(most, running)
        await asyncio.sleep(0.01)
        running -= 1
        done += 1

    async with connected(settings(mosquitto, receive_maximum=3)) as client:
        await client.subscribe("work", work)
        await asyncio.gather(*(client.publish(Publication("work", b"")) for _ in range(20)))
        await until(lambda: done == 20)
    assert most == 3


async def test_will_is_published_only_after_a_lost_connection(mosquitto: Broker) -> None:
    got: list[Message] = []
    will = Publication("state", b"offline", retain=True)
    async with connected(settings(mosquitto)) as watcher:
        await watcher.subscribe("state", collect(got))
        async with connected(settings(mosquitto), will=will):
            pass
        async with connected(settings(mosquitto), will=will) as client:
            client._connection._client.socket().shutdown(socket.SHUT_RDWR)
            await until(lambda: len(got) == 1)
    assert got[0].payload == b"offline"


async def test_tls_with_the_brokers_own_authority_alone(start_mosquitto: Callable[..., Broker], tmp_path: Path) -> None:
    key, certificate = tmp_path / "key.pem", tmp_path / "cert.pem"
    make_certificate(key, certificate)
    broker = start_mosquitto(settings=[f"certfile {certificate}", f"keyfile {key}"])
    got: list[Message] = []
    async with connected(settings(broker, tls_ca_file=certificate)) as client:
        await client.subscribe("a", collect(got))
        for _ in range(20):  # several in one TLS record must all be read
            await client.publish(Publication("a", b"x" * 100, qos=0))
        await client.publish(Publication("a", b"x" * 300_000))
        await until(lambda: len(got) == 21)
    absent = MqttClient(settings(broker, tls_ca_file=tmp_path / "absent.pem"))
    with pytest.raises(errors.ConfigError, match=r"absent\.pem"):
        await absent.connect(0.5)
    await absent.close()
    stranger = MqttClient(settings(broker, tls_ca_file=Path("system")))
    with pytest.raises(errors.LinkDownError, match="TLS"):
        await stranger.connect(0.5)
    await stranger.close()


@pytest.mark.parametrize(
    "greeting", [b"", b"HTTP/1.1 400 Bad Request\r\n\r\n", b"\x20\xff\xff\xff\xff\xff\xff", b"\x20\x02"]
)
async def test_other_server_is_a_link_error(greeting: bytes) -> None:
    served: set[asyncio.Task[None] | None] = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        served.add(asyncio.current_task())
        writer.write(greeting)
        with contextlib.suppress(ConnectionError):
            await reader.read()
        writer.transport.abort()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    client = MqttClient(MqttSettings("127.0.0.1", port, connect_timeout_s=0.1, reconnect_max_s=0.05))
    with pytest.raises(errors.LinkError):
        await client.connect(0.4)
    assert isinstance(client.last_error, errors.LinkError)
    await client.close()
    server.close()
    await asyncio.gather(*(task for task in served if task is not None))
    await server.wait_closed()


@pytest.mark.parametrize(
    ("topic_filter", "topic", "expected"),
    [
        ("a/+/c", "a/b/c", True),
        ("a/+", "a/b/c", False),
        ("a/#", "a", True),
        ("a/#", "a/b/c", True),
        ("#", "a/b", True),
        ("#", "$SYS/x", False),
        ("+/x", "$SYS/x", False),
        ("$share/g/a/+", "a/b", True),
        ("a", "a/b", False),
        ("a/b", "a", False),
        ("+", "", True),
    ],
)
def test_topic_filters_match(topic_filter: str, topic: str, expected: bool) -> None:
    assert matches(topic_filter, topic) is expected
