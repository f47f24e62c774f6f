"""Routes of the V2 protocol for health, metadata and the model repository; and the list of models."""

from __future__ import annotations

from fastapi import APIRouter, Depends, Request
from starlette.responses import Response

from firstline_core.protocol import extensions, http
from firstline_core.protocol.openapi import INDEX_BODY, LOADING_BODY
from firstline_gateway.api.auth import scope
from firstline_gateway.api.messages import json_response, known_parameters, read_body, response_of
from firstline_gateway.api.services import PlaneDep, RepositoryDep

# The routes that need no key.
health_router = APIRouter(tags=["health"], dependencies=[Depends(known_parameters)])
# The routes that describe the server and its models.
metadata_router = APIRouter(tags=["models"], dependencies=[Depends(scope("infer")), Depends(known_parameters)])
# The routes with which operators load and unload models.
repository_router = APIRouter(tags=["models"], dependencies=[Depends(scope("fleet")), Depends(known_parameters)])


@health_router.head("/v2/health/live", include_in_schema=False)
@health_router.get("/v2/health/live")
async def live(plane: PlaneDep) -> Response:
    """Is the process up? Needs no key."""
    return response_of(http.live_reply(plane))


@health_router.head("/v2/health/ready", include_in_schema=False)
@health_router.get("/v2/health/ready")
async def ready(plane: PlaneDep) -> Response:
    """Does it accept requests? 400 while it does not. Needs no key."""
    return response_of(http.ready_reply(plane))


@metadata_router.get("/v2")
async def server_metadata(plane: PlaneDep) -> Response:
    """The server's name, version and extensions."""
    return json_response(http.server_metadata_json(plane))


@metadata_router.get("/v2/models/stats")
@metadata_router.get("/v2/models/{model}/stats")
@metadata_router.get("/v2/models/{model}/versions/{version}/stats")
async def statistics(plane: PlaneDep, model: str = "", version: str = "") -> Response:
    """Numbers and durations of runs by model and version, in Triton's format."""
    return json_response(extensions.statistics_json(plane, model, version))


@metadata_router.get("/v2/models/{model}")
@metadata_router.get("/v2/models/{model}/versions/{version}")
async def model_metadata(plane: PlaneDep, model: str, version: str = "") -> Response:
    """Inputs and outputs of a version; of the current one if none is named."""
    return response_of(http.model_metadata_reply(plane, model, version))


@metadata_router.get("/v2/models/{model}/ready")
@metadata_router.get("/v2/models/{model}/versions/{version}/ready")
async def model_ready(plane: PlaneDep, model: str, version: str = "") -> Response:
    """Would this version answer now? The current one if none is named."""
    return response_of(http.model_ready_reply(plane, model, version))


@metadata_router.get("/v2/models/{model}/config")
@metadata_router.get("/v2/models/{model}/versions/{version}/config")
async def model_config(plane: PlaneDep, model: str, version: str = "") -> Response:
    """Triton's configuration of a version; of the current one if none is named."""
    return json_response(plane.config(model, version))


@metadata_router.post(extensions.INDEX_PATH, openapi_extra={"requestBody": {"content": INDEX_BODY}})
async def repository_index(plane: PlaneDep, request: Request) -> Response:
    """Triton's list of models; the body is empty, or {"ready": true}."""
    return response_of(extensions.index_reply(plane, await read_body(request, extensions.REPOSITORY_LIMITS)))


@metadata_router.get("/firstline/v1/models")
async def list_models(repository: RepositoryDep) -> Response:
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


@repository_router.post("/v2/repository/models/{model}/load", openapi_extra={"requestBody": {"content": LOADING_BODY}})
async def load_model(plane: PlaneDep, request: Request, model: str) -> Response:
    """Reload all versions of a model; if one does not load, the previous ones stay."""
    body = await read_body(request, extensions.REPOSITORY_LIMITS)
    return response_of(await extensions.load_reply(plane, model, body))


@repository_router.post(
    "/v2/repository/models/{model}/unload", openapi_extra={"requestBody": {"content": LOADING_BODY}}
)
async def unload_model(plane: PlaneDep, request: Request, model: str) -> Response:
    """Unload a model, and free its memory once requests in flight are answered."""
    body = await read_body(request, extensions.REPOSITORY_LIMITS)
    return response_of(await extensions.unload_reply(plane, model, body))
