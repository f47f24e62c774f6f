"""The HTTP API of the agent, a plain ASGI application: routes, authentication, and handlers from requests to replies.

Parameters of a route are whole, unquoted parts of the path.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Any, NamedTuple

from firstline_core.errors import FirstlineError, NotReadyError, RequestError
from firstline_core.file_route import FileRoute, image_of, wants_picture
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
from firstline_core.protocol.http import BodyBudget, Reply, last_event_id
from firstline_core.protocol.oip import Origin, encode_response
from firstline_core.protocol.openapi import MODEL, VERSION, completed, v2_infer
from firstline_core.protocol.parameters import VIEW, check_query
from firstline_core.protocol.tensors import shown
from firstline_core.telemetry.logs import logger
from firstline_core.types import InferRequest, InferResponse
from firstline_edge.api import openapi
from firstline_edge.api.access import Access, check_local
from firstline_edge.api.data_plane import EdgeDataPlane
from firstline_edge.api.openapi import get
from firstline_edge.api.operations import Operations
from firstline_edge.api.streams import Render, Streams, wants_events
from firstline_edge.outbox.outbox import Outbox
from firstline_edge.telemetry.version import VERSION as AGENT_VERSION

_SHOWN_CHARACTERS = 200

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
        streams: the open event streams.
        bodies: budget of memory for request bodies.
        cors_origins: origins of web pages that may call.
    """

    def __init__(
        self, plane: EdgeDataPlane, files: FileRoute, outbox: Outbox, operations: Operations, access: Access
    ) -> None:
        api = plane.settings.api
        self.plane = plane
        self.files = files
        self.outbox = outbox
        self.operations = operations
        self.cors_origins = api.cors_origins
        self.bodies = BodyBudget(api.bodies_limit_bytes)
        self.streams = Streams(outbox.waiters, limit=api.streams_limit, heartbeat_s=api.stream_heartbeat_s)
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
            found = find_route(request.method, request.path)
            if isinstance(found, Reply):
                return found
            route, request.parameters = found
            principal = "" if route.open_to_all else self._access.principal(request.headers)
            return await route.handler(self, request, principal)
        except FirstlineError as error:
            # Its traceback leads to this frame: only the garbage collector would free both, and the body.
            return http.error_reply(_logged(error.with_traceback(None)))
        except ClientDisconnectedError:
            raise
        except asyncio.CancelledError:  # the server stops, and cancels what takes longer
            return http.error_reply(NotReadyError("This server is shutting down; send the request again."))
        except Exception as error:  # the outermost loop of a request
            described = FirstlineError("This server failed unexpectedly; its log says more.")
            log.error("unexpected failure", exc_info=error, request_id=described.identify())
            return http.error_reply(described)

    async def live(self, _request: Request, _principal: str) -> Reply:
        return http.live_reply(self.plane)

    async def ready(self, _request: Request, _principal: str) -> Reply:
        return http.ready_reply(self.plane)

    async def server_metadata(self, _request: Request, _principal: str) -> Reply:
        return http.json_reply(http.server_metadata_json(self.plane))

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
            body = await request.body(extensions.REPOSITORY_LIMITS, reserve)
        return extensions.index_reply(self.plane, body)

    async def load(self, request: Request, _principal: str) -> Reply:
        check_local(request.peer)
        body = await request.body(extensions.REPOSITORY_LIMITS)
        return await extensions.load_reply(self.plane, request.parameters["model"], body)

    async def unload(self, request: Request, _principal: str) -> Reply:
        check_local(request.peer)
        body = await request.body(extensions.REPOSITORY_LIMITS)
        return await extensions.unload_reply(self.plane, request.parameters["model"], body)

    async def infer(self, request: Request, principal: str) -> Reply:
        plane = self.plane
        with self.bodies.share(principal) as share:
            body = await request.body(plane.limits, share)
            body = await share.decompressed(request.headers, body, plane.limits)
            origin = Origin(request.info.arrived_s, principal, limits=plane.limits, trace=request.trace)
            inference = await http.read_infer_request(*_model(request), request.headers, body, origin)
            return http.response_reply(plane, inference, await plane.infer(inference))

    async def roll_back(self, request: Request, _principal: str) -> Reply:
        """Rolls back the model that the path names, or the configuration."""
        check_local(request.peer)
        model = request.parameters.get("model")
        await self.operations.roll_back(model)
        return http.json_reply({"rolled_back": model or "configuration"})

    async def status(self, _request: Request, _principal: str) -> Reply:
        return http.json_reply(self.operations.status())

    async def describe(self, _request: Request, _principal: str) -> Reply:
        return http.json_reply(description())

    async def metrics(self, request: Request, _principal: str) -> Reply:
        text, content_type = self.operations.exposition(request.headers.get("accept", ""))
        return Reply(200, {http.CONTENT_TYPE: content_type}, text)

    async def infer_file(self, request: Request, principal: str) -> Reply | Streamed:
        """Runs inference by file; a caller that accepts an event stream receives every answer to its request in it."""
        plane, model = self.plane, request.parameters["model"]
        with contextlib.ExitStack() as resources:
            with self.bodies.share(principal) as share:
                body = await request.body(plane.limits, share)
                body = await share.decompressed(request.headers, body, plane.limits)
                inference = await self.files.read(model, plane.short_metadata(model), request, body, principal)
                if wants_picture(request.headers) or not wants_events(request.headers):
                    return await self.files.answer(inference, request)
                # Not before the body was read: a slow sender must not take a stream from other callers.
                images = image_of(inference.inputs)
                render = partial(self.files.json, query=request.query, images=images)
                allowed = partial(self._is_allowed, request, principal)
                stream = resources.enter_context(self.streams.opened(render, inference.request_id, is_allowed=allowed))
                response = await plane.infer(inference)
            return stream.response(response, resources)

    async def answer(self, request: Request, principal: str) -> Reply:
        """Returns the latest answer under an id."""
        render = self._renderer(request)
        return render(await self.outbox.answer(request.parameters["request_id"], principal))

    async def events(self, request: Request, principal: str) -> Reply | Streamed:
        """Streams the present answer under an id, and the final one when it arrives."""
        request_id, seen = request.parameters["request_id"], last_event_id(request.headers)
        with contextlib.ExitStack() as resources:
            allowed = partial(self._is_allowed, request, principal)
            stream = resources.enter_context(self.streams.opened(self._renderer(request), request_id, seen, allowed))
            return stream.response(await self.outbox.answer(request_id, principal), resources)

    def _is_allowed(self, request: Request, principal: str) -> bool:
        """Returns whether the caller of a request is still accepted: its token may have been removed meanwhile."""
        try:
            return self._access.principal(request.headers) == principal
        except RequestError:
            return False

    def _renderer(self, request: Request) -> Render:
        """Returns the renderer for the form that the query asks for.

        Raises:
            RequestError: there is no such form, or see `check_query`.
        """
        check_query(request.query, ("form", *VIEW))
        form = request.query.get("form", "short")
        if form not in ("short", "v2"):
            raise RequestError(f"Query parameter 'form' is {shown(form)}; use short or v2.")

        def tensors(response: InferResponse) -> Reply:
            encoded = encode_response(InferRequest(response.model, (), request.parameters["request_id"]), response)
            return Reply(200, http.headers_for(encoded), encoded.body)

        return tensors if form == "v2" else partial(self.files.json, query=request.query)


