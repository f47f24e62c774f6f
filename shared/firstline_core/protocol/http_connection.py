"""One HTTP/1.1 connection as its server has it: requests in their order, answers on the wire, and time for each.

Whoever reaches the port can send heads, trailers and request after request, before any token is looked at; without
bounds it is all kept. Which requests there are, and who may make them, is for the handler.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import socket
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Protocol, cast

from firstline_core.at_once import at_once
from firstline_core.clock import SYSTEM_CLOCK
from firstline_core.errors import NotReadyError
from firstline_core.protocol.arrival import age_s, tells_age
from firstline_core.protocol.http import Reply, error_reply, json_reply
from firstline_core.protocol.http_bounds import PIPELINE_LIMIT, TOO_MANY_AHEAD, HeadTimer, IdleTimer, StallTimer
from firstline_core.protocol.http_errors import closing_response
from firstline_core.protocol.http_reading import NoRequestError, RequestParser
from firstline_core.protocol.http_request import ClientLeftError, Head, Request, Streamed
from firstline_core.protocol.http_writing import CONTINUE, LAST_PIECE, chunk, reply_packets, stream_head
from firstline_core.telemetry.logs import logger

# Longer than clients keep idle connections, so that they close them, and not we under them.
KEEP_ALIVE_S = 75.0

# Of a body that nobody takes; more waits in the kernel.
_BUFFERED_BYTES = 65_536

log = logger(__name__)

Handle = Callable[[Request], Awaitable[Reply | Streamed]]
"""Answers a request; begun without a current task, see `at_once`."""


class Owner(Protocol):
    """What connections share: their server.

    Attributes:
        handle: answers.
        is_ending: whether each connection ends with its present answer.
    """

    handle: Handle
    is_ending: bool

    def opened(self, connection: Connection) -> None: ...
    def closed(self, connection: Connection) -> None: ...
    def keep(self, task: asyncio.Task[None]) -> None:
        """Holds an answer in the making until it is there."""
        ...


class Connection(asyncio.Protocol):
    """One connection.

    Args:
        owner: its server.
    """

    _transport: asyncio.Transport
    _head_timer: HeadTimer
    _idle: IdleTimer
    _stall: StallTimer

    def __init__(self, owner: Owner) -> None:
        self._owner = owner
        self._loop = asyncio.get_running_loop()
        self._context = contextvars.copy_context()
        self._parser = RequestParser(self)
        self._peer: tuple[str, int] | None = None
        self._aged: socket.socket | None = None
        self._coming: Request | None = None  # the last, whose body may still come
        self._queue: deque[Request] = deque()
        self._answering: Request | None = None
        self._task: asyncio.Task[None] | None = None  # of that, once it waits for something
        self._streaming = self._beginning = False
        self._deaf = False  # what comes counts for nothing any more
        self._refusal = b""  # for after the answers that are due
        self._paused = False
        self._drained: asyncio.Future[None] | None = None  # there while the client reads too slowly

    # asyncio's side

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)  # uvloop's is one by what it can, not by its class
        peer, connection = transport.get_extra_info("peername"), transport.get_extra_info("socket")
        self._peer = (str(peer[0]), int(peer[1])) if isinstance(peer, tuple) else None
        self._aged = connection if connection is not None and tells_age(connection) else None
        self._head_timer = HeadTimer(self._loop, self._give_up)
        self._idle = IdleTimer(self._loop, KEEP_ALIVE_S, self._give_up)
        self._stall = StallTimer(self._loop, self._transport.abort)
        self._idle.rest()  # a connection that never asks is idle too
        self._owner.opened(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self._deaf = True
        self._head_timer.cancel()
        self._idle.cancel()
        self.resume_writing()
        self._queue.clear()
        for request in (self._coming, self._answering):
            if request is not None:
                request.lost()
        if self._streaming and self._task is not None:
            self._task.cancel()
        self._owner.closed(self)

    def pause_writing(self) -> None:
        """The client reads more slowly than it is answered."""
        self._drained = self._loop.create_future()
        self._stall.stalled()

    def resume_writing(self) -> None:
        self._stall.cancel()
        if self._drained is not None and not self._drained.done():
            self._drained.set_result(None)
        self._drained = None

    def data_received(self, data: bytes) -> None:
        if self._deaf:
            return
        try:
            self._parser.feed(data)
        except NoRequestError as error:
            self._refuse(error)
        self._begin_next()
        if self._transport.is_closing():
            return
        self._balance()
        if not self._deaf:
            self._head_timer.heard(working=self._answering is not None or self._parser.ended_whole)

    @property
    def is_idle(self) -> bool:
        """Whether it is open and asks nothing."""
        return self._answering is None and not self._queue and not self._transport.is_closing()

    def end(self) -> None:
        """The server ends: at once where nothing is to be answered, and else with the present answer."""
        if self.is_idle:
            self._transport.close()

    def abort(self) -> None:
        """Ends it whatever is under way."""
        self._transport.abort()

    # What the parser finds

    def begun(self, head: Head) -> None:
        if len(self._queue) > PIPELINE_LIMIT:
            raise NoRequestError(400, TOO_MANY_AHEAD)
        arrived_s = SYSTEM_CLOCK.monotonic_s() - (age_s(self._aged) if self._aged is not None else 0.0)
        self._coming = Request(head, self._peer, arrived_s, self._want)
        self._queue.append(self._coming)
        self._idle.busy()
        self._head_timer.cancel()

    def came(self, chunk: bytes) -> None:
        if self._coming is not None:
            self._coming.feed(chunk)

    def ended(self) -> None:
        if self._coming is not None:
            self._coming.feed_end()
            self._deaf = self._deaf or not self._coming.head.keep_alive

    def _refuse(self, error: NoRequestError) -> None:
        """What comes is no request: the connection ends, after the answers to those that were."""
        if self._deaf:
            return  # it came after the last
        self._deaf = True
        self._head_timer.cancel()
        if self._coming is not None and not self._coming.is_whole:
            self._coming.lost()
        self._refusal = closing_response(error.status, error.sentence)
        if self._answering is None and not self._queue:
            self._end_refusing()

    def _end_refusing(self) -> None:
        self._transport.write(self._refusal)
        self._transport.close()

    def _want(self) -> None:
        """A request waits for its body."""
        coming = self._coming
        if coming is not None and coming is self._answering and coming.waits:
            coming.waits = False
            self._transport.write(CONTINUE)
        self._balance()

    def _balance(self) -> None:
        """Reads on, unless requests wait here already, or a body that nobody takes."""
        coming = self._coming
        full = coming is not None and not coming.is_whole and coming.size_bytes > _BUFFERED_BYTES
        paused = bool(self._queue) or full
        if paused == self._paused or self._transport.is_closing():
            return
        self._paused = paused
        if paused:
            self._transport.pause_reading()
        else:
            self._transport.resume_reading()

    # Answers

    def _begin_next(self) -> None:
        """Answers what waits, until one has to wait for something itself: that goes on as a task."""
        if self._beginning:
            return
        self._beginning = True
        while self._queue and self._answering is None and not self._transport.is_closing():
            self._answering = self._queue.popleft()
            left = at_once(self._answer(self._answering))
            if left is not None:
                self._task = self._loop.create_task(left.rest(), context=left.context)
                self._owner.keep(self._task)
        self._beginning = False

    def _go_on(self) -> None:
        self._begin_next()
        self._balance()

    async def _answer(self, request: Request) -> None:
        keep_alive = False
        try:
            reply = await self._reply(request)
            if isinstance(reply, Streamed):
                keep_alive = await self._stream(request, reply)
            else:
                while self._drained is not None:
                    await self._drained
                keep_alive = self._send(request, reply)
        except ClientLeftError:
            pass  # nobody is left to read an answer
        self._answered(request, keep_alive=keep_alive)

    async def _reply(self, request: Request) -> Reply | Streamed:
        try:
            return await self._owner.handle(request)
        except ClientLeftError:
            raise
        except asyncio.CancelledError:  # the server ends, and cancels what outlives it
            return error_reply(NotReadyError("This server is shutting down; send the request again."))
        except Exception as error:  # the outermost loop of a request
            log.error("unexpected failure", exc_info=error)
            said = {"error": "This server failed unexpectedly; its log says more.", "code": "internal"}
            return json_reply(said, 500)

    def _send(self, request: Request, reply: Reply) -> bool:
        """Writes an answer; whether the connection stays open after it."""
        keep_alive = request.head.keep_alive and not self._owner.is_ending
        if request.waits and not request.is_whole:
            keep_alive = False  # nobody knows whether the body that was not asked for still comes
        if self._transport.is_closing():
            return False
        for packet in reply_packets(reply, head_only=request.head.method == "HEAD", keep_alive=keep_alive):
            self._transport.write(packet)
        return keep_alive

    async def _stream(self, request: Request, streamed: Streamed) -> bool:
        """Writes an answer as its pieces come; whether the connection stays open after it."""
        keep_alive = request.head.keep_alive and request.is_whole
        self._streaming = True
        try:
            with streamed.held:
                async with contextlib.aclosing(streamed.pieces) as pieces:
                    if not self._transport.is_closing():
                        self._transport.write(stream_head(streamed.headers, keep_alive=keep_alive))
                    if request.head.method != "HEAD":
                        async for piece in pieces:
                            await self._write_piece(piece, chunked=keep_alive)
                        if keep_alive and not self._transport.is_closing():
                            self._transport.write(LAST_PIECE)
            return keep_alive and not self._owner.is_ending
        except asyncio.CancelledError:  # the client left, or the server ends
            return False
        except Exception as error:  # the outermost loop of a request
            log.error("an answer in pieces was cut off", exc_info=error)
            return False
        finally:
            self._streaming = False

    async def _write_piece(self, piece: bytes, *, chunked: bool) -> None:
        if self._transport.is_closing():
            raise asyncio.CancelledError
        self._transport.write(chunk(piece) if chunked else piece)
        while self._drained is not None:
            await self._drained

    def _answered(self, request: Request, *, keep_alive: bool) -> None:
        self._answering = self._task = None
        request.forget()  # the connection keeps it until its next request, which may be never
        if self._transport.is_closing():
            return
        if self._refusal and not self._queue:
            self._end_refusing()
        elif not keep_alive and not self._refusal:
            self._close_after(request)
        elif not self._queue:
            self._idle.rest()
            self._balance()
        elif not self._beginning:  # not from here: this is the task, and the context, of the one before
            self._loop.call_soon(self._go_on, context=self._context)

    def _close_after(self, request: Request) -> None:
        """Ends the connection with this answer, which a reset for bytes that came unread could take back."""
        self._deaf = True
        self._queue.clear()
        if request.is_whole or request.waits:
            self._transport.close()
            return
        self._balance()
        self._transport.write_eof()
        self._head_timer.heard(working=False)

    def _give_up(self) -> None:
        """Ends a connection that is idle or too slow; what its client has not read would leave it half closed."""
        if self._transport.get_write_buffer_size():
            self._transport.abort()
        else:
            self._transport.close()
