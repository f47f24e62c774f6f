"""Limits on the console's connections, which any client that reaches its port can open, before a person is known."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Collection
from contextlib import suppress
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

HEAD_S = 20.0
"""Time limit of a request line with its headers, from the connection's start or the first byte."""
HEAD_BYTES = 65_536
HANDSHAKES = 256
"""Largest number of TLS handshakes at the same moment."""


class TlsListener(socket.socket):
    """A listening socket that ends the oldest TLS handshake if there are too many.

    uvicorn counts a connection only when its handshake has ended, for which asyncio waits a minute.

    Args:
        listening: the socket, which this object takes over.
        connections: uvicorn's, whose handshakes have ended.
    """

    def __init__(self, listening: socket.socket, connections: Collection[Any]) -> None:
        super().__init__(fileno=listening.detach())
        self._connections = connections
        self._begun: list[socket.socket] = []  # handshakes, oldest first

    def accept(self) -> tuple[socket.socket, Any]:
        """Accepts a connection; asyncio calls it."""
        accepted, address = super().accept()
        sockets = [each.transport.get_extra_info("socket") for each in self._connections]
        ended = {-1, *(each.fileno() for each in sockets if each is not None)}  # -1: it is closed
        self._begun = [*(each for each in self._begun if each.fileno() not in ended), accepted]
        if len(self._begun) > HANDSHAKES:
            with suppress(OSError):  # the client was faster
                self._begun.pop(0).shutdown(socket.SHUT_RDWR)
        return accepted, address


class Connection(HttpToolsProtocol):
    """uvicorn's connection, which ends if a head is slow or large: uvicorn limits neither.

    If there are too many connections, one that waits for its client is closed: the oldest without a whole request yet,
    so that a person's connection outlives those of strangers who only connect, otherwise the oldest.
    """

    _timer: asyncio.TimerHandle | None = None
    opened_s = 0.0
    _head_bytes = 0  # since the start of the head that is being read

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.opened_s = self.loop.time()
        self._begin_head()
        if self.limit_concurrency is not None and len(self.connections) >= self.limit_concurrency:
            self._close_oldest()

    def _close_oldest(self) -> None:
        others = [each for each in self.connections if isinstance(each, Connection) and each is not self]
        waiting = [each for each in others if each.waits_for_client]
        if waiting:
            oldest = min(waiting, key=lambda each: (each.cycle is not None, each.opened_s))
            self.connections.discard(oldest)
            oldest.transport.abort()

    @property
    def waits_for_client(self) -> bool:
        """Whether no request is complete that has no answer yet, or the client does not read its answer."""
        return self.cycle is None or self.cycle.response_complete or self.cycle.more_body or self.flow.write_paused

    def connection_lost(self, exc: Exception | None) -> None:
        self._end_head()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._timer is not None:
            self._head_bytes += len(data)
        super().data_received(data)
        if self._timer is not None and self._head_bytes > HEAD_BYTES:
            self.transport.abort()

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._begin_head()

    def on_headers_complete(self) -> None:
        self._end_head()
        super().on_headers_complete()
        if self.parser.should_upgrade() and not self._should_upgrade():
            # The parser stops here: it would take the body for the next request.
            self.cycle.keep_alive = False

    def handle_websocket_upgrade(self) -> None:
        """Switches to WebSocket; ends the connection if the library ignores the head, as it does if it is wrong."""
        super().handle_websocket_upgrade()
        protocol: Any = self.transport.get_protocol()
        if not protocol.handshake_initiated:
            self.transport.close()

    def _begin_head(self) -> None:
        if self._timer is None:
            self._timer = self.loop.call_later(HEAD_S, self.transport.abort)

    def _end_head(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer, self._head_bytes = None, 0
