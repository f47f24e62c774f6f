"""Connections of strangers to the console, over a real socket."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress

import pytest
import uvicorn
from starlette.responses import PlainTextResponse

from firstline.console import connections

ASKED = b"GET / HTTP/1.1\r\nHost: a\r\n\r\n"


@asynccontextmanager
async def serving() -> AsyncIterator[tuple[str, int]]:
    """The address of a server with these connections."""

    class Server(uvicorn.Server):
        @contextmanager
        def capture_signals(self) -> Iterator[None]:
            yield

    config = uvicorn.Config(
        PlainTextResponse("here"),
        http=connections.Connection,
        log_level="warning",
        lifespan="off",
        timeout_keep_alive=60,
    )
    server = Server(config)
    with socket.create_server(("127.0.0.1", 0)) as listening:
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


async def test_an_answered_connection_stays_open(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "HEAD_S", 0.2)
    async with serving() as address:
        reader, writer = await asyncio.open_connection(*address)
        for pause_s in (0.0, 0.5):
            await asyncio.sleep(pause_s)
            writer.write(ASKED)
            assert (await reader.readuntil(b"here")).startswith(b"HTTP/1.1 200")
        writer.close()
