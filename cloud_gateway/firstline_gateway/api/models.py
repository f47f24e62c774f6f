"""Routes of the V2 protocol for health, metadata and the model repository; and the list of models."""

from __future__ import annotations

from fastapi import APIRouter, Depends, Request
from starlette.responses import Response

from firstline_core.protocol import extensions, http
from firstline_core.protocol.openapi import INDEX_BODY, LOADING_BODY
from firstline_gateway.api.auth import Access
from firstline_gateway.api.messages import json_response, read_body, response_of
from firstline_gateway.models.repository import Repository
from firstline_gateway.serving.data_plane import GatewayDataPlane


def health_routes(plane: GatewayDataPlane) -> APIRouter:
    """Returns the routes that need no key."""
    router = APIRouter(tags=["health"])

    @router.head("/v2/health/live", include_in_schema=False)
    @router.get("/v2/health/live")
    async def live() -> Response:
        """Is the process up? Needs no key."""
        return response_of(http.live_reply(plane))

    @router.head("/v2/health/ready", include_in_schema=False)
    @router.get("/v2/health/ready")
    async def ready() -> Response:
        """Does it accept requests? 400 while it does not. Needs no key."""
        return response_of(http.ready_reply(plane))

    return router


def metadata_routes(plane: GatewayDataPlane, repository: Repository, access: Access) -> APIRouter:
    """Returns the routes that describe the server and its models."""
    router = APIRouter(tags=["models"], dependencies=[Depends(access.scope("infer"))])

    @router.get("/v2")
    async def server_metadata() -> Response:
        """The server's name, version and extensions."""
        return json_response(http.server_metadata_json(plane))

    @router.get("/v2/models/stats")
    @router.get("/v2/models/{model}/stats")
    @router.get("/v2/models/{model}/versions/{version}/stats")
    async def statistics(model: str = "", version: str = "") -> Response:
        """Numbers and durations of runs by model and version, in Triton's format."""
        return json_response(extensions.statistics_json(plane, model, version))

    @router.get("/v2/models/{model}")
    @router.get("/v2/models/{model}/versions/{version}")
    async def model_metadata(model: str, version: str = "") -> Response:
        """Inputs and outputs of a version; of the current one if none is named."""
        return response_of(http.model_metadata_reply(plane, model, version))

    @router.get("/v2/models/{model}/ready")
    @router.get("/v2/models/{model}/versions/{version}/ready")
    async def model_ready(model: str, version: str = "") -> Response:
        """Would this version answer now? The current one if none is named."""
        return response_of(http.model_ready_reply(plane, model, version))

    @router.get("/v2/models/{model}/config")
    @router.get("/v2/models/{model}/versions/{version}/config")
    async def model_config(model: str, version: str = "") -> Response:
        """Triton's configuration of a version; of the current one if none is named."""
        return json_response(plane.config(model, version))

    @router.post(extensions.INDEX_PATH, openapi_extra={"requestBody": {"content": INDEX_BODY}})
    async def repository_index(request: Request) -> Response:
        """Triton's list of models; the body is empty, or {"ready": true}."""
        return response_of(extensions.index_reply(plane, await read_body(request, extensions.REPOSITORY_LIMITS)))

    @router.get("/firstline/v1/models")
    async def list_models() -> Response:
        """The models served: versions, labels and full model digests."""
        models = [
            {
                "name": served.key.name,
                "version": str(served.key.version),
                "current": served.key.version == repository.versions(served.key.name)[-1],
                "full_model_digest": served.digest,
                "labels": served.manifest.labels,
            }
            for served in repository
        ]
        return json_response({"models": models})

    return router


def repository_routes(plane: GatewayDataPlane, access: Access) -> APIRouter:
    """Returns the routes with which operators load and unload models."""
    router = APIRouter(tags=["models"], dependencies=[Depends(access.scope("fleet"))])

    @router.post("/v2/repository/models/{model}/load", openapi_extra={"requestBody": {"content": LOADING_BODY}})
    async def load_model(request: Request, model: str) -> Response:
        """Reload all versions of a model; if one does not load, the previous ones stay."""
        body = await read_body(request, extensions.REPOSITORY_LIMITS)
        return response_of(await extensions.load_reply(plane, model, body))

    @router.post("/v2/repository/models/{model}/unload", openapi_extra={"requestBody": {"content": LOADING_BODY}})
    async def unload_model(request: Request, model: str) -> Response:
        """Unload a model, and free its memory once requests in flight are answered."""
        body = await read_body(request, extensions.REPOSITORY_LIMITS)
        return response_of(await extensions.unload_reply(plane, model, body))

    return router
