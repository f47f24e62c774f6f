"""The way a request takes in: raw bytes to the data plane and back, with nothing of the framework between.

These handlers know no injection and no schema; they could stand before the framework unchanged.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import Message

from firstline_core.errors import FirstlineError, LinkDownError
from firstline_core.protocol.http import Reply, error_reply, infer_reply, read_body
from firstline_core.protocol.short import short_reply
from firstline_gateway.api.auth import Caller, authorize
from firstline_gateway.api.errors import response_of
from firstline_gateway.gateway import Gateway
from firstline_gateway.journal import record

_CLIENT_LEFT = 499  # nobody reads it; nginx's number for the same

Answer = Callable[[Gateway, Request, Caller, bytes, float], Awaitable[Reply]]  # the last is when the head arrived


def infer_routes(gateway: Gateway) -> list[Route]:
    """V2's infer with and without a version, and the short way in."""

    def route(path: str, answer: Answer) -> Route:
        async def endpoint(request: Request) -> Response:
            return await _serve(gateway, request, answer)

        return Route(path, endpoint, methods=["POST"])

    return [
        route("/v2/models/{model}/infer", _v2),
        route("/v2/models/{model}/versions/{version}/infer", _v2),
        route("/firstline/v1/models/{model}/infer", _short),
    ]


async def _v2(gateway: Gateway, request: Request, caller: Caller, body: bytes, arrived_s: float) -> Reply:
    return await infer_reply(
        gateway.plane,
        request.path_params["model"],
        request.path_params.get("version", ""),
        request.headers,
        body,
        principal=caller.principal,
        trust_request_id=caller.trust_request_id,
        clock=gateway.clock,
        arrived_s=arrived_s,
    )


async def _short(gateway: Gateway, request: Request, caller: Caller, body: bytes, arrived_s: float) -> Reply:
    return await short_reply(
        gateway.plane,
        request.path_params["model"],
        request.headers,
        request.query_params,
        body,
        principal=caller.principal,
        clock=gateway.clock,
        arrived_s=arrived_s,
    )


async def _serve(gateway: Gateway, request: Request, answer: Answer) -> Response:
    started_s = gateway.clock.monotonic_s()
    principal = ""
    error: FirstlineError | None = None
    try:
        # Before the body is read: a stranger may not make us hold megabytes.
        caller = await authorize(gateway.identity, request, "infer")
        principal = caller.principal
        body = await read_body(request.stream(), request.headers, gateway.plane.limits)
        reply = await _while_connected(request, answer(gateway, request, caller, body, started_s))
    except ClientDisconnect:
        error = LinkDownError("The client closed the connection before it was answered.")
        reply = Reply(_CLIENT_LEFT, {}, b"")
    except FirstlineError as refused:
        error = refused
        reply = error_reply(refused)
    record(
        gateway.metrics,
        transport="http",
        model=request.path_params["model"],
        principal=principal,
        seconds=gateway.clock.monotonic_s() - started_s,
        error=error,
    )
    return response_of(reply)


async def _while_connected(request: Request, work: Awaitable[Reply]) -> Reply:
    """Waits for `work`, and cancels it when the client leaves, so that nothing runs for nobody.

    Raises:
        ClientDisconnect: the client left first.
    """
    task = asyncio.current_task()
    assert task is not None  # noqa: S101 (a coroutine always runs in one)
    # After the body nothing more arrives but the news that the client is gone.
    gone = asyncio.ensure_future(request.receive())
    answered = False

    def left(news: asyncio.Future[Message]) -> None:
        if not answered and not news.cancelled():
            task.cancel()

    gone.add_done_callback(left)
    try:
        return await work
    except asyncio.CancelledError:
        if gone.done() and task.uncancel() == 0:
            raise ClientDisconnect from None
        raise
    finally:
        answered = True
        gone.cancel()
