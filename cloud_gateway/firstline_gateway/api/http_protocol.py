"""uvicorn's HTTP/1.1 with what it lacks: bounds on what comes beside bodies, and refusals in JSON as everywhere else.

Whoever reaches the port can send heads, trailers and request after request, before any token is looked at; without
bounds it is all kept. Where TLS ends here, the certificate that the client has shown is put into the scope, and its
connection can be ended when that is revoked.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import httptools
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from firstline_core.protocol.http_errors import closing_response
from firstline_core.protocol.http_head import HEAD_LIMIT_BYTES, HeadTimer
from firstline_gateway.api import connection
from firstline_gateway.api.door import Newcomers
from firstline_gateway.api.unread import SCOPE_KEY as SHOWN
from firstline_gateway.api.unread import Unread, refusal
from firstline_gateway.identity.presented import SCOPE_KEY, Presented, read_presented
from firstline_gateway.identity.sessions import Sessions

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
    _presented: Presented | None = None
    _refused = False  # this request, unread
    _refused_whole = False  # that was all that came
    is_lost = False
    on_lost: Callable[[], object] | None = None

    def __init__(self, *arguments: Any, sessions: Sessions, unread: Unread, newcomers: Newcomers, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self._sessions = sessions
        self._unread = unread
        self._newcomers = newcomers

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._unread.watch(self.loop)
        tls = transport.get_extra_info("ssl_object")
        if tls is None:  # else it has come through the door
            self._newcomers.enter(self, transport)
        certificate = tls.getpeercert(binary_form=True) if tls is not None else None
        if certificate is not None:
            self._presented = read_presented(certificate)
            self._sessions.add(self._presented.serial, self)
        self._head_timer = HeadTimer(self.loop, self.timeout_keep_alive_handler)
        # uvicorn starts this one with the first answer; a connection that never asks is idle too.
        self.timeout_keep_alive_task = self.loop.call_later(self.timeout_keep_alive, self.timeout_keep_alive_handler)

    @property
    def has_whole_body(self) -> bool:
        # Where requests were sent ahead this is the last one's, and those before it came in before.
        return self.cycle is not None and not self.cycle.more_body

    def connection_lost(self, exc: Exception | None) -> None:
        self.is_lost = True
        if self.on_lost is not None:
            self.on_lost()
        self._newcomers.leave(self)
        self._head_timer.cancel()
        if self._stalled is not None:
            self._stalled.cancel()
        if self._presented is not None:
            self._sessions.remove(self._presented.serial, self)
        self._unset_keepalive_if_required()
        super().connection_lost(exc)

    def pause_writing(self) -> None:
        """The client reads more slowly than it is answered."""
        super().pause_writing()
        self._stalled = self.loop.call_later(WRITE_TIMEOUT_S, self.transport.abort)

    def resume_writing(self) -> None:
        if self._stalled is not None:
            self._stalled.cancel()
        super().resume_writing()

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
        self._read_bytes += len(data)
        self._refused_whole = False
        super().data_received(data)
        if self.transport.is_closing():
            return
        if self._read_bytes > HEAD_LIMIT_BYTES:
            self._refuse_length()
        else:
            working = self.cycle is not None and not self.cycle.response_complete
            self._head_timer.heard(working=working or self._refused_whole)

    def on_message_begin(self) -> None:
        self._in_head = True
        self._refused_whole = False
        self._read_bytes = self._head_bytes = 0
        super().on_message_begin()
        self.scope[connection.SCOPE_KEY] = self  # type: ignore[literal-required]  # a key of ours
        if self._presented is not None:
            self.scope[SCOPE_KEY] = self._presented  # type: ignore[literal-required]  # a key of ours

    def on_url(self, url: bytes) -> None:
        self._count(url)
        super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        self._count(name + value)
        super().on_header(name, value)

    def on_headers_complete(self) -> None:
        self._in_head = False
        self._newcomers.leave(self)
        if self._refused_unread():
            self.transport.write(_REFUSAL if self.parser.should_keep_alive() else _LAST_REFUSAL)
            return
        super().on_headers_complete()
        if len(self.pipeline) > PIPELINE_LIMIT:
            raise httptools.HttpParserError("too many requests at once")

    def on_body(self, body: bytes) -> None:
        self._read_bytes = 0
        if not self._refused:
            super().on_body(body)

    def on_message_complete(self) -> None:
        if not self._refused:
            super().on_message_complete()
            return
        if not self.parser.should_keep_alive():
            self.transport.close()  # not before: what it sends unread would reset the connection, and lose the answer
            return
        self._refused_whole = True
        self._head_timer.cancel()
        self._unset_keepalive_if_required()
        self.timeout_keep_alive_task = self.loop.call_later(self.timeout_keep_alive, self.timeout_keep_alive_handler)

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

    def _refused_unread(self) -> bool:
        self._refused = False
        if not self.url.partition(b"?")[0].endswith(b"/infer"):
            return False
        shown = self._unread.shown(self._presented.serial if self._presented else "", self.headers)
        self.scope[SHOWN] = shown  # type: ignore[literal-required]  # a key of ours
        # Answers go out in the order of their requests, and one that asks before it sends must not send.
        if self.expect_100_continue or not (self.cycle is None or self.cycle.response_complete):
            return False
        self._refused = self._unread.refuses(shown, self.loop.time())
        return self._refused

    def _count(self, part: bytes) -> None:
        self._head_bytes += len(part)
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
