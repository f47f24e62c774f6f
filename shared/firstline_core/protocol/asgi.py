"""ASGI without a framework, for the inference endpoints of both tiers: requests, facts about them, and replies.

While the event loop is busy, requests wait in the kernel, and their deadlines run on: their arrival is measured there.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import sys
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, MutableMapping, Sequence
from functools import cached_property, lru_cache
from types import MappingProxyType
from typing import Any, NamedTuple
from urllib.parse import parse_qsl

from firstline_core.clock import SYSTEM_CLOCK
from firstline_core.errors import RequestError
from firstline_core.protocol.http import Reply, body_time_limit, check_declared_size
from firstline_core.protocol.limits import Limits
from firstline_core.protocol.parameters import SEVERAL
from firstline_core.protocol.tensors import shown
from firstline_core.telemetry.trace import from_lines, received
from firstline_core.types import TRACEPARENT, TRACESTATE, TraceContext

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
AsgiApp = Callable[[Scope, Receive, Send], Awaitable[None]]

_NO_CONTENT = 204
QUERY_FIELDS = 256
# Headers whose repeated lines are one list (RFC 9110, section 5.3).
_LISTS = frozenset({"accept", "prefer"})
_NO_PARAMETERS: Mapping[str, str] = MappingProxyType({})
STATE_KEY = "firstline"
"""The key of a request's `RequestInfo` in the `state` of its ASGI scope."""

_TCP_INFO = getattr(socket, "TCP_INFO", None)
# Of struct tcp_info (linux/tcp.h, a stable interface): 8 bytes, then 32-bit numbers, of which tcpi_last_data_recv is
# the twelfth: milliseconds since data arrived on this connection.
_LAST_DATA = slice(52, 56)


class RequestInfo:
    """Facts about a request beyond ASGI; `request_info` returns them.

    Attributes:
        arrived_s: when its head reached this machine, on the server's monotonic clock. The time for which it waited in
            the kernel, while the event loop was busy, counts.
        peer: see `http_server.PeerRegistry`; None without a client certificate.
        whole: whether the whole body has arrived.
        disconnected: whether the client has left.
        task: in which the server answers; None under another server.
    """

    __slots__ = ("_cancels", "arrived_s", "disconnected", "peer", "task", "whole")

    def __init__(self, arrived_s: float, peer: Any = None) -> None:
        self.arrived_s = arrived_s
        self.peer = peer
        self.whole = self.disconnected = self._cancels = False
        self.task: asyncio.Task[Any] | None = None

    def cancel_on_disconnect(self) -> None:
        """Cancels the task once the client has left, because its answer would not be read."""
        self._cancels = True
        if self.disconnected:
            self.disconnect()

    def disconnect(self) -> None:
        """Notes that the client has left."""
        self.disconnected = True
        if self._cancels and self.task is not None:
            self.task.cancel()


def request_info(scope: Scope) -> RequestInfo:
    """Returns the facts about a request; under another ASGI server it arrives now."""
    info = scope.get("state", {}).get(STATE_KEY)
    return info if isinstance(info, RequestInfo) else RequestInfo(SYSTEM_CLOCK.monotonic_s())


def age_s(connection: socket.socket) -> float:
    """Returns for how many seconds the latest bytes have waited to be read; 0 if the system does not know."""
    if _TCP_INFO is None:
        return 0.0
    try:
        info = connection.getsockopt(socket.IPPROTO_TCP, _TCP_INFO, _LAST_DATA.stop)
    except OSError:  # the connection has ended, or is a Unix socket
        return 0.0
    return int.from_bytes(info[_LAST_DATA], sys.byteorder) / 1000


class ClientDisconnectedError(Exception):
    """The client left before the end of its request."""


def query_parameters(query_string: bytes) -> dict[str, str]:
    """Returns the parameters after `?`, unquoted; the values of a repeated name are separated by `SEVERAL`.

    Raises:
        RequestError: there are too many, or a value has the character NUL.
    """
    text = query_string.decode("latin-1")
    if text.count("&") >= QUERY_FIELDS:
        raise RequestError(f"The query has more than {QUERY_FIELDS} parameters; send fewer.")
    found: dict[str, str] = {}
    for name, value in parse_qsl(text, keep_blank_values=True):
        if SEVERAL in value:
            raise RequestError(f"Query parameter {shown(name)} has the character NUL; send text.")
        found[name] = f"{found[name]}{SEVERAL}{value}" if name in found else value
    return found


