"""Connections of strangers to the console, over a real socket."""

import asyncio
import socket
import ssl
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, asynccontextmanager, contextmanager, suppress
from pathlib import Path

import pytest
import uvicorn
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from firstline.console import connections
from firstline_gateway.identity import ca

HERE = PlainTextResponse("here")
ASKED = b"GET / HTTP/1.1\r\nHost: a\r\n\r\n"


@asynccontextmanager
async def serving(
    most: int | None = None, app: ASGIApp = HERE, tls: Path | None = None
) -> AsyncIterator[tuple[str, int]]:
    """The address of a server with these connections; with TLS if the file of its certificate and key is named."""

    class Server(uvicorn.Server):
        @contextmanager
        def capture_signals(self) -> Iterator[None]:
            yield

    config = uvicorn.Config(
        app,
        http=connections.Connection,
        log_level="warning",
        lifespan="off",
        limit_concurrency=most,
        timeout_keep_alive=60,
        ssl_certfile=tls,
    )
    server = Server(config)
    opened = socket.create_server(("127.0.0.1", 0))
    with connections.TlsListener(opened, server.server_state.connections) as listening:
        running = asyncio.create_task(server.serve(sockets=[listening]))
        yield listening.getsockname()
        server.should_exit = True
        await running


async def ended(reader: asyncio.StreamReader) -> None:
    """Returns when the server has ended a connection without an answer."""
    async with asyncio.timeout(10):
        with suppress(ConnectionError):
            assert not await reader.read()


@pytest.mark.parametrize(
    ("before", "sent"),
    [
        pytest.param(b"", b"", id="silent"),
        pytest.param(b"", ASKED[:-2], id="slow"),
        pytest.param(ASKED, b"GET", id="slow after an answer"),
    ],
)
async def test_a_slow_head_ends_its_connection(before: bytes, sent: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "HEAD_S", 0.5)
    async with serving() as address:
        reader, writer = await asyncio.open_connection(*address)
        writer.write(before)
        if before:
            assert (await reader.readuntil(b"here")).startswith(b"HTTP/1.1 200")
        writer.write(sent)
        await ended(reader)
        writer.close()


async def test_a_large_head_ends_its_connection() -> None:
    async with serving() as address:
        reader, writer = await asyncio.open_connection(*address)
        writer.write(ASKED[:-2] + b"X: " + bytes(b"a" * 2 * connections.HEAD_BYTES))
        await ended(reader)
        writer.close()


@pytest.mark.parametrize(
    "sent",
    [
        pytest.param(b"", id="silent"),
        pytest.param(ASKED, id="answered"),
        pytest.param(b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 9\r\n\r\nuser", id="slow form"),
    ],
)
async def test_the_oldest_waiting_connection_gives_way(sent: bytes) -> None:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        while (await receive()).get("more_body"):
            pass
        await HERE(scope, receive, send)

    async with serving(4, app) as address:
        writers = []
        for request in (sent, sent, sent, ASKED):
            reader, writer = await asyncio.open_connection(*address)
            writers.append(writer)
            writer.write(request)
            if request == ASKED:
                async with asyncio.timeout(10):
                    assert (await reader.readuntil(b"\r\n")).startswith(b"HTTP/1.1 200")
        for writer in writers:
            writer.close()


async def test_clients_that_read_no_answer_give_way() -> None:
    app = PlainTextResponse("x" * 1_000_000)
    async with serving(4, app) as address:
        with ExitStack() as opened:
            for _ in range(4):
                client = opened.enter_context(socket.create_connection(address))
                client.setblocking(False)
                client.sendall(ASKED * 20)
                await asyncio.get_running_loop().sock_recv(client, 1)
            reader, writer = await asyncio.open_connection(*address)
            writer.write(ASKED)
            async with asyncio.timeout(10):
                assert (await reader.readuntil(b"\r\n")).startswith(b"HTTP/1.1 200")
            writer.close()


async def test_oldest_handshakes_give_way(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "HANDSHAKES", 4)
    authority = ca.create_authority(ca.new_key(), time.time())
    certificate, key = ca.issue_server(authority, ["localhost"], time.time())
    file = tmp_path / "server.pem"
    file.write_bytes(ca.key_pem(key) + ca.pem_of(certificate).encode())
    trusting = ssl.create_default_context(cadata=authority.pem)
    async with serving(tls=file) as address:
        reader, person = await asyncio.open_connection(*address, ssl=trusting, server_hostname="localhost")
        strangers = [await asyncio.open_connection(*address) for _ in range(12)]
        await asyncio.gather(*(ended(stranger) for stranger, _ in strangers[:8]))
        later, other = await asyncio.open_connection(*address, ssl=trusting, server_hostname="localhost")
        for each, writer in ((reader, person), (later, other)):
            writer.write(ASKED)
            async with asyncio.timeout(10):
                assert (await each.readuntil(b"here")).startswith(b"HTTP/1.1 200")
        for writer in (person, other, *(writer for _, writer in strangers)):
            writer.close()


async def test_strangers_who_only_connect_displace_no_answered_connection() -> None:
    async with serving(4) as address:
        reader, person = await asyncio.open_connection(*address)
        person.write(ASKED)
        await reader.readuntil(b"here")
        strangers = [await asyncio.open_connection(*address) for _ in range(12)]
        await asyncio.gather(*(ended(stranger) for stranger, _ in strangers[:8]))
        person.write(ASKED)
        async with asyncio.timeout(10):
            assert (await reader.readuntil(b"here")).startswith(b"HTTP/1.1 200")
        for writer in (person, *(writer for _, writer in strangers)):
            writer.close()


async def test_an_answered_connection_stays_open(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "HEAD_S", 0.2)
    async with serving() as address:
        reader, writer = await asyncio.open_connection(*address)
        for pause_s in (0.0, 0.5):
            await asyncio.sleep(pause_s)
            writer.write(ASKED)
            assert (await reader.readuntil(b"here")).startswith(b"HTTP/1.1 200")
        writer.close()


UPGRADE = b"Connection: Upgrade\r\nUpgrade: %b\r\n"


async def test_body_after_another_protocol_is_no_request() -> None:
    """A proxy that passes on `Upgrade` would pass a second answer to another person."""
    async with serving() as address:
        reader, writer = await asyncio.open_connection(*address)
        writer.write(b"POST / HTTP/1.1\r\nHost: a\r\n%bContent-Length: %d\r\n\r\n" % (UPGRADE % b"h2c", len(ASKED)))
        assert (await reader.readuntil(b"here")).startswith(b"HTTP/1.1 200")
        writer.write(ASKED)
        assert await reader.read() == b""
        writer.close()


@pytest.mark.parametrize(
    "head",
    [
        pytest.param(b"GET / HTTP/1.1\r\nHost: a\r\nContent-Length: 9\r\n", id="a body"),
        pytest.param(b"GET / HTTP/1.1\r\nHost: a\r\n" + b"X: y\r\n" * 200, id="many headers"),
    ],
)
async def test_refused_websocket_heads_end_their_connection(head: bytes) -> None:
    """The library does not answer them; nothing else would close the connection."""
    async with serving() as address:
        reader, writer = await asyncio.open_connection(*address)
        writer.write(head + UPGRADE % b"websocket" + b"\r\n")
        await ended(reader)
        writer.close()
