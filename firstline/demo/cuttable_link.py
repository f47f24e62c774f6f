"""A link between the tiers that can be cut: a TCP forwarder that counts bytes."""

from __future__ import annotations

import asyncio
import socket
from types import TracebackType
from typing import Self

_CHUNK_BYTES = 64 * 1024
_TURNS_TO_ACCEPT = 4


async def close_listener(listener: asyncio.Server) -> None:
    """Closes a listener after it has handed over each connection that it has accepted.

    asyncio never closes a connection that it has accepted in the moment in which its listener is closed.
    """
    for listening in listener.sockets:
        asyncio.get_running_loop().remove_reader(listening.fileno())  # it accepts nothing more
    for _ in range(_TURNS_TO_ACCEPT):
        await asyncio.sleep(0)
    listener.close()


class CuttableLink:
    """Forwards one loopback port to a server, until it is cut.

    While it is cut, open connections are reset and new ones refused, as if a cable was pulled at the far router. When
    it is restored, it listens on the same port again.

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
        self._carriers: dict[asyncio.Task[None], asyncio.StreamWriter] = {}
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
        """Listens on the same port again."""
        if self._listener is None:
            self._listener = await asyncio.start_server(self._accept, "127.0.0.1", self.port)
            self.port = self._listener.sockets[0].getsockname()[1]

    async def cut(self) -> None:
        """Resets every connection and refuses new ones."""
        listener, self._listener = self._listener, None
        if listener is None:
            return
        await close_listener(listener)  # what it has just accepted comes to `_accept`, and ends there
        for carrier, near in self._carriers.items():
            carrier.cancel()
            near.transport.abort()  # a task that is cancelled before its first step closes nothing
        await asyncio.gather(*self._carriers, return_exceptions=True)
        await listener.wait_closed()

    def _accept(self, near_reader: asyncio.StreamReader, near: asyncio.StreamWriter) -> None:
        if self._listener is None:  # accepted in the moment of the cut
            near.transport.abort()
            return
        carrier = asyncio.create_task(self._carry(near_reader, near))
        self._carriers[carrier] = near
        carrier.add_done_callback(self._carriers.pop)

    async def _carry(self, near_reader: asyncio.StreamReader, near: asyncio.StreamWriter) -> None:
        """Forwards one connection until both sides have closed it; after an error both are reset."""
        open_writers = [near]
        try:
            far_reader, far = await asyncio.open_connection("127.0.0.1", self._server_port)
            open_writers.append(far)
            for writer in open_writers:
                writer.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            async with asyncio.TaskGroup() as group:
                group.create_task(self._pump(near_reader, far, sent=True))
                group.create_task(self._pump(far_reader, near, sent=False))
            for writer in open_writers:
                writer.close()
                await writer.wait_closed()
        except* OSError:
            pass  # one side was reset; so is the other
        finally:
            for writer in open_writers:
                writer.transport.abort()

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, sent: bool) -> None:
        while chunk := await reader.read(_CHUNK_BYTES):
            if sent:
                self.bytes_sent += len(chunk)
            else:
                self.bytes_received += len(chunk)
            writer.write(chunk)
            await writer.drain()
        writer.write_eof()
