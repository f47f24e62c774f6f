from __future__ import annotations

import asyncio
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


async def test_a_wire_carries_both_ways_and_counts(echo_port: int) -> None:
    async with CuttableLink(echo_port) as wire:
        reader, writer = await asyncio.open_connection("127.0.0.1", wire.port)
        assert await exchanged(reader, writer, b"x" * 100_000) == b"x" * 100_000
        assert (wire.bytes_sent, wire.bytes_received) == (100_000, 100_000)
        writer.write_eof()
        assert await reader.read() == b""
        writer.close()


async def test_a_cut_wire_resets_what_is_open_refuses_what_is_new_and_returns_on_its_port(echo_port: int) -> None:
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


async def test_a_server_that_is_gone_resets_the_caller() -> None:
    async with await asyncio.start_server(lambda *_: None, "127.0.0.1", 0) as server:
        closed_port = server.sockets[0].getsockname()[1]
    async with CuttableLink(closed_port) as wire:
        reader, writer = await asyncio.open_connection("127.0.0.1", wire.port)
        with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):
            await exchanged(reader, writer, b"anyone?")
        writer.close()


async def test_what_was_accepted_in_the_moment_of_the_cut_is_closed(echo_port: int) -> None:
    async with CuttableLink(echo_port) as wire:
        near = FakeWriter()
        wire._accept(asyncio.StreamReader(), near)  # type: ignore[arg-type]
        await wire.cut()
        assert near.aborted


class FakeWriter:
    """The part of a `StreamWriter` that a wire needs of one it never writes to."""

    aborted = False

    @property
    def transport(self) -> FakeWriter:
        return self

    def abort(self) -> None:
        self.aborted = True
