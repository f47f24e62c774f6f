import asyncio
import contextlib
import gc
import socket
from collections.abc import AsyncIterator

import pytest

from firstline.demo.cuttable_link import CuttableLink


@pytest.fixture
async def echo_port() -> AsyncIterator[int]:
    async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while chunk := await reader.read(1024):
            writer.write(chunk)
            await writer.drain()
        writer.close()

    async with await asyncio.start_server(echo, "127.0.0.1", 0) as server:
        yield server.sockets[0].getsockname()[1]


async def exchanged(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, message: bytes) -> bytes:
    writer.write(message)
    return await reader.readexactly(len(message))


async def test_link_carries_and_counts_both_directions(echo_port: int) -> None:
    async with CuttableLink(echo_port) as wire:
        reader, writer = await asyncio.open_connection("127.0.0.1", wire.port)
        assert await exchanged(reader, writer, b"x" * 100_000) == b"x" * 100_000
        assert (wire.bytes_sent, wire.bytes_received) == (100_000, 100_000)
        writer.write_eof()
        assert await reader.read() == b""
        writer.close()


async def test_cut_link_resets_and_refuses_until_restored(echo_port: int) -> None:
    async with CuttableLink(echo_port) as wire:
        port = wire.port
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        assert await exchanged(reader, writer, b"before") == b"before"
        await wire.cut()
        with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):
            await exchanged(reader, writer, b"during")
        writer.transport.abort()
        with pytest.raises(ConnectionRefusedError):
            await asyncio.open_connection("127.0.0.1", port)
        await wire.restore()
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        assert await exchanged(reader, writer, b"after") == b"after"
        writer.close()


async def test_stopped_server_resets_the_caller() -> None:
    async with await asyncio.start_server(lambda *_: None, "127.0.0.1", 0) as server:
        closed_port = server.sockets[0].getsockname()[1]
    async with CuttableLink(closed_port) as wire:
        reader, writer = await asyncio.open_connection("127.0.0.1", wire.port)
        with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):
            await exchanged(reader, writer, b"anyone?")
        writer.close()


@pytest.mark.parametrize("turns", range(8))
async def test_connection_accepted_during_the_cut_is_closed(echo_port: int, turns: int) -> None:
    """Of a connection without a transport in the moment of the cut, asyncio warns when it is collected."""
    async with CuttableLink(echo_port) as wire:
        cut = asyncio.create_task(wire.cut())
        for _ in range(turns):
            await asyncio.sleep(0)
        with contextlib.suppress(ConnectionRefusedError), socket.create_connection(("127.0.0.1", wire.port)) as late:
            await cut
            late.settimeout(5)
            with contextlib.suppress(ConnectionResetError):
                assert late.recv(1) == b""
        await cut
    gc.collect()