class Request:
    """An HTTP request.

    Args:
        scope: ASGI scope of the type "http".
        receive: function of ASGI that returns the next message.

    Attributes:
        scope: see above.
        method: HTTP method, such as POST.
        path: path, unquoted.
        headers: headers by lower-case names; the first value of a repeated name, and all values of Accept and Prefer.
        query_string: query, as received.
        peer: address and port of the client; None over a Unix socket.
        info: arrival time and peer of the request.
        parameters: named parts of the path, set by the router.
        trace: trace context in the headers; None without one.
    """

    def __init__(self, scope: Scope, receive: Receive) -> None:
        self.scope = scope
        self.method: str = scope["method"]
        self.path: str = scope["path"]
        lines = scope["headers"]
        self.headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in reversed(lines)}
        if len(self.headers) < len(lines):
            for name in _LISTS & self.headers.keys():
                self.headers[name] = ", ".join(
                    value.decode("latin-1") for each, value in lines if each == name.encode()
                )
        self.query_string: bytes = scope["query_string"]
        self.peer: tuple[str, int] | None = scope.get("client")
        self.info = request_info(scope)
        self.trace = self._trace(lines) if TRACEPARENT in self.headers else None
        self.parameters: Mapping[str, str] = _NO_PARAMETERS
        self._receive = receive

    def _trace(self, lines: Sequence[tuple[bytes, bytes]]) -> TraceContext | None:
        if len(lines) > len(self.headers):  # a name is repeated
            return from_lines(lines)
        return received(self.headers[TRACEPARENT], self.headers.get(TRACESTATE, ""))

    @cached_property
    def query(self) -> dict[str, str]:
        """See `query_parameters`."""
        return query_parameters(self.query_string)

    async def body(self, limits: Limits, reserve: Callable[[int], None] = lambda _size_bytes: None) -> bytes:
        """Reads the whole body, within its limits of size and time.

        Args:
            limits: limits of the body.
            reserve: called with the size of each part as it arrives; may refuse it.

        Raises:
            PayloadTooLargeError: the body is over the limit.
            RemoteTimeoutError: it arrives too slowly.
            ClientDisconnectedError: the client left before its end.
        """
        if self.info.whole:
            body, _ = await self._message()
            limits.check_body(len(body))
            reserve(len(body))
            return body
        check_declared_size(self.headers, limits)
        parts, size_bytes, has_more = [], 0, True
        async with body_time_limit() as note_bytes:
            while has_more:
                part, has_more = await self._message()
                size_bytes += len(part)
                limits.check_body(size_bytes)
                reserve(len(part))
                note_bytes(len(part))
                parts.append(part)
        return b"".join(parts)

    async def _message(self) -> tuple[bytes, bool]:
        message = await self._receive()
        if message["type"] == "http.disconnect":
            raise ClientDisconnectedError
        return message.get("body", b""), message.get("more_body", False)


class Streamed(NamedTuple):
    """An answer that is sent in pieces.

    Attributes:
        headers: headers of the answer.
        pieces: content; closed at the end, also if the client leaves early.
        held: resources to close at the end.
    """

    headers: dict[str, str]
    pieces: AsyncGenerator[bytes, None]
    held: contextlib.ExitStack


async def send_reply(reply: Reply, send: Send) -> None:
    """Sends a whole answer."""
    headers = _encoded(None if reply.status == _NO_CONTENT else len(reply.body), *reply.headers.items())
    await send({"type": "http.response.start", "status": reply.status, "headers": headers})
    await send({"type": "http.response.body", "body": reply.body})


async def send_stream(streamed: Streamed, request: Request, send: Send) -> None:
    """Sends an answer in pieces; cancelled when the client leaves."""
    with streamed.held:
        async with contextlib.aclosing(streamed.pieces) as pieces:
            request.info.cancel_on_disconnect()
            headers = _encoded(None, *streamed.headers.items())
            await send({"type": "http.response.start", "status": 200, "headers": headers})
            if request.method != "HEAD":
                async for piece in pieces:
                    await send({"type": "http.response.body", "body": piece, "more_body": True})
            await send({"type": "http.response.body", "body": b""})


@lru_cache(1024)
def _encoded(length: int | None, *headers: tuple[str, str]) -> tuple[tuple[bytes, bytes], ...]:
    declared = ((b"content-length", b"%d" % length),) if length is not None else ()
    return (*((name.lower().encode("latin-1"), value.encode("latin-1")) for name, value in headers), *declared)
