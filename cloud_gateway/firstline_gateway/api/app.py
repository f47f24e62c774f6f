"""The control plane as a FastAPI application, made of the routers of this package."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import cache
from typing import Any

import orjson
from fastapi import APIRouter, FastAPI
from fastapi.dependencies.models import Dependant
from fastapi.dependencies.utils import get_dependant
from fastapi.routing import APIRoute
from starlette.requests import Request
from starlette.responses import Response

from firstline_core.errors import FirstlineError, RequestError, listed
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
from firstline_core.protocol.tensors import shown
from firstline_gateway import __version__
from firstline_gateway.api import errors
from firstline_gateway.api.infer import infer_routes
from firstline_gateway.api.messages import SCHEMAS


def create_app(routers: Iterable[APIRouter], on_error: Callable[[FirstlineError], None]) -> FastAPI:
    """Returns the framework's application; `GET /openapi.json` describes it.

    Args:
        routers: the routes of the control plane.
        on_error: called for each unexpected failure.
    """
    # Undocumented names: router dependencies would run before those that authenticate.
    refusal = get_dependant(path="", call=_refuse_unknown_parameters)
    routes = [route for router in routers for route in router.routes]
    for route in routes:
        if isinstance(route, APIRoute):
            route.dependant.dependencies.insert(len(route.dependencies), refusal)
    app = FastAPI(
        title="Firstline gateway",
        version=__version__,
        # `include_router` would analyse each route again, and match each request twice.
        routes=[*infer_routes(), *routes],
        redirect_slashes=False,
        # The framework's documentation pages load scripts from other hosts, and it encodes the description each time.
        openapi_url=None,
    )
    errors.install(app, on_error)
    describe(app)
    encoded = cache(lambda: orjson.dumps(app.openapi()))  # once, because strangers may read it

    async def read_description(_request: Request) -> Response:
        return Response(encoded(), media_type=JSON_TYPE)

    app.add_route("/openapi.json", read_description, include_in_schema=False)
    return app


async def _refuse_unknown_parameters(request: Request) -> None:
    """Refuses a parameter of the query that a route with parameters does not have.

    Raises:
        RequestError: names the similar one.
    """
    route: APIRoute = request.scope["route"]
    described = (route.openapi_extra or {}).get("parameters", ())  # those that the route reads itself
    accepted = _parameters(route.dependant).union(each["name"] for each in described if each["in"] == "query")
    unknown = next((name for name in request.query_params if name not in accepted), "") if accepted else ""
    if unknown:
        raise RequestError(f"There is no parameter {shown(unknown)}{listed(unknown, sorted(accepted))}")


def _parameters(route: Dependant) -> set[str]:
    """Returns the parameters of the query that a route or what it depends on reads."""
    own = {parameter.alias for parameter in route.query_params}
    return own.union(*(_parameters(each) for each in route.dependencies))


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
