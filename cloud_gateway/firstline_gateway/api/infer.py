"""Inference over HTTP: an ASGI application that reads a request, asks the data plane and answers.

It comes before the framework, whose layers cost more than a small model does. The rest of the API is the framework's.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import NamedTuple

from starlette.routing import Route, compile_path
from starlette.types import ASGIApp, Receive, Scope, Send

from firstline_core.clock import Clock
from firstline_core.errors import FirstlineError, LinkDownError, QueueFullError, RequestError
from firstline_core.file_route import FileRoute, wants_picture
from firstline_core.protocol.asgi import ClientDisconnectedError, Request, send_reply
from firstline_core.protocol.http import BodyBudget, BodyShare, Reply, error_reply, read_infer_request, response_reply
from firstline_core.protocol.oip import Origin
from firstline_core.protocol.parameters import VIEW
from firstline_core.telemetry import logs
from firstline_core.telemetry.metrics import RequestMetrics
from firstline_gateway.api import persons
from firstline_gateway.api.auth import Caller, authorize
from firstline_gateway.api.errors import shutting_down, unexpected_failure
from firstline_gateway.api.jobs import is_asynchronous, submit
from firstline_gateway.api.overload import OverloadGuard, client_key, overloaded
from firstline_gateway.identity.identity import IdentityService
from firstline_gateway.jobs.jobs import Jobs
from firstline_gateway.serving.data_plane import GatewayDataPlane
from firstline_gateway.telemetry.journal import record

_CLIENT_CLOSED_REQUEST = 499  # the client has left and does not read it; nginx uses the same status
# Longer paths than these name no model; clients without a key must not fill the memory with them.
_PATHS_REMEMBERED, _REMEMBERED_CHARACTERS = 4096, 256


class RouteMatch(NamedTuple):
    """The endpoint and model that a request for inference names; `version` is "" for the current one."""

    endpoint: Endpoint
    model: str
    version: str


@dataclass(eq=False, slots=True)
class InferenceApp:
    """Answers requests for inference, and hands all others to the control plane.

    Args:
        control_plane: the framework's application.
        plane: answers requests.
        files: the route of inference by file.
        jobs: takes those whose caller does not wait.
        identity: authenticates callers.
        overload: refuses requests that are not read.
        bodies: limits the bytes of bodies in memory.
        metrics: counts the outcomes.
        clock: measures durations.
    """

    control_plane: ASGIApp
    plane: GatewayDataPlane
    files: FileRoute
    jobs: Jobs
    identity: IdentityService
    overload: OverloadGuard
    bodies: BodyBudget
    metrics: RequestMetrics
    clock: Clock

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        route = match_route(scope["path"]) if scope["type"] == "http" and scope["method"] == "POST" else None
        if route is None:
            await self.control_plane(scope, receive, send)
            return
        started_s = self.clock.monotonic_s()
        request = Request(scope, receive)
        client = partial(self._client_key, request)
        if self.overload.refuses(client, started_s):
            await send_reply(error_reply(overloaded()), send)
            return
        error: FirstlineError | None = None
        principal, is_recorded = "", True
        if request.trace is not None:
            logs.FACTS.set(request.trace.facts)  # until there is an inference request, which says more
        try:
            request.info.cancel_on_disconnect()
            # Before the body is read: unauthenticated clients must not make the gateway hold megabytes.
            caller = await authorize(self.identity, request, "infer")
            principal = caller.principal
            persons.check_none(request.headers)
            with BodyShare(self.bodies, principal) as share:
                body = await request.body(self.plane.limits, share)
                body = await share.decompressed(request.headers, body, self.plane.limits)
                reply = await route.endpoint(self, request, route, caller, body)
        except (ClientDisconnectedError, asyncio.CancelledError) as ended:
            is_recorded = request.info.disconnected or isinstance(ended, ClientDisconnectedError)  # or the server stops
            error = LinkDownError("The client closed the connection before it was answered.")
            reply = Reply(_CLIENT_CLOSED_REQUEST, {}, b"") if is_recorded else shutting_down()
        except FirstlineError as refused:
            # Its traceback leads to this frame: only the garbage collector would free both, and the body.
            error, reply = refused.with_traceback(None), self._refusal(refused, client)
        except Exception as failure:  # noqa: BLE001 (the outermost loop of a request)
            reply, is_recorded = unexpected_failure(failure, request.path, self.metrics.count_error), False
        if self.plane.draining:
            reply.headers["Connection"] = "close"  # so that the client's next request goes to another replica
        seconds = self.clock.monotonic_s() - started_s
        try:
            await send_reply(reply, send)
        except asyncio.CancelledError:
            if not request.info.disconnected:
                raise
            # The client left while its answer was sent.
        finally:
            self.overload.ended()
            if is_recorded:  # after the answer, which does not wait for the log
                record(
                    self.metrics, transport="http", model=route.model, principal=principal, seconds=seconds, error=error
                )

    def _client_key(self, request: Request) -> int:
        address = request.peer[0] if request.peer is not None else ""
        return client_key(self.identity, address, request.info.peer, request.headers)

    def _refusal(self, error: FirstlineError, client: Callable[[], int]) -> Reply:
        if isinstance(error, QueueFullError):
            self.overload.queue_full(client(), self.clock.monotonic_s())
        reply = error_reply(error)
        if not self.plane.ready():
            reply.headers["Connection"] = "close"
        return reply

    async def v2(self, received: Request, route: RouteMatch, caller: Caller, body: bytes) -> Reply:
        """`POST /v2/models/{model}[/versions/{version}]/infer`."""
        arrived_s, limits = received.info.arrived_s, self.plane.limits
        origin = Origin(arrived_s, caller.principal, caller.trust_request_id, limits, received.trace)
        request = await read_infer_request(route.model, route.version, received.headers, body, origin)
        if "prefer" in received.headers and is_asynchronous(received.headers):
            return await submit(self.plane, self.jobs, request)
        return response_reply(self.plane, request, await self.plane.infer(request))

    async def file(self, request: Request, route: RouteMatch, caller: Caller, body: bytes) -> Reply:
        """`POST /firstline/v1/models/{model}/infer`."""
        metadata = self.plane.metadata(route.model, "")
        inference = await self.files.read(route.model, metadata, request, body, caller.principal)
        if not ("prefer" in request.headers and is_asynchronous(request.headers)):
            return await self.files.answer(inference, request)
        if not request.query.keys().isdisjoint(VIEW) or wants_picture(request.headers):
            raise RequestError(
                f"A job stores the whole answer: send {', '.join(VIEW)} when you fetch it, and draw it yourself."
            )
        return await submit(self.plane, self.jobs, inference)


Endpoint = Callable[[InferenceApp, Request, RouteMatch, Caller, bytes], Awaitable[Reply]]


def infer_routes() -> list[Route]:
    """Returns the framework's routes for inference, which only describe what `InferenceApp` answers."""
    return [Route(path, _never, methods=["POST"]) for path in _ENDPOINTS]


async def _never(_scope: Scope, _receive: Receive, _send: Send) -> None:
    """Describes a path in the route table. `InferenceApp` answers it before the framework sees it."""
    raise AssertionError("InferenceApp did not answer an inference request.")


_ENDPOINTS: dict[str, Endpoint] = {
    "/v2/models/{model}/infer": InferenceApp.v2,
    "/v2/models/{model}/versions/{version}/infer": InferenceApp.v2,
    "/firstline/v1/models/{model}/infer": InferenceApp.file,
}
_PATTERNS = [(compile_path(path)[0], endpoint) for path, endpoint in _ENDPOINTS.items()]


def match_route(path: str) -> RouteMatch | None:
    """Returns the endpoint and model of a POST to an unquoted path; None if it does not ask for inference."""
    return _route_of(path) if len(path) <= _REMEMBERED_CHARACTERS else _route_of.__wrapped__(path)


@lru_cache(_PATHS_REMEMBERED)
def _route_of(path: str) -> RouteMatch | None:
    for pattern, endpoint in _PATTERNS:
        if found := pattern.match(path):
            return RouteMatch(endpoint, found["model"], found.groupdict().get("version", ""))
    return None
