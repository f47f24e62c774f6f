"""The HTTP API of the agent, a plain ASGI application: routes, authentication, and handlers from requests to replies.

Parameters of a route are whole, unquoted parts of the path. The handlers for inference by file, answers by id and event
streams are in `answers.py`.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

from firstline_core.errors import FirstlineError, NotReadyError, RequestError
from firstline_core.file_route import FileRoute
from firstline_core.protocol import extensions, http
from firstline_core.protocol.asgi import (
    ClientDisconnectedError,
    Receive,
    Request,
    Scope,
    Send,
    Streamed,
    send_reply,
    send_stream,
)
from firstline_core.protocol.http import BodyBudget, Reply
from firstline_core.protocol.limits import Limits
from firstline_core.protocol.oip import Origin
from firstline_core.telemetry.logs import logger
from firstline_edge.api import openapi
from firstline_edge.api.access import Access, check_local
from firstline_edge.api.answers import Answers
from firstline_edge.api.data_plane import EdgeDataPlane
from firstline_edge.api.erasure import purge_reply
from firstline_edge.api.operations import Operations
from firstline_edge.api.streams import Streams
from firstline_edge.outbox.outbox import Outbox

Handler = Callable[[Request, str], Awaitable[Reply | Streamed]]
"""Answers a request of an authenticated principal."""

_REMEMBERED_PATHS, _REMEMBERED_CHARACTERS = 1024, 256
_SHOWN_CHARACTERS = 200


class Route(NamedTuple):
    """One endpoint.

    Args:
        path: with `{name}` for a parameter.
        handler: of its requests.
        method: GET includes HEAD.
        open_to_all: whether callers need no authentication.
    """

    path: str
    handler: Handler
    method: str = "GET"
    open_to_all: bool = False


class NoRouteError(Exception):
    """Raised when no endpoint has this path and method.

    Args:
        sentence: the reason.
        allowed: the methods of this path; empty if the path does not exist.
    """

    def __init__(self, sentence: str, allowed: Sequence[str]) -> None:
        super().__init__(sentence)
        self.sentence = sentence
        self.allowed = allowed


class RouteTable:
    """Finds routes, and remembers the latest paths.

    Args:
        routes: every endpoint.
    """

    def __init__(self, routes: Sequence[Route]) -> None:
        self._routes = [(_pattern(route.path), route) for route in routes]
        self._find_remembered = lru_cache(_REMEMBERED_PATHS)(self._find)

    def find(self, method: str, path: str) -> tuple[Route, Mapping[str, str]]:
        """Returns the endpoint of a request, and the parameters of its path by name.

        Args:
            method: of the request.
            path: unquoted.

        Raises:
            NoRouteError: there is none.
        """
        return (self._find if len(path) > _REMEMBERED_CHARACTERS else self._find_remembered)(method, path)

    def _find(self, method: str, path: str) -> tuple[Route, Mapping[str, str]]:
        wanted = "GET" if method == "HEAD" else method
        allowed: list[str] = []
        for pattern, route in self._routes:
            if (match := pattern.fullmatch(path)) is not None:
                if route.method == wanted:
                    return route, match.groupdict()
                allowed += ("GET", "HEAD") if route.method == "GET" else (route.method,)
        place = path[:_SHOWN_CHARACTERS]
        if allowed:
            raise NoRouteError(f"{place} does not take {method}; use {' or '.join(allowed)}.", allowed)
        raise NoRouteError(f"There is no endpoint {place}; GET /openapi.json lists the endpoints.", allowed)


def _pattern(path: str) -> re.Pattern[str]:
    return re.compile(re.sub(r"\\{(\w+)\\}", r"(?P<\1>[^/]+)", re.escape(path)))


# Bodies of requests to load or unload a model.
_SMALL = Limits(body_bytes=65_536, json_bytes=65_536)

log = logger(__name__)


class App:
    """The ASGI application.

    Args:
        plane: answers requests; already started.
        files: the route of inference by file.
        outbox: has the answers that were promised a correction.
        operations: for operators.
        access: authenticates callers; only the health endpoints are open to all.

    Attributes:
        routes: every endpoint.
        streams: the open event streams.
        bodies: budget of memory for request bodies.
        cors_origins: origins of web pages that may call.
    """

    def __init__(
        self,
        plane: EdgeDataPlane,
        files: FileRoute,
        outbox: Outbox,
        operations: Operations,
        access: Access,
    ) -> None:
        api = plane.settings.api
        self.cors_origins = api.cors_origins
        self.bodies = BodyBudget(api.bodies_limit_bytes)
        self.streams = Streams(limit=api.streams_limit, heartbeat_s=api.stream_heartbeat_s)
        self.routes = _routes(
            _Handlers(plane, operations, self.bodies), Answers(plane, files, outbox, self.streams, self.bodies)
        )
        self._route_table = RouteTable(self.routes)
        self._access = access

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answers one request; failures are answered in JSON too."""
        request = Request(scope, receive)
        try:
            reply = await self._reply(request)
        except ClientDisconnectedError:
            return  # no client is left to read an answer
        if isinstance(reply, Streamed):
            try:
                await send_stream(reply, request, send)
            except asyncio.CancelledError:
                if not request.info.disconnected:
                    raise
        else:
            await send_reply(reply, send)

    async def _reply(self, request: Request) -> Reply | Streamed:
        try:
            route, request.parameters = self._route_table.find(request.method, request.path)
            principal = "" if route.open_to_all else self._access.principal(request.headers)
            return await route.handler(request, principal)
        except NoRouteError as error:
            return _no_route(error)
        except FirstlineError as error:
            return http.error_reply(_logged(error))
        except ClientDisconnectedError:
            raise
        except asyncio.CancelledError:  # the server stops, and cancels what takes longer
            return http.error_reply(NotReadyError("This server is shutting down; send the request again."))
        except Exception as error:  # the outermost loop of a request
            described = FirstlineError("This server failed unexpectedly; its log says more.")
            log.error("unexpected failure", exc_info=error, request_id=described.identify())
            return http.error_reply(described)


