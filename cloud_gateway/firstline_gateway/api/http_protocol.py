"""uvicorn's HTTP/1.1 with what it lacks: bounds on what comes beside bodies, and refusals in JSON as everywhere else.

Whoever reaches the port can send heads, trailers and request after request, before any token is looked at; without
bounds it is all kept. Where TLS ends here, the certificate that the client has shown is put into the scope, and its
connection can be ended when that is revoked.

Requests for inference are answered here, past ASGI (`exchange.py`).
"""

from __future__ import annotations

import asyncio
import contextvars
from typing import Any
from urllib.parse import unquote

import httptools
from msgspec.structs import replace
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from firstline_core.protocol.http_bounds import (
    HEAD_LIMIT_BYTES,
    PIPELINE_LIMIT,
    TOO_MANY_AHEAD,
    HeadTimer,
    IdleTimer,
    StallTimer,
)
from firstline_core.protocol.http_errors import Lowered, closing_response
from firstline_core.protocol.http_upgrade import AfterHead, feed, framing
from firstline_core.protocol.repeated_head import TRACED_BYTES, repeatable
from firstline_core.telemetry.trace import TRACEPARENT, from_lines
from firstline_gateway.api.cycle import Cycle
from firstline_gateway.api.door import Newcomers
from firstline_gateway.api.exchange import Exchange
from firstline_gateway.api.fast_path import FastPath
from firstline_gateway.api.heads import Head
from firstline_gateway.api.infer import address_of
from firstline_gateway.api.unread import refusal
from firstline_gateway.gateway import Gateway
from firstline_gateway.identity.presented import SCOPE_KEY, Presented, read_presented

# How long, when the process ends, a TLS connection that has its answer may take to say goodbye; many clients never do.
_GOODBYE_S = 0.5
_REFUSAL = refusal()
_LAST_REFUSAL = refusal(closing=True)


