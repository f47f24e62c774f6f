"""Who has come in and asked nothing yet: TLS handshakes are bounded in time, and all newcomers together in number.

To connect costs a stranger nothing, and us a descriptor. Where more wait than there is room for, the one that has
waited longest loses its connection: an honest client asks within a moment, and somebody who floods ends his own.
"""

from __future__ import annotations

import asyncio
import contextlib
import resource
import socket
import ssl
from collections.abc import Callable
from typing import Protocol

from firstline_core.telemetry.logs import logger

HANDSHAKE_TIMEOUT_S = 10.0
NEWCOMERS_LIMIT = 4096
_DESCRIPTORS_WANTED = 65_536
_ACCEPTED_AT_ONCE = 64
_RETRY_S = 1.0

log = logger(__name__)


class Endable(Protocol):
    """A connection that can be ended at once; a transport is one."""

    def abort(self) -> None: ...


class Newcomers:
    """Connections without a whole head of a request so far; used on the event loop alone.

    Args:
        limit: of them.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._waiting: dict[object, Endable] = {}  # oldest first

    def enter(self, who: object, connection: Endable) -> None:
        """Somebody has connected; the oldest makes room."""
        self._waiting[who] = connection
        if len(self._waiting) > self._limit:
            self._waiting.pop(next(iter(self._waiting))).abort()

    def leave(self, who: object) -> None:
        """It has asked, or is gone."""
        self._waiting.pop(who, None)

    def end(self) -> None:
        """Closes what is left of them."""
        while self._waiting:
            self._waiting.popitem()[1].abort()


class _Accepted:
    """A socket whose transport nobody has yet, for it is made with the handshake."""

    def __init__(self, taken: socket.socket) -> None:
        self._taken = taken

    def abort(self) -> None:
        with contextlib.suppress(OSError):  # gone already
            self._taken.shutdown(socket.SHUT_RDWR)


class Door:
    """Takes connections, and makes their TLS handshakes; what uvicorn has of a server.

    By hand, for a server of asyncio's or uvloop's says nothing of a connection before its handshake has ended.

    Args:
        bound: a socket that listens from now on.
        backlog: the most connections that wait to be taken.
        behind: makes what takes a connection once it is private.
        context: the server's.
        newcomers: where each counts from its first moment on.
    """

    def __init__(
        self,
        bound: socket.socket,
        behind: Callable[[], asyncio.Protocol],
        context: ssl.SSLContext,
        newcomers: Newcomers,
        *,
        backlog: int,
    ) -> None:
        self._listening = bound
        self._behind = behind
        self._context = context
        self._newcomers = newcomers
        self._shaking: set[asyncio.Task[None]] = set()
        self._retry: asyncio.TimerHandle | None = None
        self._loop = asyncio.get_running_loop()
        bound.setblocking(False)
        bound.listen(backlog)
        self._open()

    def close(self) -> None:
        """Lets nobody new in; calling it twice is harmless."""
        if self._listening.fileno() < 0:
            return
        self._loop.remove_reader(self._listening.fileno())
        if self._retry is not None:
            self._retry.cancel()
        self._listening.close()

    async def wait_closed(self) -> None:
        """Returns once no handshake is under way."""
        await asyncio.gather(*self._shaking, return_exceptions=True)

    def _open(self) -> None:
        self._loop.add_reader(self._listening.fileno(), self._accept)

    def _accept(self) -> None:
        for _ in range(_ACCEPTED_AT_ONCE):
            try:
                taken, _address = self._listening.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:  # no descriptor, no memory
                log.error("cannot take a connection", error=error.strerror)
                self._loop.remove_reader(self._listening.fileno())
                self._retry = self._loop.call_later(_RETRY_S, self._open)
                return
            taken.setblocking(False)
            taken.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # see `server.bind`
            shaking = self._loop.create_task(self._shake(taken))
            self._shaking.add(shaking)
            shaking.add_done_callback(self._shaking.discard)

    async def _shake(self, taken: socket.socket) -> None:
        behind = self._behind()
        self._newcomers.enter(behind, _Accepted(taken))
        try:
            await self._loop.connect_accepted_socket(
                lambda: behind, taken, ssl=self._context, ssl_handshake_timeout=HANDSHAKE_TIMEOUT_S
            )
        except OSError as error:  # ssl.SSLError is one
            log.debug("no TLS handshake", error=str(error))
            self._newcomers.leave(behind)


def newcomers_limit() -> int:
    """At most half of the descriptors that this process may have: the rest is for those who ask."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:  # -1, of which half is no limit
        return NEWCOMERS_LIMIT
    return max(1, min(NEWCOMERS_LIMIT, soft // 2))


def raise_descriptor_limit() -> None:
    """Takes as many descriptors as this process may; the soft limit is for programs that use select(2)."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _DESCRIPTORS_WANTED if hard == resource.RLIM_INFINITY else min(hard, _DESCRIPTORS_WANTED)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
