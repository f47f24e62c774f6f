"""Connections on which requests for inference are answered past ASGI.

Such a request is found by its head; one whose head came before, byte for byte, needs no parser (`heads.py`). From its
head it may be refused, too, before its body is read (`unread.py`). Else it is begun on the fast path, or carried by an
`Exchange`. All other requests stay uvicorn's.
"""

from __future__ import annotations

import asyncio
from typing import Any
from urllib.parse import unquote

import httptools
from msgspec.structs import replace
from uvicorn.protocols.http.httptools_impl import RequestResponseCycle

from firstline_core.protocol.http_errors import Lowered
from firstline_core.protocol.repeated_head import TRACED_BYTES, repeatable
from firstline_core.telemetry.trace import from_lines
from firstline_core.types import TRACEPARENT
from firstline_gateway.api.connection.cycle import Cycle
from firstline_gateway.api.connection.door import Newcomers
from firstline_gateway.api.connection.exchange import Exchange
from firstline_gateway.api.connection.fast_path import FastPath
from firstline_gateway.api.connection.heads import Head
from firstline_gateway.api.connection.http_protocol import HttpProtocol
from firstline_gateway.api.connection.unread import refusal
from firstline_gateway.api.infer import address_of
from firstline_gateway.gateway import Gateway

_REFUSAL = refusal()
_LAST_REFUSAL = refusal(closing=True)


class InferenceProtocol(HttpProtocol):
    """One connection.

    Args:
        gateway: answers.
        fast_path: does so for requests like those before.
        newcomers: those who have asked nothing yet.
    """

    _fed = b""  # to the parser now
    _in_fed = False  # it had begun, or has begun since, a message in that
    _first = b""  # what the present message was the first of; b"" where it began elsewhere
    _body_left = 0  # of a body that is not parsed
    _refused = False  # this request, unread
    _refused_whole = False  # that was all that came
    _head: Head | None = None  # of the last request for inference
    _default_headers: list[tuple[bytes, bytes]] | None = None
    _default_lines = b""

    def __init__(
        self, *arguments: Any, gateway: Gateway, fast_path: FastPath, newcomers: Newcomers, **named: Any
    ) -> None:
        super().__init__(*arguments, sessions=gateway.identity.gatekeeper.sessions, newcomers=newcomers, **named)
        self._gateway = gateway
        self._fast_path = fast_path
        self._unread = gateway.unread

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._unread.watch(self.loop)

    @property
    def default_lines(self) -> bytes:
        """The header lines of every answer; the server changes them once a second."""
        if self.server_state.default_headers is not self._default_headers:
            self._default_headers = self.server_state.default_headers
            self._default_lines = b"".join([b"%b: %b\r\n" % each for each in self._default_headers])
        return self._default_lines

    def _lose(self, cycle: RequestResponseCycle | Cycle) -> None:
        if not isinstance(cycle, Cycle):
            super()._lose(cycle)
        elif not cycle.response_complete:
            cycle.lost()

    def data_received(self, data: bytes) -> None:
        if self._refusal:
            return
        if self._is_repeated(data):
            return
        self._fed, self._in_fed = data, self._in_message
        self._refused_whole = False
        super().data_received(data)
        self._fed = self._first = b""

    def _is_working(self) -> bool:
        return self._refused_whole or super()._is_working()

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
        self._newcomers.leave(self)
        end = len(head.raw) if head.trace is None else len(head.raw) + TRACED_BYTES
        if not self.flow.write_paused and self._unread.refuses(head.shown, self.loop.time()):
            if len(data) != end + head.body_bytes:
                return False  # the parser finds the end of what is not read
            self.transport.write(_REFUSAL)
            self._head_timer.cancel()
            self._idle.rest()
            return True
        self._idle.busy()
        if len(data) == end + head.body_bytes:
            self._head_timer.cancel()
            body = data[end:]
            fast = self._fast_path.begin(self, head, body)
            if fast is not None:
                self.cycle = self._answering = fast  # type: ignore[assignment]  # see `_exchange`
                return True
            exchange = Exchange(self, self._gateway, head, keep_alive=True, waits=False)
            self.cycle = self._answering = exchange  # type: ignore[assignment]  # see `_exchange`
            exchange.feed(body)
            exchange.feed_end()
            exchange.begin()
        else:
            exchange = Exchange(self, self._gateway, head, keep_alive=True, waits=False)
            self.cycle = exchange  # type: ignore[assignment]  # see `_exchange`
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
        self._first = self._fed if not self._in_fed else b""
        self._in_fed = True
        self._refused_whole = False
        super().on_message_begin()

    def _begin(self) -> None:
        head = self._read_head()
        self._refused = self._refuses(head)
        if self._refused:
            self.transport.write(_REFUSAL if self.parser.should_keep_alive() else _LAST_REFUSAL)
        elif head is None:
            super()._begin()
        else:
            self._exchange(head)

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

    def _exchange(self, head: Head) -> None:
        """Has a request for inference answered, in its turn."""
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

    def on_body(self, body: bytes) -> None:
        if not (self._refused or isinstance(self.cycle, Exchange)):
            super().on_body(body)
            return
        self._read_bytes = 0
        if not (self._refused or self.cycle.response_complete):
            self.cycle.feed(body)

    def on_message_complete(self) -> None:
        if not (self._refused or isinstance(self.cycle, Exchange)):
            super().on_message_complete()
            return
        if self.parser.should_upgrade():
            return
        self._in_message = False
        if not self._refused:
            if not self.cycle.response_complete:
                self.cycle.feed_end()
        elif not self.parser.should_keep_alive():
            self.transport.close()  # not before: what it sends unread would reset the connection, and lose the answer
        else:
            self._refused_whole = True
            self._head_timer.cancel()
            self._idle.rest()

    def _start_asgi_task(self, cycle: RequestResponseCycle | Exchange, app: Any) -> None:
        if isinstance(cycle, Exchange):
            self._answering = cycle  # type: ignore[assignment]  # see `_exchange`
            cycle.task = self.loop.create_task(cycle.run())
            self.tasks.add(cycle.task)
        else:
            super()._start_asgi_task(cycle, app)