def _no_route(error: NoRouteError) -> Reply:
    headers = {http.CONTENT_TYPE: http.JSON_TYPE}
    if error.allowed:  # RFC 9110, section 15.5.6
        headers["Allow"] = ", ".join(error.allowed)
    return Reply(405 if error.allowed else 404, headers, http.error_body(_logged(RequestError(error.sentence))))


def _logged(error: FirstlineError) -> FirstlineError:
    """Logs a refusal under an id, unless the data plane has recorded it."""
    if not error.request_id:
        log.info("request refused", request_id=error.identify(), code=error.code, error=error.message)
    return error


@dataclass(eq=False)
class _Handlers:
    """The handlers of the V2 protocol, of its extensions, and of the endpoints for operators."""

    plane: EdgeDataPlane
    operations: Operations
    bodies: BodyBudget

    async def live(self, _request: Request, _principal: str) -> Reply:
        return http.live_reply(self.plane)

    async def ready(self, _request: Request, _principal: str) -> Reply:
        return http.ready_reply(self.plane)

    async def server_metadata(self, _request: Request, _principal: str) -> Reply:
        return http.server_metadata_reply(self.plane)

    async def model_ready(self, request: Request, _principal: str) -> Reply:
        return http.model_ready_reply(self.plane, *_model(request))

    async def model_metadata(self, request: Request, _principal: str) -> Reply:
        return http.model_metadata_reply(self.plane, *_model(request))

    async def model_config(self, request: Request, _principal: str) -> Reply:
        return http.json_reply(self.plane.config(*_model(request)))

    async def statistics(self, request: Request, _principal: str) -> Reply:
        return http.json_reply(extensions.statistics_json(self.plane, *_model(request)))

    async def index(self, request: Request, principal: str) -> Reply:
        with self.bodies.share(principal) as reserve:
            body = await request.body(self.plane.limits, reserve)
        return extensions.index_reply(self.plane, body, self.plane.limits)

    async def load(self, request: Request, _principal: str) -> Reply:
        check_local(request.peer)
        body = await request.body(_SMALL)
        return await extensions.load_reply(self.plane, request.parameters["model"], body, _SMALL)

    async def unload(self, request: Request, _principal: str) -> Reply:
        check_local(request.peer)
        body = await request.body(_SMALL)
        return await extensions.unload_reply(self.plane, request.parameters["model"], body, _SMALL)

    async def infer(self, request: Request, principal: str) -> Reply:
        plane = self.plane
        with self.bodies.share(principal) as reserve:
            body = await request.body(plane.limits, reserve)
            origin = Origin(request.info.arrived_s, principal, limits=plane.limits, trace=request.trace)
            inference = await http.read_infer_request(*_model(request), request.headers, body, origin)
            return http.response_reply(plane, inference, await plane.infer(inference))

    async def roll_back(self, request: Request, _principal: str) -> Reply:
        check_local(request.peer)
        await self.operations.roll_back(request.parameters["model"])
        return http.json_reply({"rolled_back": request.parameters["model"]})

    async def roll_back_configuration(self, request: Request, _principal: str) -> Reply:
        check_local(request.peer)
        await self.operations.roll_back_configuration()
        return http.json_reply({"rolled_back": "configuration"})

    async def status(self, _request: Request, _principal: str) -> Reply:
        return http.json_reply(self.operations.status())

    async def description(self, _request: Request, _principal: str) -> Reply:
        return http.json_reply(openapi.description())

    async def purge(self, request: Request, _principal: str) -> Reply:
        return await purge_reply(self.operations.erasure, request)

    async def metrics(self, request: Request, _principal: str) -> Reply:
        text, content_type = self.operations.exposition(request.headers.get("accept", ""))
        return Reply(200, {http.CONTENT_TYPE: content_type}, text)


