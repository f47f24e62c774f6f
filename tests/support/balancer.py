"""What stands before replicas: each new connection goes to the next of them, and past those that take none."""

from __future__ import annotations

import asyncio
import itertools
from typing import Self


class Balancer:
    """A TCP round robin on loopback, within its `async with`.

    Args:
        ports: of the replicas, on this machine.
    """

    def __init__(self, ports: list[int]) -> None:
        self._ports = ports
        self._turns = itertools.count()
        self._connections: set[asyncio.Task[None]] = set()
        self.port = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._carry, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        for connection in tuple(self._connections):
            connection.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._connections.add(task)
        task.add_done_callback(self._connections.discard)
        far = await self._connect()
        if far is None:
            writer.transport.abort()
            return
        try:
            async with asyncio.TaskGroup() as both:
                both.create_task(_pipe(reader, far[1]))
                both.create_task(_pipe(far[0], writer))
        except* OSError:
            pass
        finally:
            writer.transport.abort()
            far[1].transport.abort()

    async def _connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter] | None:
        first = next(self._turns)
        for at in range(len(self._ports)):
            try:
                return await asyncio.open_connection("127.0.0.1", self._ports[(first + at) % len(self._ports)])
            except OSError:
                continue
        return None


async def _pipe(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(1 << 16):
        writer.write(data)
        await writer.drain()
    raise ConnectionResetError  # one side's end is the end of both
