"""The way a request takes in: raw bytes to the data plane and back, with nothing of the framework between.

A request is read here from top to bottom, whoever brought it: our own HTTP protocol (`Exchange`), or, under another
server, ASGI (`InferFirst`). Both find these requests before the framework's layers do, which take longer than small
models do, and than a refusal under overload may.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from functools import lru_cache, partial
from typing import NamedTuple, Protocol

from msgspec.structs import replace
from starlette.datastructures import QueryParams
from starlette.requests import ClientDisconnect, HTTPConnection
from starlette.routing import Route, compile_path
from starlette.types import ASGIApp, Receive, Scope, Send

from firstline_core.errors import FirstlineError, LinkDownError, QueueFullError
from firstline_core.protocol import short
from firstline_core.protocol.http import Reply, error_reply, read_request, response_reply
from firstline_core.protocol.http_body import body_form, check_size, elsewhere, in_time, is_soon_read, within
from firstline_core.protocol.short import short_reply
from firstline_core.telemetry import logs
from firstline_core.telemetry.trace import from_lines
from firstline_core.types import TraceContext
from firstline_gateway.api.auth import Caller, caller_of, check_scope, known_caller, presented_by
from firstline_gateway.api.errors import LastResort, send_reply
from firstline_gateway.api.jobs import is_asynchronous, submitted
from firstline_gateway.gateway import Gateway
from firstline_gateway.identity.identity import Identity
from firstline_gateway.identity.presented import Presented
from firstline_gateway.telemetry.journal import record

_CLIENT_LEFT = 499  # nobody reads it; nginx's number for the same
_PATHS_KNOWN = 4096


class Incoming(Protocol):
    """One request, as whoever brought it has it.

    Attributes:
        headers: by lowered names; of one that is there twice the first.
        query_string: of its address.
        shown: the mark of what its caller showed (`unread.py`); None where that was not looked at.
        body: all of it, where it has come; None where it has to be waited for.
        trace: that it belongs to.
        is_lost: whether its client has left; who brought it cancels the task that answers it then.
    """

    @property
    def headers(self) -> Mapping[str, str]: ...
    @property
    def query_string(self) -> bytes: ...
    @property
    def shown(self) -> int | None: ...
    @property
    def body(self) -> bytes | None: ...
    @property
    def trace(self) -> TraceContext | None: ...
    @property
    def is_lost(self) -> bool: ...

    async def presented(self, identity: Identity) -> Presented | None:
        """The certificate that its caller, or a trusted proxy, has shown; not judged yet.

        Raises:
            UnauthorizedError: what the proxy says cannot be used.
        """
        ...

    def chunks(self) -> AsyncIterator[bytes]:
        """Its body as it comes.

        Raises:
            ClientDisconnect: the client left before its end.
        """
        ...


class Address(NamedTuple):
    """What a request for inference is addressed to."""

    endpoint: Endpoint
    model: str
    version: str


class _Asked(NamedTuple):
    """One request whose body is here; `arrived_s` is when its head was."""

    incoming: Incoming
    address: Address
    caller: Caller
    body: bytes
    arrived_s: float


Endpoint = Callable[[Gateway, _Asked], Awaitable[Reply]]


async def answer(gateway: Gateway, incoming: Incoming, address: Address) -> Reply:
    """Answers one request, whatever becomes of it, and writes that down."""
    started_s = gateway.clock.monotonic_s()
    principal, held_bytes = "", 0
    error: FirstlineError | None = None
    trace = incoming.trace
    if trace is not None:
        logs.FACTS.set(trace.facts)  # until there is a request that says more
    try:
        # Before the body is read: a stranger may not make us hold megabytes.
        presented = await incoming.presented(gateway.identity)
        authorization = incoming.headers.get("authorization", "")
        caller = known_caller(gateway.identity, authorization) if presented is None else None
        if caller is None:
            caller = await caller_of(gateway.identity, presented, authorization)
        check_scope(caller, "infer")
        principal = caller.principal
        body = incoming.body
        if body is not None:
            check_size(body, gateway.plane.limits)
            gateway.bodies.take(principal, len(body))
            held_bytes = len(body)
        else:
            parts = []
            async for chunk in within(in_time(incoming.chunks()), incoming.headers, gateway.plane.limits):
                gateway.bodies.take(principal, len(chunk))
                held_bytes += len(chunk)
                parts.append(chunk)
            body = b"".join(parts)
        reply = await address.endpoint(gateway, _Asked(incoming, address, caller, body, started_s))
    except (ClientDisconnect, asyncio.CancelledError) as ended:
        if isinstance(ended, asyncio.CancelledError) and not incoming.is_lost:
            raise
        error = LinkDownError("The client closed the connection before it was answered.")
        reply = Reply(_CLIENT_LEFT, {}, b"")
    except FirstlineError as refused:
        error = refused
        reply = refusal(gateway, incoming.shown, refused)
    finally:
        if held_bytes:
            gateway.bodies.give_back(principal, held_bytes)
    if gateway.answering.draining:
        reply.headers["Connection"] = "close"  # so that the next request is sent to somebody else
    record(
        gateway.metrics,
        transport="http",
        model=address.model,
        principal=principal,
        seconds=gateway.clock.monotonic_s() - started_s,
        error=error,
    )
    return reply


def refusal(gateway: Gateway, shown: int | None, error: FirstlineError) -> Reply:
    """What a request is told that gets no answer; `shown` is the mark of what its caller showed."""
    reply = error_reply(error)
    if isinstance(error, QueueFullError) and shown is not None:
        gateway.unread.told(shown, asyncio.get_running_loop().time())
    if not gateway.plane.ready():
        reply.headers["Connection"] = "close"  # so that the next request is sent to somebody else
    return reply


async def v2(gateway: Gateway, asked: _Asked) -> Reply:
    """V2's infer."""
    plane, caller = gateway.plane, asked.caller
    form = body_form(asked.incoming.headers)
    read = partial(
        read_request,
        *(asked.address.model, asked.address.version, form, asked.body),
        now_s=asked.arrived_s,
        principal=caller.principal,
        trust_request_id=caller.trust_request_id,
        limits=plane.limits,
    )
    request = read() if is_soon_read(form, len(asked.body)) else await elsewhere(read)
    trace = asked.incoming.trace
    if trace is not None:
        request = replace(request, trace=trace)
    if "prefer" in asked.incoming.headers and is_asynchronous(asked.incoming.headers):
        return await submitted(gateway, request)
    return response_reply(plane, request, await plane.infer(request))


