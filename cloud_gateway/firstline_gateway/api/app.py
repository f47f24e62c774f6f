"""The control plane as a FastAPI application, made of the routers of this package.

The framework analyses each route once, when its module is imported; all applications of a process share the routes.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

import orjson
from fastapi import FastAPI
from starlette.requests import Request
from starlette.responses import Response

from firstline_core.protocol.http import JSON_TYPE
from firstline_core.protocol.openapi import (
    MODEL,
    PARAMETERS,
    PROBLEM,
    RETRY_AFTER,
    VERSION,
    completed,
    file_infer,
    refusals,
    request_header,
    response_header,
    v2_infer,
)
from firstline_gateway import __version__
from firstline_gateway.api import contracts, enrolment, errors, jobs, models, monitoring
from firstline_gateway.api.fleet import audit_log, devices, profiles, registry, rollouts
from firstline_gateway.api.infer import infer_routes
from firstline_gateway.api.messages import SCHEMAS
from firstline_gateway.api.services import Services

_ROUTERS = (
    models.health_router,
    models.metadata_router,
    models.repository_router,
    monitoring.metrics_router,
    monitoring.router,
    contracts.router,
    enrolment.enrolment_router,
    enrolment.router,
    jobs.router,
    registry.file_router,
    registry.router,
    devices.router,
    devices.twin_router,
    rollouts.router,
    audit_log.router,
    audit_log.sign_in_router,
    profiles.router,
    profiles.own_router,
)


def create_app(services: Services) -> FastAPI:
    """Returns the framework's application; `GET /openapi.json` describes it.

    Args:
        services: the services of the routes, which read them from the state of the application.
    """
    app = FastAPI(
        title="Firstline gateway",
        version=__version__,
        # `include_router` would analyse each route again, and match each request twice.
        routes=[*infer_routes(), *(route for router in _ROUTERS for route in router.routes)],
        redirect_slashes=False,
        # The framework's documentation pages load scripts from other hosts, and it encodes the description each time.
        openapi_url=None,
    )
    app.state.services = services
    app.state.denied_s = {}  # when `auth` noted a refusal to read, by person and path
    errors.install(app, services.metrics.count_error)
    describe(app)
    encoded = cache(lambda: orjson.dumps(app.openapi()))  # once, because strangers may read it

    async def read_description(_request: Request) -> Response:
        return Response(encoded(), media_type=JSON_TYPE)

    app.add_route("/openapi.json", read_description, include_in_schema=False)
    return app


_JOB = {
    "type": "object",
    "required": ["request_id", "status", "durable", "model"],
    "properties": {
        "request_id": {"type": "string"},
        "status": {"const": "pending"},
        "durable": {"type": "boolean"},
        "model": {"type": "string"},
    },
}
_PENDING = {
    "202": {
        "description": "The job was accepted and is not answered yet.",
        "headers": {
            "Location": response_header("Where the answer of a new job is."),
            "Preference-Applied": response_header("The part of `Prefer` that was honoured (RFC 7240)."),
            **RETRY_AFTER,
        },
        "content": {"application/json": {"schema": _JOB}},
    }
}
_PREFER = request_header(
    "Prefer",
    "Store the request as a job and answer 202; the answer is fetched by id (RFC 7240).",
    {"enum": ["respond-async"]},
)


_PARAMETERS = PARAMETERS | {
    "accepted": "Only devices that are accepted, or only those that are not.",
    "action": "Only decisions whose action begins like this, such as `rollout.`.",
    "after": "Continue behind this one: the `after` of the page before.",
    "alias": "Name of the alias.",
    "bundle": "Name of the bundle.",
    "command": "approve, start, pause, resume, promote, abort, retry or rollback.",
    "hours": "Number of hours up to now.",
    "limit": "Largest number of items on the page.",
    "machine": "Name of the machine that was measured.",
    "name": "Name of the device.",
    "presence": "Only devices of this presence.",
    "rollout_id": "The `id` of the rollout.",
    "search": "Only devices whose names contain this.",
    "selector": "Only devices with these tags, such as `site=kiel,line!=2`.",
    "since_s": "Only from this moment on, in seconds since 1970 (UTC).",
    "size_bytes": "Size of the bundle, if it is not in the registry yet.",
    "sort": "What the devices are sorted by.",
    "state": "Only devices in this state.",
    "subject": "Only decisions about this, such as `device:press-7`.",
    "tag": "The tag by whose values devices are counted.",
    "webhook": "Name of the webhook.",
}
"""Descriptions of parameters by name, for those that their routes do not describe."""


def describe(app: FastAPI) -> None:
    """Adds the inference routes, and the errors of every route, to the application's description."""
    of_framework = app.openapi

    def described() -> dict[str, Any]:
        if app.openapi_schema is None:
            schema = of_framework()
            schemas = schema["components"]["schemas"]
            for name in ("HTTPValidationError", "ValidationError"):  # the framework's own, see 422 below
                schemas.pop(name, None)
            schemas["Problem"] = PROBLEM
            operations = [(path, each) for path, methods in schema["paths"].items() for each in methods.values()]
            for path, operation in operations:
                if "description" in operation:  # of the framework's routes: the docstring, which is one sentence
                    operation["summary"] = " ".join(operation.pop("description").split())
                responses = operation["responses"]
                # The framework's own, which is answered as a 400.
                if "HTTPValidationError" in str(responses.get("422")):
                    del responses["422"]
                responses |= refusals("Problem" if path.startswith(errors.PROBLEMS_BELOW) else "Error")
                _add(operation.pop(SCHEMAS, {}), schemas)
            schema["paths"]["/firstline/v1/answers/{request_id}"]["get"]["responses"] |= _PENDING
            inference = {
                "/v2/models/{model}/infer": v2_infer("Run the current version.", MODEL),
                "/v2/models/{model}/versions/{version}/infer": v2_infer("Run a version.", MODEL, VERSION),
                "/firstline/v1/models/{model}/infer": file_infer(["auto", "cloud"], ["any"]),
            }
            for path, operation in inference.items():
                _take_jobs(operation)
                schema["paths"][path] = {"post": operation}
            app.openapi_schema = completed(schema, _PARAMETERS)
        return app.openapi_schema

    app.openapi = described  # type: ignore[method-assign]  # FastAPI's documented way to extend it


def _add(parts: Mapping[str, Any], schemas: dict[str, Any]) -> None:
    """Adds schemas by name.

    Raises:
        RuntimeError: two types have one name. Enumerations are compared by their values: the framework describes them
            differently.
    """
    for name, part in parts.items():
        present = schemas.setdefault(name, part)
        if present != part and set(present.get("enum", ())) != set(part.get("enum", ("",))):
            raise RuntimeError(f"two types of the API have the name {name}; rename one")


def _take_jobs(operation: dict[str, Any]) -> None:
    operation["parameters"] = [*operation["parameters"], _PREFER]
    operation["responses"] |= _PENDING
