"""uvicorn's HTTP/1.1 with what it lacks: a bound on a request's head, and refusals in JSON as everywhere else.

Whoever reaches the port can send a head, before any token is looked at; without a bound it is all kept.
"""

from __future__ import annotations

import httptools
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from firstline_core.protocol.http_errors import closing_response

HEAD_LIMIT_BYTES = 65_536


class HttpProtocol(HttpToolsProtocol):
    """One connection."""

    _in_head = True
    _read_bytes = 0  # of this head, by packets: also what the parser has not made a header of yet
    _head_bytes = 0  # of this head, by headers: not the body that came in the same packet

    def data_received(self, data: bytes) -> None:
        self._read_bytes += len(data)
        super().data_received(data)
        if self._in_head and self._read_bytes > HEAD_LIMIT_BYTES and not self.transport.is_closing():
            self._refuse_head()

    def on_message_begin(self) -> None:
        self._in_head = True
        self._read_bytes = self._head_bytes = 0
        super().on_message_begin()

    def on_url(self, url: bytes) -> None:
        self._count(url)
        super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        self._count(name + value)
        super().on_header(name, value)

    def on_headers_complete(self) -> None:
        self._in_head = False
        super().on_headers_complete()

    def send_400_response(self, msg: str) -> None:
        """What uvicorn calls where the parser gives up."""
        if self._in_head and self._head_bytes > HEAD_LIMIT_BYTES:
            self._refuse_head()
        else:
            self._close_with(400, "This is no valid HTTP/1.1 request; check its request line, headers and chunks.")

    def _count(self, part: bytes) -> None:
        self._head_bytes += len(part)
        if self._head_bytes > HEAD_LIMIT_BYTES:
            raise httptools.HttpParserError("the head is too large")

    def _refuse_head(self) -> None:
        self._close_with(431, f"The request line and headers are larger than {HEAD_LIMIT_BYTES} bytes; send fewer.")

    def _close_with(self, status: int, sentence: str) -> None:
        # Where an answer is half out, only the end of the connection can tell the client.
        if self.cycle is None or not self.cycle.response_started or self.cycle.response_complete:
            self.transport.write(closing_response(status, sentence))
        self.transport.close()
