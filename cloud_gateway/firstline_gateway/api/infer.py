"""The way a request takes in: raw bytes to the data plane and back, with nothing of the framework between.

`InferFirst` finds these requests before the framework's layers do, which take longer than small models do, and than a
refusal under overload may.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from typing import NamedTuple

from starlette.datastructures import QueryParams
from starlette.requests import ClientDisconnect, HTTPConnection
from starlette.routing import Route, compile_path
from starlette.types import ASGIApp, Receive, Scope, Send

from firstline_core.errors import FirstlineError, LinkDownError, QueueFullError
from firstline_core.protocol import short
from firstline_core.protocol.http import Reply, error_reply, infer_reply, read_body, read_request
from firstline_core.protocol.short import short_reply
from firstline_gateway.api.auth import Caller, authorize
from firstline_gateway.api.bodies import in_time
from firstline_gateway.api.connection import connection_of, while_connected
from firstline_gateway.api.errors import LastResort, send_reply
from firstline_gateway.api.jobs import is_asynchronous, submitted
from firstline_gateway.api.unread import SCOPE_KEY as SHOWN
from firstline_gateway.gateway import Gateway
from firstline_gateway.journal import record

_CLIENT_LEFT = 499  # nobody reads it; nginx's number for the same


class InferFirst:
    """Serves the requests of `infer_routes`, and hands on all others.

    Args:
        others: serves those.
        gateway: answers.
    """

    def __init__(self, others: ASGIApp, gateway: Gateway) -> None:
        self._others = others
        self._endpoints = [
            (compile_path(path)[0], LastResort(endpoint, gateway.metrics.error))
            for path, endpoint in _endpoints(gateway).items()
        ]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["method"] == "POST":
            for path, endpoint in self._endpoints:
                if found := path.match(scope["path"]):
                    scope["path_params"] = found.groupdict()
                    await endpoint(scope, receive, send)
                    return
        await self._others(scope, receive, send)


def infer_routes(gateway: Gateway) -> list[Route]:
    """V2's infer with and without a version, and the short way in."""
    return [Route(path, endpoint, methods=["POST"]) for path, endpoint in _endpoints(gateway).items()]


def _endpoints(gateway: Gateway) -> dict[str, Endpoint]:
    return {
        "/v2/models/{model}/infer": Endpoint(gateway, _v2),
        "/v2/models/{model}/versions/{version}/infer": Endpoint(gateway, _v2),
        "/firstline/v1/models/{model}/infer": Endpoint(gateway, _short),
    }


class Endpoint:
    """Serves one of the addresses.

    Args:
        gateway: whose caller, body and answer are looked after here.
        answer: makes the reply of a body.
    """

    def __init__(self, gateway: Gateway, answer: _Answer) -> None:
        self._gateway = gateway
        self._answer = answer

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        gateway = self._gateway
        started_s = gateway.clock.monotonic_s()
        # Of a header that is there twice the first counts.
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in reversed(scope["headers"])}
        connection = connection_of(scope)
        principal = ""
        error: FirstlineError | None = None
        try:
            # Before the body is read: a stranger may not make us hold megabytes.
            caller = await authorize(gateway.identity, HTTPConnection(scope), "infer")
            principal = caller.principal
            with gateway.bodies.share(principal) as share:
                chunks = _chunks(receive, share.take)
                if connection is None or not connection.has_whole_body:
                    chunks = in_time(chunks)
                body = await read_body(chunks, headers, gateway.plane.limits)
                asked = _Asked(scope, headers, caller, body, started_s)
                reply = await while_connected(connection, self._answer(gateway, asked))
        except ClientDisconnect:
            error = LinkDownError("The client closed the connection before it was answered.")
            reply = Reply(_CLIENT_LEFT, {}, b"")
        except FirstlineError as refused:
            error = refused
            reply = error_reply(refused)
            if isinstance(refused, QueueFullError) and SHOWN in scope:
                gateway.unread.told(scope[SHOWN], asyncio.get_running_loop().time())
        if not gateway.plane.ready():
            reply.headers["Connection"] = "close"  # so that the next request is sent to somebody else
        record(
            gateway.metrics,
            transport="http",
            model=scope["path_params"]["model"],
            principal=principal,
            seconds=gateway.clock.monotonic_s() - started_s,
            error=error,
        )
        await send_reply(reply, send)


class _Asked(NamedTuple):
    """One request; `headers` by lowered names, `arrived_s` when its head did."""

    scope: Scope
    headers: Mapping[str, str]
    caller: Caller
    body: bytes
    arrived_s: float


_Answer = Callable[[Gateway, _Asked], Awaitable[Reply]]


async def _v2(gateway: Gateway, asked: _Asked) -> Reply:
    if "prefer" in asked.headers and is_asynchronous(asked.headers):
        request = await read_request(
            asked.scope["path_params"]["model"],
            asked.scope["path_params"].get("version", ""),
            asked.headers,
            asked.body,
            principal=asked.caller.principal,
            trust_request_id=False,
            limits=gateway.plane.limits,
            now_s=asked.arrived_s,
        )
        return await submitted(gateway, request)
    return await infer_reply(
        gateway.plane,
        asked.scope["path_params"]["model"],
        asked.scope["path_params"].get("version", ""),
        asked.headers,
        asked.body,
        principal=asked.caller.principal,
        trust_request_id=asked.caller.trust_request_id,
        clock=gateway.clock,
        arrived_s=asked.arrived_s,
    )


async def _short(gateway: Gateway, asked: _Asked) -> Reply:
    if "prefer" in asked.headers and is_asynchronous(asked.headers):
        model = asked.scope["path_params"]["model"]
        request = await short.read_request(
            model,
            gateway.plane.metadata(model, ""),
            asked.headers,
            QueryParams(asked.scope["query_string"]),
            asked.body,
            principal=asked.caller.principal,
            limits=gateway.plane.limits,
            arrived_s=asked.arrived_s,
        )
        return await submitted(gateway, request)
    return await short_reply(
        gateway.plane,
        asked.scope["path_params"]["model"],
        asked.headers,
        QueryParams(asked.scope["query_string"]),
        asked.body,
        principal=asked.caller.principal,
        clock=gateway.clock,
        arrived_s=asked.arrived_s,
    )


async def _chunks(receive: Receive, take: Callable[[int], None]) -> AsyncIterator[bytes]:
    """A body as it comes, each chunk counted.

    Raises:
        ClientDisconnect: the client left before its end.
    """
    more = True
    while more:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientDisconnect
        chunk: bytes = message.get("body", b"")
        more = message.get("more_body", False)
        take(len(chunk))
        yield chunk
