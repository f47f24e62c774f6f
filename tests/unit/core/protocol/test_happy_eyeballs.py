"""Clients of a name whose first address is silent: all of them reach the second one in well below a second."""

import asyncio
import socket
import time
from collections.abc import Awaitable, Callable, Iterator

import pytest
from support.silent_address import NAME, silent_ipv6

from firstline_core.protocol import happy_eyeballs
from firstline_core.protocol.http_client import ClientSettings, HttpClient, open_client
from firstline_core.protocol.mqtt_connection import Connection
from firstline_core.protocol.mqtt_messages import MqttSettings
from firstline_gateway.executors.oip.http_transport import PooledTransport

CONNACK = b"\x20\x03\0\0\0"
OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhi"


@pytest.fixture
def free_port() -> Iterator[int]:
    """A port that is taken, on 127.0.0.1, by a listener that accepts."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        yield listening.getsockname()[1]


def test_silent_first_address_delays_by_a_quarter_second(free_port: int) -> None:
    with silent_ipv6(free_port):
        started_s = time.monotonic()
        with happy_eyeballs.connect(NAME, free_port, 5) as connected:
            assert connected.getpeername() == ("127.0.0.1", free_port)
            assert connected.gettimeout() == 5
        assert 0.2 < time.monotonic() - started_s < 1


def test_a_refusing_first_address_delays_nothing(free_port: int) -> None:
    with silent_ipv6(free_port):
        pass  # ::1 refuses from now on
    with pytest.MonkeyPatch.context() as patched:
        found = [
            (socket.AF_INET6, socket.SOCK_STREAM, 6, "", ("::1", free_port, 0, 0)),
            (socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.0.1", free_port)),
        ]
        patched.setattr(socket, "getaddrinfo", lambda *_, **__: found)
        patched.setattr(happy_eyeballs, "DELAY_S", 10.0)
        started_s = time.monotonic()
        happy_eyeballs.connect(NAME, free_port, 20).close()
        assert time.monotonic() - started_s < 5


def test_silence_of_every_address_is_a_timeout() -> None:
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        port = listening.getsockname()[1]
        with silent_ipv6(port), pytest.MonkeyPatch.context() as patched:
            patched.setattr(
                socket, "getaddrinfo", lambda *_, **__: [(socket.AF_INET6, socket.SOCK_STREAM, 6, "", ("::1", port))]
            )
            with pytest.raises(TimeoutError):
                happy_eyeballs.connect(NAME, port, 0.1)


def test_refusals_of_all_addresses_are_reported() -> None:
    with pytest.raises(ConnectionRefusedError):
        happy_eyeballs.connect("127.0.0.1", 1, 5)


def test_a_name_without_addresses_is_reported() -> None:
    with pytest.raises(socket.gaierror):
        happy_eyeballs.connect("absent.invalid", 1, 5)


async def blocking(port: int) -> None:
    with open_client(ClientSettings(f"http://{NAME}:{port}", timeout=5)) as client:
        assert (await asyncio.to_thread(client.get, "/")).content == b"hi"


async def over_httpx(port: int) -> None:
    client = HttpClient(ClientSettings(f"http://{NAME}:{port}"), limit_bytes=1000)
    assert (await client.exchange("GET", "/", {}, b"", 5)).body == b"hi"
    await client.close()


async def over_aiohttp(port: int) -> None:
    client = HttpClient(ClientSettings(f"http://{NAME}:{port}"), limit_bytes=1000, transport=PooledTransport(tls=False))
    assert (await client.exchange("GET", "/", {}, b"", 5)).body == b"hi"
    await client.close()


async def over_mqtt(port: int) -> None:
    connection = Connection(MqttSettings(NAME, port), will=None, on_message=lambda _: None)
    await connection.open()
    await connection.close()


@pytest.mark.parametrize("ask", [blocking, over_httpx, over_aiohttp, over_mqtt])
async def test_every_client_gets_past_a_silent_address(ask: Callable[[int], Awaitable[None]]) -> None:
    ended = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(CONNACK if (await reader.read(1000))[:1] == b"\x10" else OK)
        await reader.read()
        writer.close()
        ended.set()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        with silent_ipv6(port):
            started_s = time.monotonic()
            await ask(port)
            assert time.monotonic() - started_s < 1
            await asyncio.wait_for(ended.wait(), 5)
