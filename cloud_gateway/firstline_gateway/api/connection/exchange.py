"""One request for inference over our own HTTP protocol, and its answer: what ASGI's cycle is for all others.

An application behind ASGI is told of a request in a dictionary and of its body in messages, and answers in two more,
each checked on its way. That costs as much as answering does. Here the request is an object, its body is there or is
waited for, and the answer is one write.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Mapping
from typing import TYPE_CHECKING

from starlette.requests import ClientDisconnect, HTTPConnection
from uvicorn.protocols.http.flow_control import HIGH_WATER_LIMIT

from firstline_core.at_once import at_once
from firstline_core.errors import NotReadyError
from firstline_core.protocol.http import error_reply
from firstline_gateway.api import infer
from firstline_gateway.api.auth import presented_by
from firstline_gateway.api.connection.cycle import Cycle
from firstline_gateway.api.connection.heads import Head
from firstline_gateway.gateway import Gateway
from firstline_gateway.identity.identity import Identity
from firstline_gateway.identity.presented import SCOPE_KEY, Presented

if TYPE_CHECKING:
    from firstline_gateway.api.connection.inference_protocol import InferenceProtocol

_CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"


class Exchange(Cycle):
    """Answers one request, which its connection, `protocol`, feeds and starts.

    Args:
        protocol: the connection.
        gateway: answers.
        head: of the request.
        keep_alive: whether the connection stays open for the next.
        waits: whether the client waits for a word before it sends the body (`Expect: 100-continue`).
    """

    __slots__ = ("_begun", "_chunks", "_size_bytes", "_waiting", "_waits", "more_body", "task", "trace")

    def __init__(
        self, protocol: InferenceProtocol, gateway: Gateway, head: Head, *, keep_alive: bool, waits: bool
    ) -> None:
        super().__init__(protocol, gateway, head, keep_alive=keep_alive)
        self.trace = head.trace
        self.more_body = True
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

    def begin(self) -> None:
        """Answers the request, whose body is here, now; if that has to wait for something, as a task from there on."""
        left = at_once(self.run())
        if left is not None:
            self._begun = False
            self.protocol.flow.resume_reading()  # a client's leaving is read too
            self.task = asyncio.get_running_loop().create_task(self._follow(left.rest()), context=left.context)
            self.protocol.tasks.add(self.task)

    async def _follow(self, rest: Awaitable[None]) -> None:
        self._begun = True
        if self.disconnected and self.task is not None:
            self.task.cancel()
        await rest

    def lost(self) -> None:
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
        except Exception as error:  # noqa: BLE001 (the outermost loop of a request)
            reply = self.unforeseen(error)
        if self._waits and self.more_body:
            self.keep_alive = False  # nobody knows whether the body that was not asked for still comes
        if self.task is not None:
            self.protocol.tasks.discard(self.task)
        # The connection keeps this until its next request, which may be never: not with a body, nor its tensors.
        self._chunks, self.task = [], None
        self.send(reply)
