"""Routes of the V2 protocol for health, metadata and the model repository; the list of models; and the metrics."""

from __future__ import annotations

from fastapi import APIRouter, Depends, Request
from starlette.responses import Response

from firstline_core.protocol import extensions, http
from firstline_core.protocol.limits import Limits
from firstline_gateway.api.auth import GatewayDep, require_fleet, require_infer, require_metrics_reader
from firstline_gateway.api.messages import json_response, read_body, response_of
from firstline_gateway.executors.base import ExecutorReport

# Bodies of requests about models.
_SMALL = Limits(body_bytes=65_536, json_bytes=65_536)


health = APIRouter(tags=["health"])
metadata = APIRouter(tags=["models"], dependencies=[Depends(require_infer)])
operation = APIRouter(tags=["models"], dependencies=[Depends(require_fleet)])
metrics = APIRouter(tags=["health"], dependencies=[Depends(require_metrics_reader)])


@health.head("/v2/health/live", include_in_schema=False)
@health.get("/v2/health/live")
async def live(gateway: GatewayDep) -> Response:
    """Is the process up? Needs no key."""
    return response_of(http.live_reply(gateway.plane))


@health.head("/v2/health/ready", include_in_schema=False)
@health.get("/v2/health/ready")
async def ready(gateway: GatewayDep) -> Response:
    """Does it accept requests? 400 while it does not. Needs no key."""
    return response_of(http.ready_reply(gateway.plane))


@metrics.get("/metrics")
async def read_metrics(gateway: GatewayDep) -> Response:
    """Prometheus metrics, for an API key of any scope; for all callers if api.open_metrics is set."""
    content, content_type = gateway.metrics.render()
    return Response(content, media_type=content_type)


@metadata.get("/v2")
async def server_metadata(gateway: GatewayDep) -> Response:
    """The server's name, version and extensions."""
    return response_of(http.server_metadata_reply(gateway.plane))


@metadata.get("/v2/models/stats")
@metadata.get("/v2/models/{model}/stats")
@metadata.get("/v2/models/{model}/versions/{version}/stats")
async def statistics(gateway: GatewayDep, model: str = "", version: str = "") -> Response:
    """Numbers and durations of runs by model and version, in Triton's format."""
    return json_response(extensions.statistics_json(gateway.plane, model, version))


@metadata.get("/v2/models/{model}")
@metadata.get("/v2/models/{model}/versions/{version}")
async def model_metadata(gateway: GatewayDep, model: str, version: str = "") -> Response:
    """Inputs and outputs of a version; of the current one if none is named."""
    return response_of(http.model_metadata_reply(gateway.plane, model, version))


@metadata.get("/v2/models/{model}/ready")
@metadata.get("/v2/models/{model}/versions/{version}/ready")
async def model_ready(gateway: GatewayDep, model: str, version: str = "") -> Response:
    """Would this version answer now? The current one if none is named."""
    return response_of(http.model_ready_reply(gateway.plane, model, version))


@metadata.get("/v2/models/{model}/config")
@metadata.get("/v2/models/{model}/versions/{version}/config")
async def model_config(gateway: GatewayDep, model: str, version: str = "") -> Response:
    """Triton's configuration of a version; of the current one if none is named."""
    return json_response(gateway.plane.config(model, version))


@metadata.post("/v2/repository/index")
async def repository_index(request: Request, gateway: GatewayDep) -> Response:
    """Triton's list of models; the body is empty, or {"ready": true}."""
    return response_of(extensions.index_reply(gateway.plane, await read_body(request, _SMALL), _SMALL))


@operation.post("/v2/repository/models/{model}/load")
async def load_model(request: Request, gateway: GatewayDep, model: str) -> Response:
    """Reload all versions of a model; if one does not load, the previous ones stay."""
    return response_of(await extensions.load_reply(gateway.plane, model, await read_body(request, _SMALL), _SMALL))


@operation.post("/v2/repository/models/{model}/unload")
async def unload_model(request: Request, gateway: GatewayDep, model: str) -> Response:
    """Unload a model, and free its memory once requests in flight are answered."""
    return response_of(await extensions.unload_reply(gateway.plane, model, await read_body(request, _SMALL), _SMALL))


@metadata.get("/firstline/v1/models")
async def list_models(gateway: GatewayDep) -> Response:
    """The models served: versions, labels and full model digests."""
    repository = gateway.repository
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


@operation.get("/firstline/v1/executors", tags=["executors"])
async def list_executors(gateway: GatewayDep) -> Response:
    """The executors, if there are several: their state, shares and speeds."""
    return json_response({"executors": [_executor(each) for each in gateway.executors]})


def _executor(found: ExecutorReport) -> dict[str, object]:
    return {
        "name": found.name,
        "up": not found.problem,
        "problem": found.problem,
        "slots": found.slots,
        "under_way": found.under_way,
        "batches": dict(found.batches),
        "paces": [
            {
                "model": key.name,
                "version": str(key.version),
                "pace": round(each.pace, 3),
                "oldest_s": round(each.oldest_s, 3),
                "problem": each.problem,
                "mind": each.mind,
            }
            for key, each in sorted(found.models.items())
        ],
        "energy_j": round(found.energy_j, 3),
        "energy_sources": sorted(found.energy_sources),
    }


@operation.get("/firstline/v1/store", tags=["store"])
async def read_store(gateway: GatewayDep) -> Response:
    """The database, and the reason if it accepts no writes at the moment."""
    problem = gateway.writer.trouble
    return json_response({"database": gateway.database.shown, "up": not problem, "problem": problem})
