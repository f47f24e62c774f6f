"""uvicorn's HTTP/1.1, refusing what is not HTTP in JSON, as everything else is refused.

The pure Python parser, which every device can install; it bounds a request's head by itself.
"""

from __future__ import annotations

from uvicorn.protocols.http.h11_impl import H11Protocol

from firstline_core.protocol.http_errors import closing_response

HEAD_LIMIT_BYTES = 65_536


class HttpProtocol(H11Protocol):
    """One connection."""

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
