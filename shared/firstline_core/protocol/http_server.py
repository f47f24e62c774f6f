"""A small HTTP/1.1 server for one handler: it listens, holds its connections, and ends with its answers given.

A device needs no more of a server than this, and general ones bring what costs it megabytes and wakes it ten times a
second. One connection is in `http_connection.py`.
"""

from __future__ import annotations

import asyncio
import resource
import socket
from collections.abc import Iterable

from firstline_core.protocol.http_connection import Connection, Handle

_BACKLOG = 2048
_CANCELLED_S = 1.0
_CONNECTIONS_LIMIT = 4096


class HttpServer:
    """Serves on sockets that are bound already.

    Args:
        handle: answers.
    """

    def __init__(self, handle: Handle) -> None:
        self.handle = handle
        self.is_ending = False
        self._limit = connections_limit()
        self._listening: list[asyncio.Server] = []
        self._connections: dict[Connection, None] = {}  # oldest first
        self._tasks: set[asyncio.Task[None]] = set()
        self._ended = asyncio.Event()

    async def start(self, listeners: Iterable[socket.socket]) -> None:
        """Takes connections from now on."""
        loop = asyncio.get_running_loop()
        for listener in listeners:
            listening = await loop.create_server(lambda: Connection(self), sock=listener, backlog=_BACKLOG)
            self._listening.append(listening)

    async def stop(self, drain_s: float) -> None:
        """Takes none any more, and ends those that there are with their present answers.

        Args:
            drain_s: that these may take; what outlives it is told to come again.
        """
        self.is_ending = True
        for listening in self._listening:
            listening.close()
        for connection in tuple(self._connections):
            connection.end()
        await self._until_ended(drain_s)
        for task in self._tasks:
            task.cancel()
        await self._until_ended(_CANCELLED_S if self._tasks else 0)
        for connection in tuple(self._connections):
            connection.abort()

    async def _until_ended(self, timeout_s: float) -> None:
        self._look_if_ended()
        try:
            async with asyncio.timeout(timeout_s):
                await self._ended.wait()
        except TimeoutError:
            return

    def _look_if_ended(self) -> None:
        if self.is_ending and not self._connections and not self._tasks:
            self._ended.set()

    # What connections tell.

    def opened(self, connection: Connection) -> None:
        """Counts it in. Where there are too many, the oldest that asks nothing makes room, or else this one."""
        self._connections[connection] = None
        if self.is_ending:  # it was let in just before
            connection.end()
        elif len(self._connections) > self._limit:
            next(filter(lambda each: each.is_idle, self._connections)).abort()

    def closed(self, connection: Connection) -> None:
        self._connections.pop(connection, None)
        self._look_if_ended()

    def keep(self, task: asyncio.Task[None]) -> None:
        self._tasks.add(task)
        task.add_done_callback(self._forget)

    def _forget(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        self._look_if_ended()


def connections_limit() -> int:
    """At most half of the descriptors that this process may have: the rest is for what it does for who asks."""
    descriptors, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return _CONNECTIONS_LIMIT if descriptors == resource.RLIM_INFINITY else min(_CONNECTIONS_LIMIT, descriptors // 2)