class HttpProtocol(HttpToolsProtocol):
    """One connection."""

    _in_head = True
    _read_bytes = 0  # since the last body, by packets: also what the parser has not made a header of yet
    _head_bytes = 0  # of this message's head and trailer, by headers: not the body that came in the same packet
    _head_timer: HeadTimer
    _stall: StallTimer
    _refusal = b""  # for after the answers that are due; what comes counts for nothing any more
    _in_message = False  # the parser has begun one, and not ended it
    _fed = b""  # to the parser now
    _in_fed = False  # it had begun, or has begun since, a message in that
    _first = b""  # what the present message was the first of; b"" where it began elsewhere
    _body_left = 0  # of a body that is not parsed
    _idle: IdleTimer
    _refused = False  # this request, unread
    _refused_whole = False  # that was all that came
    _answering: RequestResponseCycle | Cycle | None = None  # `cycle` is the last that was begun
    _head: Head | None = None  # of the last request for inference
    _default_headers: list[tuple[bytes, bytes]] | None = None
    _default_lines = b""
    presented: Presented | None = None

    def __init__(
        self, *arguments: Any, gateway: Gateway, fast_path: FastPath, newcomers: Newcomers, **named: Any
    ) -> None:
        super().__init__(*arguments, **named)
        self._gateway = gateway
        self._fast_path = fast_path
        self._sessions = gateway.identity.gatekeeper.sessions
        self._unread = gateway.unread
        self._newcomers = newcomers
        self._context = contextvars.copy_context()

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._unread.watch(self.loop)
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

    @property
    def default_lines(self) -> bytes:
        """The header lines of every answer; the server changes them once a second."""
        if self.server_state.default_headers is not self._default_headers:
            self._default_headers = self.server_state.default_headers
            self._default_lines = b"".join([b"%b: %b\r\n" % each for each in self._default_headers])
        return self._default_lines

    def connection_lost(self, exc: Exception | None) -> None:
        self._newcomers.leave(self)
        self._head_timer.cancel()
        self._stall.cancel()
        if self.presented is not None:
            self._sessions.remove(self.presented.serial, self)
        self._idle.cancel()
        for cycle in {self._answering, self.cycle}:
            if isinstance(cycle, Cycle):
                if not cycle.response_complete:
                    cycle.lost()
            elif cycle is not None:
                cycle.disconnected = True
                cycle.message_event.set()
        self.cycle = self._answering = None  # type: ignore[assignment]  # uvicorn's, until there is one
        super().connection_lost(exc)

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

    def data_received(self, data: bytes) -> None:
        if self._refusal:
            return
        if self._is_repeated(data):
            return
        self._fed, self._in_fed = data, self._in_message
        self._read_bytes += len(data)
        self._refused_whole = False
        self._idle.busy()
        try:
            feed(self.parser, data, self._go_on)
        except httptools.HttpParserError:
            self._refuse_bytes()
        self._fed = self._first = b""
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
        working = self.cycle is not None and not self.cycle.response_complete
        self._head_timer.heard(working=working or self._refused_whole)

    def _is_repeated(self, data: bytes) -> bool:
        """Takes data that need no parser: a head as it came before, and the body after such a head."""
        if self._body_left:
            self._feed(data)
            return True
        before = self.cycle
        if self._in_message or not (before is None or (before.response_complete and before.keep_alive)):
            return False
        head = self._head
        if head is None or not head.raw or not data.startswith(head.raw):
            head = self._gateway.heads.find(self._serial, data)
            if head is None:
                return False
            if head.trace is None:
                self._head = head
        end = len(head.raw) if head.trace is None else len(head.raw) + TRACED_BYTES
        if not self.flow.write_paused and self._unread.refuses(head.shown, self.loop.time()):
            if len(data) != end + head.body_bytes:
                return False  # the parser finds the end of what is not read
            self.transport.write(_REFUSAL)
            self._head_timer.cancel()
            self._idle.rest()
            return True
        self._idle.busy()
        self._newcomers.leave(self)
        if len(data) == end + head.body_bytes:
            self._head_timer.cancel()
            body = data[end:]
            fast = self._fast_path.begin(self, head, body)
            if fast is not None:
                self.cycle = self._answering = fast  # type: ignore[assignment]  # see `_begin`
                return True
            exchange = Exchange(self, self._gateway, head, keep_alive=True, waits=False)
            self.cycle = self._answering = exchange  # type: ignore[assignment]  # see `_begin`
            exchange.feed(body)
            exchange.feed_end()
            exchange.begin()
        else:
            exchange = Exchange(self, self._gateway, head, keep_alive=True, waits=False)
            self.cycle = exchange  # type: ignore[assignment]  # see `_begin`
            self._body_left = head.body_bytes
            self._start_asgi_task(exchange, None)
            self._feed(data[end:])
        return True

    def _feed(self, data: bytes) -> None:
        """Gives a body whose length is known to its exchange; what follows it is the next message."""
        exchange = self.cycle
        assert isinstance(exchange, Exchange)  # noqa: S101 (it has begun)
        taken, left = data, b""
        if len(data) > self._body_left:
            taken, left = data[: self._body_left], data[self._body_left :]
        self._body_left -= len(taken)
        if not exchange.response_complete:
            if taken:
                exchange.feed(taken)
            if not self._body_left:
                exchange.feed_end()
        self._heard()
        if left:
            self.data_received(left)

    def on_message_begin(self) -> None:
        self._in_head = self._in_message = True
        self._first = self._fed if not self._in_fed else b""
        self._in_fed = True
        self._refused_whole = False
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
        head = self._read_head()
        self._refused = self._refuses(head)
        if self._refused:
            self.transport.write(_REFUSAL if self.parser.should_keep_alive() else _LAST_REFUSAL)
            return
        if head is None:
            self._make_scope()
            super().on_headers_complete()
        else:
            self._begin(head)
        if len(self.pipeline) > PIPELINE_LIMIT:
            raise httptools.HttpParserError("too many requests at once")

    def on_body(self, body: bytes) -> None:
        self._read_bytes = 0
        if self._refused:
            return
        if not isinstance(self.cycle, Exchange):
            super().on_body(body)
        elif not self.cycle.response_complete:
            self.cycle.feed(body)

    def on_message_complete(self) -> None:
        if self.parser.should_upgrade():
            return  # its body comes yet, see `http_upgrade`
        self._in_message = False
        if not self._refused:
            if not isinstance(self.cycle, Exchange):
                super().on_message_complete()
            elif not self.cycle.response_complete:
                self.cycle.feed_end()
            return
        if not self.parser.should_keep_alive():
            self.transport.close()  # not before: what it sends unread would reset the connection, and lose the answer
            return
        self._refused_whole = True
        self._head_timer.cancel()
        self._idle.rest()

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

    def _start_asgi_task(self, cycle: RequestResponseCycle | Exchange, app: Any) -> None:
        self._answering = cycle
        if isinstance(cycle, Exchange):
            cycle.task = self.loop.create_task(cycle.run())
            self.tasks.add(cycle.task)
        else:
            super()._start_asgi_task(cycle, app)

    def _refuse_bytes(self) -> None:
        """The parser gave up."""
        if len(self.pipeline) > PIPELINE_LIMIT:
            self._refuse(400, TOO_MANY_AHEAD)
        elif self._head_bytes > HEAD_LIMIT_BYTES:
            self._refuse_length()
        else:
            self._refuse(400, "This is no valid HTTP/1.1 request; check its request line, headers and chunks.")

    def end(self) -> None:
        """Closes the connection at once: its certificate was revoked."""
        self.transport.abort()

    def _read_head(self) -> Head | None:
        """What the head asks; None where that is no inference."""
        if self.parser.get_method() != b"POST":
            return None
        known = self._head
        if known is not None and known.url == self.url and known.lines == self.headers:
            return known
        url = httptools.parse_url(self.url)
        address = address_of(unquote(url.path.decode("ascii")))
        if address is None:
            return None
        headers = Lowered((name.decode("latin-1"), value.decode("latin-1")) for name, value in reversed(self.headers))
        raw, body_bytes = b"", 0
        if self._stays_open():
            raw, body_bytes = repeatable(self._first, self.headers, self._gateway.plane.limits.body_bytes)
        lines, trace = self.headers, None
        if headers.pop(TRACEPARENT, None) is not None:
            trace = from_lines(lines)
            lines = [each for each in lines if each[0] != TRACEPARENT.encode()]
        self._head = Head(raw, body_bytes, self.url, lines, address, headers, url.query or b"", self._shown())
        self._gateway.heads.keep(self._serial, self._head)
        return self._head if trace is None else replace(self._head, trace=trace)

    def _stays_open(self) -> bool:
        return self.parser.get_http_version() == "1.1" and self.parser.should_keep_alive()

    def _shown(self) -> int:
        return self._unread.shown(self._serial, self.headers)

    @property
    def _serial(self) -> str:
        return self.presented.serial if self.presented else ""

    def _refuses(self, head: Head | None) -> bool:
        """Whether this request is refused unread."""
        if head is None and not self.url.partition(b"?")[0].endswith(b"/infer"):
            return False
        # Answers go out in the order of their requests, and one that asks before it sends must not send.
        if self.expect_100_continue or not (self.cycle is None or self.cycle.response_complete):
            return False
        if self.flow.write_paused:  # it waits for its client, which does not read: refusals would pile up here
            return False
        return self._unread.refuses(self._shown() if head is None else head.shown, self.loop.time())

    def _begin(self, head: Head) -> None:
        """Answers a request for inference, in its turn."""
        before = self.cycle
        exchange = Exchange(
            self,
            self._gateway,
            head,
            keep_alive=self._stays_open(),
            waits=self.expect_100_continue,
        )
        self.cycle = exchange  # type: ignore[assignment]  # all that uvicorn does with it goes by what they share
        if before is None or before.response_complete:
            self._start_asgi_task(exchange, None)
        else:
            self.flow.pause_reading()
            self.pipeline.appendleft((exchange, self.app))  # type: ignore[arg-type]

    def _make_scope(self) -> None:
        """What uvicorn makes for each request, and only the framework's need."""
        url, headers, waits = self.url, self.headers, self.expect_100_continue
        super().on_message_begin()
        self.url, self.headers, self.expect_100_continue = url, headers, waits
        self.scope["headers"] = headers
        if self.presented is not None:
            self.scope[SCOPE_KEY] = self.presented  # type: ignore[literal-required]  # a key of ours

    def _count(self, size_bytes: int) -> None:
        self._head_bytes += size_bytes
        if self._head_bytes > HEAD_LIMIT_BYTES:
            raise httptools.HttpParserError("the head is too large")

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
