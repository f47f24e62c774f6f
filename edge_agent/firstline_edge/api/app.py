"""The HTTP surface: thin handlers that carry `http.Reply` values to and from Starlette. No meaning lives here.

Answers in words, by id and as events are in `answers.py`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route

from firstline_core.errors import FirstlineError
from firstline_core.protocol import extensions, http, http_body
from firstline_core.protocol.http import Reply
from firstline_core.protocol.limits import Limits
from firstline_core.telemetry.logs import logger
from firstline_edge.agent import EdgeAgent
from firstline_edge.api import openapi
from firstline_edge.api.access import Access, check_local
from firstline_edge.api.answers import Answers
from firstline_edge.api.arrival import arrived_s
from firstline_edge.api.bodies import BodyBudget
from firstline_edge.api.purge import purge_reply
from firstline_edge.api.streams import Streams

log = logger(__name__)

# Of an order to load or unload.
_SMALL = Limits(body_bytes=65_536, json_bytes=65_536)

Handler = Callable[[Request, str], Awaitable[Reply | Response]]


def create_app(agent: EdgeAgent, access: Access) -> Starlette:
    """The agent's API.

    Args:
        agent: started.
        access: who may call; health alone is open to everyone.
    """
    api = agent.settings.api
    budget = BodyBudget(api.bodies_limit_bytes)
    streams = Streams(limit=api.streams_limit, heartbeat_s=api.stream_heartbeat_s)
    answers = Answers(agent, streams, budget)

    async def live(_request: Request) -> Response:
        return _response(http.live_reply(agent))

    async def ready(_request: Request) -> Response:
        return _response(http.ready_reply(agent))

    async def server_metadata(_request: Request, _principal: str) -> Reply:
        return http.server_metadata_reply(agent)

    async def model_ready(request: Request, _principal: str) -> Reply:
        return http.model_ready_reply(agent, *_model(request))

    async def model_metadata(request: Request, _principal: str) -> Reply:
        return http.model_metadata_reply(agent, *_model(request))

    async def model_config(request: Request, _principal: str) -> Reply:
        return http.json_reply(agent.config(*_model(request)))

    async def statistics(request: Request, _principal: str) -> Reply:
        model, version = request.path_params.get("model", ""), request.path_params.get("version", "")
        return http.json_reply(extensions.statistics_json(agent, model, version))

    async def index(request: Request, _principal: str) -> Reply:
        with budget.share() as counted:
            body = await http_body.read_body(counted(request.stream()), request.headers, agent.limits)
        return extensions.index_reply(agent, body, agent.limits)

    async def load(request: Request, _principal: str) -> Reply:
        check_local(request.client)
        body = await http_body.read_body(request.stream(), request.headers, _SMALL)
        return await extensions.load_reply(agent, request.path_params["model"], body, _SMALL)

    async def unload(request: Request, _principal: str) -> Reply:
        check_local(request.client)
        body = await http_body.read_body(request.stream(), request.headers, _SMALL)
        return await extensions.unload_reply(agent, request.path_params["model"], body, _SMALL)

    async def infer(request: Request, principal: str) -> Reply:
        came_s = arrived_s(request)
        with budget.share() as counted:
            body = await http_body.read_body(counted(request.stream()), request.headers, agent.limits)
            return await http.infer_reply(
                agent, *_model(request), request.headers, body, principal=principal, arrived_s=came_s
            )

    async def status(_request: Request, _principal: str) -> Reply:
        return http.json_reply(agent.status())

    async def described(_request: Request, _principal: str) -> Reply:
        return http.json_reply(openapi.description())

    async def purge(request: Request, _principal: str) -> Reply:
        return await purge_reply(agent, request)

    async def metrics(_request: Request, _principal: str) -> Reply:
        text, content_type = agent.exposition()
        return Reply(200, {http.CONTENT_TYPE: content_type}, text)

    def guarded(handler: Handler) -> Callable[[Request], Awaitable[Response]]:
        """Lets in whom `access` knows, and turns what is raised into what is said."""

        async def endpoint(request: Request) -> Response:
            try:
                return _response(await handler(request, access.principal(request.headers)))
            except FirstlineError as error:
                return _response(http.error_reply(error))
            except ClientDisconnect:  # while it was still sending: nobody is left to read this
                return Response(status_code=400)

        return endpoint

    model_paths = ("/v2/models/{model}", "/v2/models/{model}/versions/{version}")
    app = Starlette(
        routes=[
            Route("/v2/health/live", live),
            Route("/v2/health/ready", ready),
            Route("/v2", guarded(server_metadata)),
            Route("/v2/models/stats", guarded(statistics)),
            Route("/v2/repository/index", guarded(index), methods=["POST"]),
            Route("/v2/repository/models/{model}/load", guarded(load), methods=["POST"]),
            Route("/v2/repository/models/{model}/unload", guarded(unload), methods=["POST"]),
            *(Route(path, guarded(model_metadata)) for path in model_paths),
            *(Route(f"{path}/config", guarded(model_config)) for path in model_paths),
            *(Route(f"{path}/stats", guarded(statistics)) for path in model_paths),
            *(Route(f"{path}/ready", guarded(model_ready)) for path in model_paths),
            *(Route(f"{path}/infer", guarded(infer), methods=["POST"]) for path in model_paths),
            Route("/firstline/v1/models/{model}/infer", guarded(answers.infer_file), methods=["POST"]),
            Route("/firstline/v1/answers/{request_id}", guarded(answers.answer)),
            Route("/firstline/v1/answers/{request_id}/events", guarded(answers.events)),
            Route("/firstline/v1/status", guarded(status)),
            Route("/firstline/v1/purge", guarded(purge), methods=["POST"]),
            Route("/metrics", guarded(metrics)),
            Route("/openapi.json", guarded(described)),
        ],
        exception_handlers={HTTPException: _no_such_route, Exception: _unexpected},
    )
    app.state.streams = streams
    app.state.bodies = budget
    app.router.redirect_slashes = False  # an address is there or not, as on the gateway
    return app


def _model(request: Request) -> tuple[str, str]:
    return request.path_params["model"], request.path_params.get("version", "")


def _response(reply: Reply | Response) -> Response:
    return reply if isinstance(reply, Response) else Response(reply.body, reply.status, reply.headers)


async def _no_such_route(request: Request, error: Exception) -> Response:
    status = error.status_code if isinstance(error, HTTPException) else 404
    said = "takes another method" if status == 405 else "is not an address of this agent"
    reply = http.json_reply(
        {"error": f"{request.method} {request.url.path[:200]} {said}.", "code": "invalid_request"}, status
    )
    return _response(reply)


async def _unexpected(_request: Request, error: Exception) -> Response:
    log.error("unexpected failure", exc_info=error)
    return _response(
        http.json_reply({"error": "The agent failed unexpectedly; its log says more.", "code": "internal"}, 500)
    )
