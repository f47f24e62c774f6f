"""uvicorn's HTTP/1.1 with what it lacks: bounds on what comes beside bodies, and refusals in JSON as everywhere else.

Whoever reaches the port can send heads, trailers and request after request, before any token is looked at; without
bounds it is all kept. Where TLS ends here, the certificate that the client has shown is put into the scope, and its
connection can be ended when that is revoked.
"""

from __future__ import annotations

import asyncio
import contextvars
from typing import Any

import httptools
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from firstline_core.protocol.http_bounds import (
    HEAD_LIMIT_BYTES,
    PIPELINE_LIMIT,
    TOO_MANY_AHEAD,
    HeadTimer,
    IdleTimer,
    StallTimer,
)
from firstline_core.protocol.http_errors import closing_response
from firstline_core.protocol.http_upgrade import AfterHead, feed, framing
from firstline_gateway.api.connection.door import Newcomers
from firstline_gateway.identity.presented import SCOPE_KEY, Presented, read_presented
from firstline_gateway.identity.sessions import Sessions

# How long, when the process ends, a TLS connection that has its answer may take to say goodbye; many clients never do.
_GOODBYE_S = 0.5


class HttpProtocol(HttpToolsProtocol):
    """One connection.

    Args:
        sessions: the connections of each certificate.
        newcomers: those who have asked nothing yet.
    """

    _in_head = True
    _read_bytes = 0  # since the last body, by packets: also what the parser has not made a header of yet
    _head_bytes = 0  # of this message's head and trailer, by headers: not the body that came in the same packet
    _head_timer: HeadTimer
    _stall: StallTimer
    _refusal = b""  # for after the answers that are due; what comes counts for nothing any more
    _in_message = False  # the parser has begun one, and not ended it
    _idle: IdleTimer
    _answering: RequestResponseCycle | None = None  # `cycle` is the last that was begun
    presented: Presented | None = None

    def __init__(self, *arguments: Any, sessions: Sessions, newcomers: Newcomers, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self._sessions = sessions
        self._newcomers = newcomers
        self._context = contextvars.copy_context()

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        tls = transport.get_extra_info("ssl_object")
        if tls is None:  # else it has come through the door
            self._newcomers.enter(self, transport)
        certificate = tls.getpeercert(binary_form=True) if tls is not None else None
        if certificate is not None:
            self.presented = read_presented(certificate)
            self._sessions.add(self.presented.serial, self)
        self._head_timer = HeadTimer(self.loop, self.timeout_keep_alive_handler)
        self._idle = IdleTimer(self.loop, self.timeout_keep_alive, self.timeout_keep_alive_handler)
        self._stall = StallTimer(self.loop, transport.abort)
        self._idle.rest()  # a connection that never asks is idle too

    def connection_lost(self, exc: Exception | None) -> None:
        self._newcomers.leave(self)
        self._head_timer.cancel()
        self._stall.cancel()
        if self.presented is not None:
            self._sessions.remove(self.presented.serial, self)
        self._idle.cancel()
        for cycle in {self._answering, self.cycle}:
            if cycle is not None:
                self._lose(cycle)
        self.cycle = self._answering = None  # type: ignore[assignment]  # uvicorn's, until there is one
        super().connection_lost(exc)

    def _lose(self, cycle: RequestResponseCycle) -> None:
        """Nobody waits for its answer any more."""
        cycle.disconnected = True
        cycle.message_event.set()

    def pause_writing(self) -> None:
        """The client reads more slowly than it is answered."""
        super().pause_writing()
        self._stall.stalled()

    def resume_writing(self) -> None:
        self._stall.cancel()
        super().resume_writing()

    def _unset_keepalive_if_required(self) -> None:
        """Where uvicorn would end its own timer for idle connections."""
        self._idle.busy()

    def timeout_keep_alive_handler(self) -> None:
        """Ends an idle connection; one whose client has not read its answer would otherwise stay half closed."""
        if self.transport.get_write_buffer_size():
            self.transport.abort()
        else:
            super().timeout_keep_alive_handler()

    def shutdown(self) -> None:
        """uvicorn's, when the process ends."""
        super().shutdown()
        if self.transport.is_closing():
            self.loop.call_later(_GOODBYE_S, self.transport.abort)

    def end(self) -> None:
        """Closes the connection at once: its certificate was revoked."""
        self.transport.abort()

    def data_received(self, data: bytes) -> None:
        if self._refusal:
            return
        self._read_bytes += len(data)
        self._idle.busy()
        try:
            feed(self.parser, data, self._go_on)
        except httptools.HttpParserError:
            self._refuse_bytes()
        if self.transport.is_closing() or self._refusal:
            return
        if self._read_bytes > HEAD_LIMIT_BYTES:
            self._refuse_length()
        else:
            self._heard()

    def _go_on(self) -> tuple[httptools.HttpRequestParser, bytes]:
        rest = framing(self.headers, keep_alive=self.parser.should_keep_alive())
        self.parser = httptools.HttpRequestParser(AfterHead(self))
        self.parser.set_dangerous_leniencies(lenient_data_after_close=True)  # as uvicorn's
        return self.parser, rest

    def _heard(self) -> None:
        self._head_timer.heard(working=self._is_working())

    def _is_working(self) -> bool:
        """Whether it is not the client that is waited for."""
        return self.cycle is not None and not self.cycle.response_complete

    def on_message_begin(self) -> None:
        self._in_head = self._in_message = True
        self._read_bytes = self._head_bytes = 0
        self.url = b""
        self.expect_100_continue = False
        self.headers = []

    def on_url(self, url: bytes) -> None:
        self._count(len(url))
        self.url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        self._count(len(name) + len(value))
        if self._in_head:  # a trailer is no header (RFC 9110, section 6.5.1): proxies strip what it may not say there
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        self._in_head = False
        self._newcomers.leave(self)
        self._begin()
        if len(self.pipeline) > PIPELINE_LIMIT:
            raise httptools.HttpParserError("too many requests at once")

    def _begin(self) -> None:
        """Has the request, of which the head is there, answered in its turn."""
        self._make_scope()
        super().on_headers_complete()

    def _make_scope(self) -> None:
        """What uvicorn makes for each request, and only the framework's need."""
        url, headers, waits = self.url, self.headers, self.expect_100_continue
        super().on_message_begin()
        self.url, self.headers, self.expect_100_continue = url, headers, waits
        self.scope["headers"] = headers
        if self.presented is not None:
            self.scope[SCOPE_KEY] = self.presented  # type: ignore[literal-required]  # a key of ours

    def on_body(self, body: bytes) -> None:
        self._read_bytes = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        if self.parser.should_upgrade():
            return  # its body comes yet, see `http_upgrade`
        self._in_message = False
        super().on_message_complete()

    def on_response_complete(self) -> None:
        """What uvicorn does after an answer, but for its timer."""
        self.server_state.total_requests += 1
        if self.transport.is_closing():
            return
        self.flow.resume_reading()
        if self.pipeline:
            # From the task of the one before, whose context is not its own.
            self._context.run(self._start_asgi_task, *self.pipeline.pop())
        elif self._refusal:
            self._end_refusing()
        else:
            self._idle.rest()

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        self._answering = cycle
        super()._start_asgi_task(cycle, app)

    def _count(self, size_bytes: int) -> None:
        self._head_bytes += size_bytes
        if self._head_bytes > HEAD_LIMIT_BYTES:
            raise httptools.HttpParserError("the head is too large")

    def _refuse_bytes(self) -> None:
        """The parser gave up."""
        if len(self.pipeline) > PIPELINE_LIMIT:
            self._refuse(400, TOO_MANY_AHEAD)
        elif self._head_bytes > HEAD_LIMIT_BYTES:
            self._refuse_length()
        else:
            self._refuse(400, "This is no valid HTTP/1.1 request; check its request line, headers and chunks.")

    def _refuse_length(self) -> None:
        part = "request line and headers are" if self._in_head else "chunk's extension or the trailer is"
        self._refuse(431, f"The {part} larger than {HEAD_LIMIT_BYTES} bytes; send fewer.")

    def _refuse(self, status: int, sentence: str) -> None:
        """What comes is no request: the connection ends, after the answers to those that were."""
        self._refusal = closing_response(status, sentence)
        self._head_timer.cancel()
        if self._in_message and not self._in_head and self.pipeline:
            self.pipeline.popleft()  # its body went wrong, or it was one too many
        elif self._in_message and not self._in_head:
            self._end_refusing()  # so did that of the one in its turn, which would wait for the rest
            return
        if self._answering is None or self._answering.response_complete:
            self._end_refusing()

    def _end_refusing(self) -> None:
        # Where an answer is half out, only the end of the connection can tell the client.
        if self._answering is None or not self._answering.response_started or self._answering.response_complete:
            self.transport.write(self._refusal)
        self.transport.close()
