"""httpx's transports for networks that forget connections, or have addresses that do not answer.

Kept connections probe their far end (TCP keepalive), and all idle ones are closed after one timeout: the network may
have forgotten them without a word, as a NAT or a load balancer does. Blocking connections are made by Happy Eyeballs;
httpcore's asynchronous ones are already, by anyio.
"""

from __future__ import annotations

import socket
from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import Any

import httpcore
import httpx
from httpcore._backends.sync import SyncStream  # httpcore has no public name for it: hence the upper bound

from firstline_core.protocol import happy_eyeballs

# Seconds without data before the first probe, seconds between probes, and probes without an answer that end the
# connection. Shorter than what NATs and load balancers remember, from 30 s.
_KEEPALIVE = {"TCP_KEEPIDLE": 20, "TCP_KEEPINTVL": 10, "TCP_KEEPCNT": 3}

SOCKET_OPTIONS: tuple[tuple[int, int, int], ...] = (
    (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
    *(
        (socket.IPPROTO_TCP, getattr(socket, name), value)
        for name, value in _KEEPALIVE.items()
        if hasattr(socket, name)  # macOS has other names
    ),
)
"""Options of a TCP connection that is kept."""


class BlockingTransport(httpx.HTTPTransport):
    """httpx's blocking transport.

    `_pool` and `_network_backend` are private to httpx and httpcore: hence their upper bounds.

    Args:
        **arguments: of `httpx.HTTPTransport`.
    """

    def __init__(self, **arguments: Any) -> None:
        super().__init__(**arguments)
        self._pool._network_backend = _Backend()

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        """Sends the request; the answer's body is still to be read."""
        try:
            return super().handle_request(request)
        except httpx.ReadTimeout:
            for connection in self._pool.connections:
                if connection.is_idle():
                    connection.close()
            raise


class KeepingTransport(httpx.AsyncBaseTransport, ABC):
    """A transport that keeps connections."""

    @abstractmethod
    async def close_idle(self) -> None:
        """Closes the connections that carry no request."""


class AsyncTransport(httpx.AsyncHTTPTransport, KeepingTransport):
    """httpx's transport for asyncio; see `BlockingTransport`.

    Args:
        **arguments: of `httpx.AsyncHTTPTransport`.
    """

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """Sends the request; the answer's body is still to be read."""
        try:
            return await super().handle_async_request(request)
        except httpx.ReadTimeout:
            await self.close_idle()
            raise

    async def close_idle(self) -> None:
        """See `KeepingTransport.close_idle`."""
        for connection in self._pool.connections:
            if connection.is_idle():
                await connection.aclose()


class _Backend(httpcore.SyncBackend):
    """Connects by Happy Eyeballs."""

    def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[httpcore.SOCKET_OPTION] | None = None,
    ) -> httpcore.NetworkStream:
        try:
            connected = happy_eyeballs.connect(host, port, timeout)
        except TimeoutError as error:
            raise httpcore.ConnectTimeout(str(error)) from error
        except OSError as error:
            raise httpcore.ConnectError(str(error)) from error
        for option in (*(socket_options or ()), (socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)):
            connected.setsockopt(*option)
        return SyncStream(connected)
