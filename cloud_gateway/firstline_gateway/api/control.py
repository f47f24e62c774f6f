"""Routes of the V2 protocol for health, metadata and the model repository; the list of models; and the metrics."""

from __future__ import annotations

from fastapi import APIRouter, Depends, Request
from starlette.responses import Response

from firstline_core.errors import ForbiddenError
from firstline_core.protocol import extensions, http, http_body
from firstline_core.protocol.enrolment import device_of_principal
from firstline_core.protocol.limits import Limits
from firstline_gateway.api.auth import authenticate, gateway_of, require_fleet, require_infer
from firstline_gateway.api.errors import response_of
from firstline_gateway.executors.base import ExecutorReport

# Bodies of requests about models.
_SMALL = Limits(body_bytes=65_536, json_bytes=65_536)


async def _reader_of_metrics(request: Request) -> None:
    gateway = gateway_of(request)
    if not gateway.settings.api.open_metrics:
        caller = await authenticate(gateway.identity, request)
        if device_of_principal(caller.principal) is not None:
            raise ForbiddenError(f"{caller.principal} may not read the metrics; an API key of any scope may.")


health = APIRouter(tags=["health"])
metadata = APIRouter(tags=["models"], dependencies=[Depends(require_infer)])
operation = APIRouter(tags=["models"], dependencies=[Depends(require_fleet)])
metrics = APIRouter(tags=["health"], dependencies=[Depends(_reader_of_metrics)])


@health.head("/v2/health/live", include_in_schema=False)
@health.get("/v2/health/live", summary="Is the process up? Needs no key.")
async def live(request: Request) -> Response:
    return response_of(http.live_reply(gateway_of(request).plane))


@health.head("/v2/health/ready", include_in_schema=False)
@health.get("/v2/health/ready", summary="Does it accept requests? 400 while it does not. Needs no key.")
async def ready(request: Request) -> Response:
    return response_of(http.ready_reply(gateway_of(request).plane))


@metrics.get(
    "/metrics",
    summary="Prometheus metrics, for an API key of any scope; for all callers if api.open_metrics is set.",
)
async def read_metrics(request: Request) -> Response:
    content, content_type = gateway_of(request).metrics.render()
    return Response(content, media_type=content_type)


@metadata.get("/v2", summary="The server's name, version and extensions.")
async def server_metadata(request: Request) -> Response:
    return response_of(http.server_metadata_reply(gateway_of(request).plane))


@metadata.get("/v2/models/stats", summary="Numbers and durations of runs of every model, in Triton's format.")
@metadata.get("/v2/models/{model}/stats", summary="Numbers and durations of runs of a model, by version.")
@metadata.get("/v2/models/{model}/versions/{version}/stats", summary="Numbers and durations of runs of a version.")
async def statistics(request: Request, model: str = "", version: str = "") -> Response:
    plane = gateway_of(request).plane
    return response_of(extensions.reply_or_refusal(lambda: extensions.statistics_json(plane, model, version)))


@metadata.get("/v2/models/{model}", summary="Inputs and outputs of the current version.")
async def model_metadata(request: Request, model: str) -> Response:
    return response_of(http.model_metadata_reply(gateway_of(request).plane, model, ""))


@metadata.get("/v2/models/{model}/versions/{version}", summary="Inputs and outputs of a version.")
async def version_metadata(request: Request, model: str, version: str) -> Response:
    return response_of(http.model_metadata_reply(gateway_of(request).plane, model, version))


@metadata.get("/v2/models/{model}/ready", summary="Would the current version answer now?")
async def model_ready(request: Request, model: str) -> Response:
    return response_of(http.model_ready_reply(gateway_of(request).plane, model, ""))


@metadata.get("/v2/models/{model}/versions/{version}/ready", summary="Would this version answer now?")
async def version_ready(request: Request, model: str, version: str) -> Response:
    return response_of(http.model_ready_reply(gateway_of(request).plane, model, version))


@metadata.get("/v2/models/{model}/config", summary="Triton's configuration of the current version.")
@metadata.get("/v2/models/{model}/versions/{version}/config", summary="Triton's configuration of a version.")
async def model_config(request: Request, model: str, version: str = "") -> Response:
    plane = gateway_of(request).plane
    return response_of(extensions.reply_or_refusal(lambda: plane.config(model, version)))


@metadata.post("/v2/repository/index", summary='Triton\'s list of models; the body is empty, or {"ready": true}.')
async def repository_index(request: Request) -> Response:
    gateway = gateway_of(request)
    body = await http_body.read_body(http_body.in_time(request.stream()), request.headers, _SMALL)
    return response_of(extensions.index_reply(gateway.plane, body, _SMALL))


@operation.post(
    "/v2/repository/models/{model}/load",
    summary="Reload all versions of a model; if one does not load, the previous ones stay.",
)
async def load_model(request: Request, model: str) -> Response:
    gateway = gateway_of(request)
    body = await http_body.read_body(http_body.in_time(request.stream()), request.headers, _SMALL)
    return response_of(await extensions.load_reply(gateway.plane, model, body, _SMALL))


@operation.post(
    "/v2/repository/models/{model}/unload",
    summary="Unload a model, and free its memory once requests in flight are answered.",
)
async def unload_model(request: Request, model: str) -> Response:
    gateway = gateway_of(request)
    body = await http_body.read_body(http_body.in_time(request.stream()), request.headers, _SMALL)
    return response_of(await extensions.unload_reply(gateway.plane, model, body, _SMALL))


@metadata.get("/firstline/v1/models", summary="The models served: versions, labels and full model digests.")
async def list_models(request: Request) -> Response:
    repository = gateway_of(request).repository
    return response_of(
        http.json_reply(
            {
                "models": [
                    {
                        "name": served.key.name,
                        "version": str(served.key.version),
                        "current": served.key.version == repository.versions(served.key.name)[-1],
                        "full_model_digest": served.digest,
                        "labels": served.manifest.labels,
                    }
                    for served in repository
                ]
            }
        )
    )


@operation.get(
    "/firstline/v1/executors",
    tags=["executors"],
    summary="The executors, if there are several: their state, shares and speeds.",
)
async def list_executors(request: Request) -> Response:
    return response_of(http.json_reply({"executors": [_executor(each) for each in gateway_of(request).executors]}))


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


@operation.get(
    "/firstline/v1/store", tags=["store"], summary="The database, and the reason if it accepts no writes at the moment."
)
async def read_store(request: Request) -> Response:
    gateway = gateway_of(request)
    problem = gateway.writer.trouble
    return response_of(http.json_reply({"database": gateway.database.shown, "up": not problem, "problem": problem}))
