"""The link between the tiers as something that can be cut: a TCP forwarder that counts what it carries."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from types import TracebackType
from typing import Self

_CHUNK_BYTES = 64 * 1024


class Wire:
    """Forwards one loopback port to a server, until it is cut.

    Cut, the port is closed: open connections are reset and new ones refused, as when a cable is pulled from the
    far router. Restored, it listens on the same port again.

    Args:
        port: the server's port on 127.0.0.1.

    Attributes:
        port: the port to connect to.
        bytes_sent: bytes carried towards the server.
        bytes_received: bytes carried back.
    """

    def __init__(self, port: int) -> None:
        self._server_port = port
        self._listener: asyncio.Server | None = None
        self._open: set[asyncio.StreamWriter] = set()
        self.port = 0
        self.bytes_sent = 0
        self.bytes_received = 0

    async def __aenter__(self) -> Self:
        await self.restore()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.cut()

    async def restore(self) -> None:
        """Listens, on the same port as before."""
        if self._listener is None:
            self._listener = await asyncio.start_server(self._carry, "127.0.0.1", self.port)
            self.port = self._listener.sockets[0].getsockname()[1]

    async def cut(self) -> None:
        """Resets every connection and refuses new ones."""
        if self._listener is None:
            return
        self._listener.close()
        for writer in list(self._open):
            writer.transport.abort()
        await self._listener.wait_closed()
        self._listener = None

    async def _carry(self, near_reader: asyncio.StreamReader, near: asyncio.StreamWriter) -> None:
        try:
            far_reader, far = await asyncio.open_connection("127.0.0.1", self._server_port)
        except OSError:
            near.transport.abort()
            return
        if self._listener is None:  # cut while the far side was being reached
            near.transport.abort()
            far.transport.abort()
            return
        for writer in (near, far):
            writer.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._open |= {near, far}
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._pump(near_reader, far, sent=True))
                group.create_task(self._pump(far_reader, near, sent=False))
        finally:
            self._open -= {near, far}
            for writer in (near, far):
                writer.close()
                with contextlib.suppress(OSError):
                    await writer.wait_closed()

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, sent: bool) -> None:
        with contextlib.suppress(OSError):
            while chunk := await reader.read(_CHUNK_BYTES):
                if sent:
                    self.bytes_sent += len(chunk)
                else:
                    self.bytes_received += len(chunk)
                writer.write(chunk)
                await writer.drain()
        with contextlib.suppress(OSError, RuntimeError):
            if writer.can_write_eof():
                writer.write_eof()