def _model(request: Request) -> tuple[str, str]:
    return request.parameters.get("model", ""), request.parameters.get("version", "")


def _logged(error: FirstlineError) -> FirstlineError:
    """Logs a refusal under an id, unless the data plane has recorded it."""
    if not error.request_id:
        log.info("request refused", request_id=error.identify(), code=error.code, error=error.message)
    return error


class Route(NamedTuple):
    """One endpoint.

    Args:
        path: with `{name}` for a parameter.
        handler: answers its requests, of an authenticated principal.
        operation: its description in the OpenAPI document.
        method: GET includes HEAD.
        open_to_all: whether callers need no authentication.
    """

    path: str
    handler: Callable[[App, Request, str], Awaitable[Reply | Streamed]]
    operation: dict[str, Any]
    method: str = "GET"
    open_to_all: bool = False


_MODELS = (("/v2/models/{model}", (MODEL,)), ("/v2/models/{model}/versions/{version}", (MODEL, VERSION)))

ROUTES = (
    *(Route(f"{path}/infer", App.infer, v2_infer("Run the model.", *named), "POST") for path, named in _MODELS),
    Route("/firstline/v1/models/{model}/infer", App.infer_file, openapi.INFER_FILE, "POST"),
    Route("/v2/health/live", App.live, openapi.LIVE, open_to_all=True),
    Route("/v2/health/ready", App.ready, openapi.READY, open_to_all=True),
    Route("/v2", App.server_metadata, get("models", "The server's name, version and extensions.")),
    Route("/v2/models/stats", App.statistics, openapi.ALL_STATISTICS),
    Route("/v2/repository/index", App.index, openapi.INDEX, "POST"),
    Route("/v2/repository/models/{model}/load", App.load, openapi.LOAD, "POST"),
    Route("/v2/repository/models/{model}/unload", App.unload, openapi.UNLOAD, "POST"),
    *(
        Route(path + end, handler, get("models", summary, *named))
        for end, handler, summary in (
            ("", App.model_metadata, "Inputs and outputs of the model."),
            ("/config", App.model_config, "Triton's configuration of the model."),
            ("/stats", App.statistics, "Numbers and durations of runs of the model."),
            ("/ready", App.model_ready, "Would the model answer now?"),
        )
        for path, named in _MODELS
    ),
    Route("/firstline/v1/answers/{request_id}", App.answer, openapi.ANSWER),
    Route("/firstline/v1/answers/{request_id}/events", App.events, openapi.EVENTS),
    Route("/firstline/v1/status", App.status, openapi.STATUS),
    Route("/firstline/v1/updates/{model}/rollback", App.roll_back, openapi.ROLL_BACK, "POST"),
    Route("/firstline/v1/configuration/rollback", App.roll_back, openapi.ROLL_BACK_CONFIGURATION, "POST"),
    Route("/metrics", App.metrics, get("health", "Prometheus metrics.", content="text/plain")),
    Route("/openapi.json", App.describe, get("health", "This description.")),
)
_PATTERNS = [(re.compile(re.sub(r"\\{(\w+)\\}", r"(?P<\1>[^/]+)", re.escape(route.path))), route) for route in ROUTES]


