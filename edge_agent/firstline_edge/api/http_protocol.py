"""uvicorn's HTTP/1.1, refusing what is not HTTP in JSON, as everything else is refused.

The pure Python parser, which every device can install; it bounds heads and trailers by itself, and reads no request
before the one ahead of it is answered.
"""

from __future__ import annotations

import asyncio

from uvicorn.protocols.http.h11_impl import H11Protocol

from firstline_core.protocol.http_errors import closing_response
from firstline_core.protocol.http_head import HEAD_LIMIT_BYTES, HeadTimer
from firstline_edge.api.arrival import state_of_arrival

__all__ = ["HEAD_LIMIT_BYTES", "HttpProtocol"]


class HttpProtocol(H11Protocol):
    """One connection."""

    _head_timer: HeadTimer

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._head_timer = HeadTimer(self.loop, self.timeout_keep_alive_handler)
        # uvicorn starts this one with the first answer; a connection that never asks is idle too.
        self.timeout_keep_alive_task = self.loop.call_later(self.timeout_keep_alive, self.timeout_keep_alive_handler)

    def connection_lost(self, exc: Exception | None) -> None:
        self._head_timer.cancel()
        self._unset_keepalive_if_required()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        self.app_state = state_of_arrival(self.transport.get_extra_info("socket"))
        super().data_received(data)
        if not self.transport.is_closing():
            self._head_timer.heard(working=self.cycle is not None and not self.cycle.response_complete)

    def timeout_keep_alive_handler(self) -> None:
        """Ends a connection on which nothing came, or no whole head."""
        self.transport.close()

    def send_400_response(self, msg: str) -> None:
        """What uvicorn calls where the parser gives up."""
        # Where an answer is half out, only the end of the connection can tell the client.
        if self.cycle is None or not self.cycle.response_started or self.cycle.response_complete:
            sentence = (
                "This is no valid HTTP/1.1 request, or its head is larger than "
                f"{HEAD_LIMIT_BYTES} bytes; check its request line, headers and chunks."
            )
            self.transport.write(closing_response(400, sentence))
        self.transport.close()