def _model(request: Request) -> tuple[str, str]:
    return request.parameters.get("model", ""), request.parameters.get("version", "")


def _routes(handlers: _Handlers, answers: Answers) -> tuple[Route, ...]:
    model_paths = ("/v2/models/{model}", "/v2/models/{model}/versions/{version}")
    return (
        *(Route(f"{path}/infer", handlers.infer, "POST") for path in model_paths),
        Route("/firstline/v1/models/{model}/infer", answers.infer_file, "POST"),
        Route("/v2/health/live", handlers.live, open_to_all=True),
        Route("/v2/health/ready", handlers.ready, open_to_all=True),
        Route("/v2", handlers.server_metadata),
        Route("/v2/models/stats", handlers.statistics),
        Route("/v2/repository/index", handlers.index, "POST"),
        Route("/v2/repository/models/{model}/load", handlers.load, "POST"),
        Route("/v2/repository/models/{model}/unload", handlers.unload, "POST"),
        *(Route(path, handlers.model_metadata) for path in model_paths),
        *(Route(f"{path}/config", handlers.model_config) for path in model_paths),
        *(Route(f"{path}/stats", handlers.statistics) for path in model_paths),
        *(Route(f"{path}/ready", handlers.model_ready) for path in model_paths),
        Route("/firstline/v1/answers/{request_id}", answers.answer),
        Route("/firstline/v1/answers/{request_id}/events", answers.events),
        Route("/firstline/v1/status", handlers.status),
        Route("/firstline/v1/updates/{model}/rollback", handlers.roll_back, "POST"),
        Route("/firstline/v1/configuration/rollback", handlers.roll_back_configuration, "POST"),
        Route("/firstline/v1/purge", handlers.purge, "POST"),
        Route("/metrics", handlers.metrics),
        Route("/openapi.json", handlers.description),
    )