def find_route(method: str, path: str) -> tuple[Route, Mapping[str, str]] | Reply:
    """Returns the endpoint of a request, and the parameters of its path by name; a refusal if there is none.

    Args:
        method: of the request.
        path: unquoted.
    """
    wanted = "GET" if method == "HEAD" else method
    allowed: list[str] = []
    for pattern, route in _PATTERNS:
        if (match := pattern.fullmatch(path)) is not None:
            if route.method == wanted:
                return route, match.groupdict()
            allowed += ("GET", "HEAD") if route.method == "GET" else (route.method,)
    place, headers = path[:_SHOWN_CHARACTERS], {http.CONTENT_TYPE: http.JSON_TYPE}
    sentence = f"There is no endpoint {place}; GET /openapi.json lists the endpoints."
    if allowed:
        headers["Allow"] = ", ".join(allowed)  # RFC 9110, section 15.5.6
        sentence = f"{place} does not take {method}; use {' or '.join(allowed)}."
    return Reply(405 if allowed else 404, headers, http.error_body(_logged(RequestError(sentence))))


def description() -> dict[str, Any]:
    """Returns the description of every endpoint."""
    paths: dict[str, dict[str, Any]] = {}
    for route in ROUTES:
        paths.setdefault(route.path, {})[route.method.lower()] = route.operation
    return completed(
        {
            "openapi": "3.1.0",
            "info": {"title": "Firstline edge agent", "version": AGENT_VERSION},
            "paths": paths,
            "components": {"securitySchemes": {"HTTPBearer": {"type": "http", "scheme": "bearer"}}},
        }
    )
