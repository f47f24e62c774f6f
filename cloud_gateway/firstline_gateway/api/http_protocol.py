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
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from firstline_core.protocol.http_errors import Lowered, closing_response
from firstline_core.protocol.http_head import HEAD_LIMIT_BYTES, HeadTimer
from firstline_gateway.api.door import Newcomers
from firstline_gateway.api.exchange import Exchange
from firstline_gateway.api.heads import Head, repeatable
from firstline_gateway.api.infer import address_of
from firstline_gateway.api.unread import refusal
from firstline_gateway.gateway import Gateway
from firstline_gateway.identity.presented import SCOPE_KEY, Presented, read_presented

# Requests on one connection that wait for the answer of the one before; clients that send ahead at all send a few.
PIPELINE_LIMIT = 16
# How long an answer waits for a client that does not read it.
WRITE_TIMEOUT_S = 30.0
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
    _stalled: asyncio.TimerHandle | None = None
    _in_message = False  # the parser has begun one, and not ended it
    _fed = b""  # to the parser now
    _in_fed = False  # it had begun, or has begun since, a message in that
    _first = b""  # what the present message was the first of; b"" where it began elsewhere
    _body_left = 0  # of a body that is not parsed
    _idle_timer: asyncio.TimerHandle | None = None
    _idle_since_s: float | None = None  # None while a request comes or is answered
    _refused = False  # this request, unread
    _refused_whole = False  # that was all that came
    _answering: RequestResponseCycle | Exchange | None = None  # `cycle` is the last that was begun
    _head: Head | None = None  # of the last request for inference
    _default_headers: list[tuple[bytes, bytes]] | None = None
    _default_lines = b""
    presented: Presented | None = None

    def __init__(self, *arguments: Any, gateway: Gateway, newcomers: Newcomers, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self._gateway = gateway
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
        self._rest()  # a connection that never asks is idle too

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
        if self._stalled is not None:
            self._stalled.cancel()
        if self.presented is not None:
            self._sessions.remove(self.presented.serial, self)
        if self._idle_timer is not None:
            self._idle_timer.cancel()
        for cycle in {self._answering, self.cycle}:
            if isinstance(cycle, Exchange):
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
        self._stalled = self.loop.call_later(WRITE_TIMEOUT_S, self.transport.abort)

    def resume_writing(self) -> None:
        if self._stalled is not None:
            self._stalled.cancel()
        super().resume_writing()

    def _unset_keepalive_if_required(self) -> None:
        """Where uvicorn would end its timer for idle connections, and make another with each answer, ours runs on."""
        self._idle_since_s = None

    def _rest(self) -> None:
        self._idle_since_s = self.loop.time()
        if self._idle_timer is None:
            self._idle_timer = self.loop.call_later(self.timeout_keep_alive, self._look_if_idle)

    def _look_if_idle(self) -> None:
        self._idle_timer = None
        if self._idle_since_s is None:  # the next answer begins anew
            return
        left_s = self._idle_since_s + self.timeout_keep_alive - self.loop.time()
        if left_s > 0:
            self._idle_timer = self.loop.call_later(left_s, self._look_if_idle)
        else:
            self.timeout_keep_alive_handler()

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
        if self._is_repeated(data):
            return
        self._fed, self._in_fed = data, self._in_message
        self._read_bytes += len(data)
        self._refused_whole = False
        super().data_received(data)
        self._fed = self._first = b""
        if self.transport.is_closing():
            return
        if self._read_bytes > HEAD_LIMIT_BYTES:
            self._refuse_length()
        else:
            self._heard()

    def _heard(self) -> None:
        working = self.cycle is not None and not self.cycle.response_complete
        self._head_timer.heard(working=working or self._refused_whole)

    def _is_repeated(self, data: bytes) -> bool:
        """Takes data that need no parser: a head as it came before, and the body after such a head."""
        if self._body_left:
            self._feed(data)
            return True
        head, before = self._head, self.cycle
        if (
            head is None
            or not head.raw
            or self._in_message
            or not data.startswith(head.raw)
            or not (before is None or (before.response_complete and before.keep_alive))
        ):
            return False
        if not self.flow.write_paused and self._unread.refuses(head.shown, self.loop.time()):
            if len(data) != len(head.raw) + head.body_bytes:
                return False  # the parser finds the end of what is not read
            self.transport.write(_REFUSAL)
            self._head_timer.cancel()
            self._rest()
            return True
        self._idle_since_s = None
        self._newcomers.leave(self)
        exchange = Exchange(self, self._gateway, head, keep_alive=True, waits=False)
        self.cycle = exchange  # type: ignore[assignment]  # see `_begin`
        self._body_left = head.body_bytes
        self._start_asgi_task(exchange, None)
        self._feed(data[len(head.raw) :])
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
        self._rest()

    def on_response_complete(self) -> None:
        """What uvicorn does after an answer, but for its timer."""
        self.server_state.total_requests += 1
        if self.transport.is_closing():
            return
        self.flow.resume_reading()
        if self.pipeline:
            # From the task of the one before, whose context is not its own.
            self._context.run(self._start_asgi_task, *self.pipeline.pop())
        else:
            self._rest()

    def _start_asgi_task(self, cycle: RequestResponseCycle | Exchange, app: Any) -> None:
        self._answering = cycle
        if isinstance(cycle, Exchange):
            cycle.task = self.loop.create_task(cycle.run())
            self.tasks.add(cycle.task)
        else:
            super()._start_asgi_task(cycle, app)

    def send_400_response(self, msg: str) -> None:
        """What uvicorn calls where the parser gives up."""
        if len(self.pipeline) > PIPELINE_LIMIT:
            self.transport.close()  # the answers before it are still to come, so this has no place for one
        elif self._head_bytes > HEAD_LIMIT_BYTES:
            self._refuse_length()
        else:
            self._close_with(400, "This is no valid HTTP/1.1 request; check its request line, headers and chunks.")

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
        self._head = Head(raw, body_bytes, self.url, self.headers, address, headers, url.query or b"", self._shown())
        return self._head

    def _stays_open(self) -> bool:
        return self.parser.get_http_version() == "1.1" and self.parser.should_keep_alive()

    def _shown(self) -> int:
        return self._unread.shown(self.presented.serial if self.presented else "", self.headers)

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
        self._close_with(431, f"The {part} larger than {HEAD_LIMIT_BYTES} bytes; send fewer.")

    def _close_with(self, status: int, sentence: str) -> None:
        # Where an answer is half out, only the end of the connection can tell the client.
        if self.cycle is None or not self.cycle.response_started or self.cycle.response_complete:
            self.transport.write(closing_response(status, sentence))
        self.transport.close()