async def _short(gateway: Gateway, asked: _Asked) -> Reply:
    if "prefer" in asked.incoming.headers and is_asynchronous(asked.incoming.headers):
        request = await short.read_request(
            asked.address.model,
            gateway.plane.metadata(asked.address.model, ""),
            asked.incoming.headers,
            QueryParams(asked.incoming.query_string),
            asked.body,
            principal=asked.caller.principal,
            limits=gateway.plane.limits,
            arrived_s=asked.arrived_s,
            trace=asked.incoming.trace,
        )
        return await submitted(gateway, request)
    return await short_reply(
        gateway.plane,
        asked.address.model,
        asked.incoming.headers,
        QueryParams(asked.incoming.query_string),
        asked.body,
        principal=asked.caller.principal,
        clock=gateway.clock,
        arrived_s=asked.arrived_s,
        trace=asked.incoming.trace,
    )


_ENDPOINTS: dict[str, Endpoint] = {
    "/v2/models/{model}/infer": v2,
    "/v2/models/{model}/versions/{version}/infer": v2,
    "/firstline/v1/models/{model}/infer": _short,
}
_PATTERNS = [(compile_path(path)[0], endpoint) for path, endpoint in _ENDPOINTS.items()]


@lru_cache(_PATHS_KNOWN)
def address_of(path: str) -> Address | None:
    """What a POST to this path, unquoted, asks of whom; None where it is no request for inference."""
    for pattern, endpoint in _PATTERNS:
        if found := pattern.match(path):
            return Address(endpoint, found["model"], found.groupdict().get("version", ""))
    return None


# The same under any ASGI server.


class InferFirst:
    """Serves the requests for inference, and hands on all others.

    Args:
        others: serves those.
        gateway: answers.
    """

    def __init__(self, others: ASGIApp, gateway: Gateway) -> None:
        self._others = others
        self._answer = LastResort(_AsgiEndpoint(gateway), gateway.metrics.error)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        asked = scope["type"] == "http" and scope["method"] == "POST" and address_of(scope["path"])
        await (self._answer if asked else self._others)(scope, receive, send)


def infer_routes(gateway: Gateway) -> list[Route]:
    """V2's infer with and without a version, and the short way in."""
    return [Route(path, _AsgiEndpoint(gateway), methods=["POST"]) for path in _ENDPOINTS]


class _AsgiEndpoint:
    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        address = address_of(scope["path"])
        assert address is not None  # noqa: S101 (what it is called for)
        await send_reply(await answer(self._gateway, _AsgiIncoming(scope, receive), address), send)


class _AsgiIncoming:
    body = None
    shown = None
    is_lost = False

    def __init__(self, scope: Scope, receive: Receive) -> None:
        self._scope = scope
        self._receive = receive
        self.headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in reversed(scope["headers"])}
        self.query_string: bytes = scope["query_string"]
        self.trace = from_lines(scope["headers"])

    async def presented(self, identity: Identity) -> Presented | None:
        return await presented_by(identity, HTTPConnection(self._scope))

    async def chunks(self) -> AsyncIterator[bytes]:
        more = True
        while more:
            message = await self._receive()
            if message["type"] == "http.disconnect":
                raise ClientDisconnect
            more = message.get("more_body", False)
            yield message.get("body", b"")
