"""One request for inference over our own HTTP protocol, and its answer: what ASGI's cycle is for all others.

An application behind ASGI is told of a request in a dictionary and of its body in messages, and answers in two more,
each checked on its way. That costs as much as answering does. Here the request is an object, its body is there or is
waited for, and the answer is one write.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from functools import lru_cache
from typing import TYPE_CHECKING

from starlette.requests import ClientDisconnect, HTTPConnection
from uvicorn.protocols.http.flow_control import HIGH_WATER_LIMIT
from uvicorn.protocols.http.httptools_impl import STATUS_LINE

from firstline_core.errors import FirstlineError, NotReadyError
from firstline_core.ids import new_request_id
from firstline_core.protocol.http import Reply, error_reply
from firstline_core.telemetry.logs import logger
from firstline_gateway.api import infer
from firstline_gateway.api.auth import presented_by
from firstline_gateway.api.heads import Head
from firstline_gateway.gateway import Gateway
from firstline_gateway.identity.identity import Identity
from firstline_gateway.identity.presented import SCOPE_KEY, Presented

if TYPE_CHECKING:
    from firstline_gateway.api.http_protocol import HttpProtocol

_CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"

log = logger(__name__)


class Exchange:
    """Answers one request. Belongs to its connection, `protocol`, which feeds it and starts it.

    Args:
        protocol: the connection.
        gateway: answers.
        head: of the request.
        keep_alive: whether the connection stays open for the next.
        waits: whether the client waits for a word before it sends the body (`Expect: 100-continue`).
    """

    __slots__ = (
        "_begun", "_chunks", "_size_bytes", "_waiting", "_waits", "disconnected", "gateway", "head", "keep_alive",
        "more_body", "protocol", "response_complete", "response_started", "task",
    )  # fmt: skip

    def __init__(self, protocol: HttpProtocol, gateway: Gateway, head: Head, *, keep_alive: bool, waits: bool) -> None:
        self.protocol = protocol
        self.gateway = gateway
        self.head = head
        self.keep_alive = keep_alive
        self.more_body = True
        self.response_started = self.response_complete = self.disconnected = False
        self.task: asyncio.Task[None] | None = None
        self._begun = False
        self._waits = waits
        self._chunks: list[bytes] = []
        self._size_bytes = 0
        self._waiting: asyncio.Future[None] | None = None

    # What the connection tells.

    def feed(self, chunk: bytes) -> None:
        """More of the body came."""
        self._chunks.append(chunk)
        self._size_bytes += len(chunk)
        if self._size_bytes > HIGH_WATER_LIMIT:
            self.protocol.flow.pause_reading()
        self._wake()

    def feed_end(self) -> None:
        """All of it came."""
        self.more_body = False
        if self.task is not None:
            self.protocol.flow.resume_reading()  # `chunks` may never be asked, and a client's leaving is read too
        self._wake()

    def lost(self) -> None:
        """The connection ended: nobody waits for the answer any more."""
        self.disconnected = True
        self._wake()
        if self.task is not None and self._begun:
            self.task.cancel()

    def _wake(self) -> None:
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_result(None)

    # What the request is, for `infer.answer`.

    @property
    def is_lost(self) -> bool:
        return self.disconnected

    @property
    def headers(self) -> Mapping[str, str]:
        return self.head.headers

    @property
    def query_string(self) -> bytes:
        return self.head.query_string

    @property
    def shown(self) -> int:
        return self.head.shown

    @property
    def body(self) -> bytes | None:
        if self.more_body:
            return None
        return self._chunks[0] if len(self._chunks) == 1 else b"".join(self._chunks)

    async def presented(self, identity: Identity) -> Presented | None:
        if not identity.proxy_header:
            return self.protocol.presented
        scope = {"type": "http", "headers": self.head.lines, "client": self.protocol.client}
        return await presented_by(identity, HTTPConnection(scope | {SCOPE_KEY: self.protocol.presented}))

    async def chunks(self) -> AsyncIterator[bytes]:
        loop = asyncio.get_running_loop()
        while True:
            taken, self._chunks, self._size_bytes = self._chunks, [], 0
            for chunk in taken:
                yield chunk
            if self.disconnected:
                raise ClientDisconnect
            if self._chunks:
                continue
            if not self.more_body:
                return
            if self._waits:
                self._waits = False
                self.protocol.transport.write(_CONTINUE)
            self.protocol.flow.resume_reading()
            self._waiting = loop.create_future()
            await self._waiting

    # The way out.

    async def run(self) -> None:
        """Answers the request; as a task of its own."""
        self._begun = True
        if self.disconnected and self.task is not None:
            self.task.cancel()
        try:
            reply = await infer.answer(self.gateway, self, self.head.address)
            if self.protocol.flow.write_paused:
                await self.protocol.flow.drain()
        except asyncio.CancelledError:
            # The client has left; or the server ends, and cancels what outlives it. Nobody awaits its tasks.
            reply = error_reply(NotReadyError("This gateway is shutting down; send the request again."))
        except Exception:  # the outermost loop of a request
            request_id = new_request_id()
            log.exception("request failed unexpectedly", request_id=request_id, path=ascii(self.head.url))
            error = FirstlineError(f"The gateway failed on this request; its log has the reason under {request_id}.")
            self.gateway.metrics.error(error)
            reply = error_reply(error)
        self._send(reply)

    def _send(self, reply: Reply) -> None:
        protocol = self.protocol
        if not self.disconnected:
            self.response_started = True
            if self._waits and self.more_body:
                self.keep_alive = False  # nobody knows whether the body that was not asked for still comes
            if reply.headers.get("Connection") == "close":
                self.keep_alive = False
            elif not self.keep_alive:
                reply.headers["Connection"] = "close"
            head = (STATUS_LINE[reply.status], protocol.default_lines, _lines(*reply.headers.items()), len(reply.body))
            protocol.transport.write(b"%b%b%bcontent-length: %d\r\n\r\n%b" % (*head, reply.body))
        self.response_complete = True
        if self.task is not None:
            protocol.tasks.discard(self.task)
        # The connection keeps this until its next request, which may be never: not with a body, nor its tensors.
        self._chunks, self.task = [], None
        if not self.disconnected and not self.keep_alive:
            protocol.transport.close()
        protocol.on_response_complete()


@lru_cache(1024)
def _lines(*headers: tuple[str, str]) -> bytes:
    return "".join([f"{name}: {value}\r\n" for name, value in headers]).encode("latin-1")
