"""Who has come in and asked nothing yet: TLS handshakes are bounded in time, and all newcomers together in number.

To connect costs a stranger nothing, and us a descriptor. Where more wait than there is room for, the one that has
waited longest loses its connection: an honest client asks within a moment, and somebody who floods ends his own.
"""

from __future__ import annotations

import asyncio
import resource
import ssl

from firstline_core.telemetry.logs import logger

HANDSHAKE_TIMEOUT_S = 10.0
NEWCOMERS_LIMIT = 4096
_DESCRIPTORS_WANTED = 65_536

log = logger(__name__)


class Newcomers:
    """Connections without a whole head of a request so far; used on the event loop alone.

    Args:
        limit: of them.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._waiting: dict[asyncio.Protocol, asyncio.Transport] = {}  # oldest first

    def __len__(self) -> int:
        return len(self._waiting)

    def enter(self, who: asyncio.Protocol, transport: asyncio.Transport) -> None:
        """Somebody has connected; the oldest makes room."""
        self._waiting[who] = transport
        if len(self._waiting) > self._limit:
            self._waiting.pop(next(iter(self._waiting))).abort()

    def leave(self, who: asyncio.Protocol) -> None:
        """It has asked, or is gone."""
        self._waiting.pop(who, None)

    def end(self) -> None:
        """Closes what is left of them."""
        while self._waiting:
            self._waiting.popitem()[1].abort()


class Door(asyncio.Protocol):
    """Makes the TLS handshake of one connection, and hands it over.

    Args:
        behind: takes the connection once it is private; its `connection_made` is given TLS's transport.
        context: the server's.
        newcomers: where it counts until it has asked.
    """

    def __init__(self, behind: asyncio.Protocol, context: ssl.SSLContext, newcomers: Newcomers) -> None:
        self._behind = behind
        self._context = context
        self._newcomers = newcomers
        self._early = b""
        self._handed_over = False
        self._lost = False

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        self._newcomers.enter(self._behind, transport)
        self._shaking = asyncio.get_running_loop().create_task(self._shake(transport))

    def data_received(self, data: bytes) -> None:
        """What came in one flight with the end of the handshake."""
        self._early += data

    def connection_lost(self, exc: Exception | None) -> None:
        self._lost = True
        self._newcomers.leave(self._behind)
        if self._handed_over:  # it was on its way here already
            self._behind.connection_lost(exc)

    async def _shake(self, transport: asyncio.Transport) -> None:
        loop = asyncio.get_running_loop()
        try:
            private = await loop.start_tls(
                transport, self, self._context, server_side=True, ssl_handshake_timeout=HANDSHAKE_TIMEOUT_S
            )
        except OSError as error:  # ssl.SSLError is one
            log.debug("no TLS handshake", error=str(error))
            self._newcomers.leave(self._behind)
            return
        if private is None or self._lost:
            return
        self._handed_over = True
        private.set_protocol(self._behind)
        self._behind.connection_made(private)
        if self._early and not private.is_closing():
            self._behind.data_received(self._early)


def newcomers_limit() -> int:
    """At most half of the descriptors that this process may have: the rest is for those who ask."""
    return max(1, min(NEWCOMERS_LIMIT, resource.getrlimit(resource.RLIMIT_NOFILE)[0] // 2))


def raise_descriptor_limit() -> None:
    """Takes as many descriptors as this process may; the soft limit is for programs that use select(2)."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _DESCRIPTORS_WANTED if hard == resource.RLIM_INFINITY else min(hard, _DESCRIPTORS_WANTED)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
