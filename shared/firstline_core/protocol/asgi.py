"""Requests and replies of an ASGI application without a framework, for the inference endpoints of both tiers."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator, Callable, Mapping
from functools import cached_property, lru_cache
from types import MappingProxyType
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import parse_qsl

from firstline_core.errors import RequestError
from firstline_core.protocol.http import Reply, body_time_limit, check_declared_size
from firstline_core.protocol.limits import Limits
from firstline_core.protocol.parameters import SEVERAL
from firstline_core.protocol.request_info import Scope, request_info
from firstline_core.protocol.tensors import shown
from firstline_core.telemetry.trace import from_lines
from firstline_core.types import TRACEPARENT

if TYPE_CHECKING:  # settings refer to these modules: commands that serve nothing need no server
    from firstline_core.protocol.http_server import Receive, Send

_NO_CONTENT = 204
_NO_PARAMETERS: Mapping[str, str] = MappingProxyType({})


class ClientDisconnectedError(Exception):
    """The client left before the end of its request."""


def query_parameters(query_string: bytes) -> dict[str, str]:
    """Returns the parameters after `?`, unquoted; the values of a repeated name are separated by `SEVERAL`.

    Raises:
        RequestError: a value has the character NUL.
    """
    found: dict[str, str] = {}
    for name, value in parse_qsl(query_string.decode("latin-1"), keep_blank_values=True):
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
        headers: headers by lower-case names; the first value of a repeated name.
        query_string: query, as received.
        peer: address and port of the client; None over a Unix socket.
        info: arrival time and peer of the request.
        parameters: named parts of the path, set by the router.
        trace: trace context in the headers; None without one.
    """

    __slots__ = (
        "__dict__",
        "_receive",
        "headers",
        "info",
        "method",
        "parameters",
        "path",
        "peer",
        "query_string",
        "scope",
        "trace",
    )

    def __init__(self, scope: Scope, receive: Receive) -> None:
        self.scope = scope
        self.method: str = scope["method"]
        self.path: str = scope["path"]
        lines = scope["headers"]
        self.headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in reversed(lines)}
        self.query_string: bytes = scope["query_string"]
        self.peer: tuple[str, int] | None = scope.get("client")
        self.info = request_info(scope)
        self.trace = from_lines(lines) if TRACEPARENT in self.headers else None
        self.parameters: Mapping[str, str] = _NO_PARAMETERS
        self._receive = receive

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
            message = await self._receive()
            if message["type"] == "http.disconnect":
                raise ClientDisconnectedError
            body: bytes = message.get("body", b"")
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

    headers: Mapping[str, str]
    pieces: AsyncGenerator[bytes, None]
    held: contextlib.ExitStack


async def send_reply(reply: Reply, send: Send) -> None:
    """Sends a whole answer."""
    headers = list(_encoded(*reply.headers.items()))
    if reply.status != _NO_CONTENT:
        headers.append((b"content-length", b"%d" % len(reply.body)))
    await send({"type": "http.response.start", "status": reply.status, "headers": headers})
    await send({"type": "http.response.body", "body": reply.body})


async def send_stream(streamed: Streamed, request: Request, send: Send) -> None:
    """Sends an answer in pieces; cancelled when the client leaves."""
    with streamed.held:
        async with contextlib.aclosing(streamed.pieces) as pieces:
            request.info.cancel_on_disconnect()
            headers = list(_encoded(*streamed.headers.items()))
            await send({"type": "http.response.start", "status": 200, "headers": headers})
            if request.method != "HEAD":
                async for piece in pieces:
                    await send({"type": "http.response.body", "body": piece, "more_body": True})
            await send({"type": "http.response.body", "body": b""})


@lru_cache(256)
def _encoded(*headers: tuple[str, str]) -> tuple[tuple[bytes, bytes], ...]:
    return tuple((name.lower().encode("latin-1"), value.encode("latin-1")) for name, value in headers)
