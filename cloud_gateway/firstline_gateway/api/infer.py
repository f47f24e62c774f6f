"""The way a request takes in: raw bytes to the data plane and back, with nothing of the framework between.

`InferFirst` finds these requests before the framework's layers do, which take longer than a refusal under overload may.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route, compile_path
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from firstline_core.errors import FirstlineError, LinkDownError, QueueFullError
from firstline_core.protocol.http import Reply, error_reply, infer_reply, read_body
from firstline_core.protocol.short import short_reply
from firstline_gateway.api.auth import Caller, authorize
from firstline_gateway.api.errors import response_of
from firstline_gateway.api.unread import SCOPE_KEY as SHOWN
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

    return [route(path, answer) for path, answer in _answers().items()]


class InferFirst:
    """Serves the requests of `infer_routes`, and hands on all others.

    Args:
        app: serves the others.
        gateway: answers.
    """

    def __init__(self, app: ASGIApp, gateway: Gateway) -> None:
        self._app = app
        self._gateway = gateway
        self._answers = [(compile_path(path)[0], answer) for path, answer in _answers().items()]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["method"] == "POST":
            for path, answer in self._answers:
                if found := path.match(scope["path"]):
                    scope["path_params"] = found.groupdict()
                    response = await _serve(self._gateway, Request(scope, receive), answer)
                    await response(scope, receive, send)
                    return
        await self._app(scope, receive, send)


def _answers() -> dict[str, Answer]:
    return {
        "/v2/models/{model}/infer": _v2,
        "/v2/models/{model}/versions/{version}/infer": _v2,
        "/firstline/v1/models/{model}/infer": _short,
    }


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
        with gateway.bodies.share(principal) as counted:
            body = await read_body(counted(request.stream()), request.headers, gateway.plane.limits)
            reply = await _while_connected(request, answer(gateway, request, caller, body, started_s))
    except ClientDisconnect:
        error = LinkDownError("The client closed the connection before it was answered.")
        reply = Reply(_CLIENT_LEFT, {}, b"")
    except FirstlineError as refused:
        error = refused
        reply = error_reply(refused)
        if isinstance(refused, QueueFullError) and SHOWN in request.scope:
            gateway.unread.told(request.scope[SHOWN], asyncio.get_running_loop().time())
    if not gateway.plane.ready():
        reply.headers["Connection"] = "close"  # so that the next request is sent to somebody else
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
