"""One request of a connection and its reply, as the connection sees them: what uvicorn's cycle is for ASGI."""

from __future__ import annotations

from abc import ABC, abstractmethod
from functools import lru_cache
from typing import TYPE_CHECKING

from uvicorn.protocols.http.httptools_impl import STATUS_LINE

from firstline_core.errors import FirstlineError
from firstline_core.ids import new_request_id
from firstline_core.protocol.http import Reply, error_reply
from firstline_core.telemetry.logs import logger
from firstline_gateway.api.connection.heads import Head
from firstline_gateway.gateway import Gateway

if TYPE_CHECKING:
    from firstline_gateway.api.connection.inference_protocol import InferenceProtocol

log = logger(__name__)


class Cycle(ABC):
    """Belongs to its connection, `protocol`, which keeps it until the next; its attributes are those of uvicorn's.

    Args:
        protocol: the connection.
        gateway: answers.
        head: of the request.
        keep_alive: whether the connection stays open for the next.
    """

    __slots__ = (
        "disconnected", "gateway", "head", "keep_alive", "protocol", "response_complete", "response_started",
    )  # fmt: skip

    def __init__(self, protocol: InferenceProtocol, gateway: Gateway, head: Head, *, keep_alive: bool) -> None:
        self.protocol = protocol
        self.gateway = gateway
        self.head = head
        self.keep_alive = keep_alive
        self.response_started = self.response_complete = self.disconnected = False

    @abstractmethod
    def lost(self) -> None:
        """The connection ended: nobody waits for the answer any more."""

    def send(self, reply: Reply) -> None:
        """Writes the reply, whole, and ends this."""
        if reply.headers.get("Connection") == "close":
            self.keep_alive = False
        elif not self.keep_alive:
            reply.headers["Connection"] = "close"
        self.send_lines(STATUS_LINE[reply.status], lines_of(*reply.headers.items()), reply.body)

    def send_lines(self, status: bytes, lines: bytes, body: bytes) -> None:
        """As `send`, of a reply whose header lines are there, but for its length and those of every answer."""
        protocol = self.protocol
        if not self.disconnected:
            self.response_started = True
            protocol.transport.write(
                b"%b%b%bcontent-length: %d\r\n\r\n%b" % (status, protocol.default_lines, lines, len(body), body)
            )
        self.response_complete = True
        if not self.disconnected and not self.keep_alive:
            protocol.transport.close()
        protocol.on_response_complete()

    def unforeseen(self, exception: BaseException) -> Reply:
        """What a request is told that the gateway fails on."""
        request_id = new_request_id()
        log.error("request failed unexpectedly", exc_info=exception, request_id=request_id, path=ascii(self.head.url))
        error = FirstlineError(f"The gateway failed on this request; its log has the reason under {request_id}.")
        self.gateway.metrics.error(error)
        return error_reply(error)


@lru_cache(1024)
def lines_of(*headers: tuple[str, str]) -> bytes:
    """Header lines, as they are sent."""
    return "".join([f"{name}: {value}\r\n" for name, value in headers]).encode("latin-1")
