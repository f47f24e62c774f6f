"""Limits on the console's connections, which any client that reaches its port can open, before a person is known."""

from __future__ import annotations

import asyncio

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

HEAD_S = 20.0
"""Time limit of a request line with its headers, from the connection's start or the first byte."""
HEAD_BYTES = 65_536


class Connection(HttpToolsProtocol):
    """uvicorn's connection, which ends if a head is slow or large: uvicorn limits neither."""

    _timer: asyncio.TimerHandle | None = None
    _head_bytes = 0  # since the start of the head that is being read

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._begin_head()

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

    def _begin_head(self) -> None:
        if self._timer is None:
            self._timer = self.loop.call_later(HEAD_S, self.transport.abort)

    def _end_head(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer, self._head_bytes = None, 0
