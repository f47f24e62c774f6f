"""The agent's API as an OpenAPI 3.1 document."""

from __future__ import annotations

from typing import Any

from firstline_core.protocol.openapi import (
    MODEL,
    PRIORITY,
    TIMEOUT,
    VERSION,
    refusals,
    repository_change,
    short_infer,
    v2_infer,
)
from firstline_edge.telemetry.version import VERSION as AGENT_VERSION

_REQUEST_ID = {
    "name": "request_id",
    "in": "path",
    "required": True,
    "schema": {"type": "string"},
    "description": "From an answer's parameters.",
}
_FORM = {
    "name": "form",
    "in": "query",
    "schema": {"enum": ["short", "v2"]},
    "description": "In words, or as tensors.",
}
_LAST_EVENT_ID = {
    "name": "Last-Event-ID",
    "in": "header",
    "schema": {"enum": ["0", "1", "2"]},
    "description": "Of the last event that was seen: 1 is the provisional answer, 2 the last word.",
}
_JSON, _EVENTS, _TEXT = "application/json", "text/event-stream", "text/plain"

_INDEX = {
    "tags": ["models"],
    "summary": 'Triton\'s list of models; the body is empty, or {"ready": true}.',
    "security": [{"HTTPBearer": []}],
    "parameters": [],
    "requestBody": {
        "required": False,
        "content": {_JSON: {"schema": {"type": "object", "properties": {"ready": {"type": "boolean"}}}}},
    },
    "responses": {"200": {"description": "As asked.", "content": {_JSON: {}}}, **refusals()},
}
_ROLL_BACK = {
    "tags": ["state"],
    "summary": "Have what ran before the fleet's latest update of a model run again; only from the device itself.",
    "security": [{"HTTPBearer": []}],
    "parameters": [MODEL],
    "responses": {"200": {"description": "It runs.", "content": {_JSON: {}}}, **refusals()},
}
_ROLL_BACK_CONFIGURATION = {
    "tags": ["state"],
    "summary": "Have the settings before the fleet's latest configuration hold again; only from the device itself.",
    "security": [{"HTTPBearer": []}],
    "parameters": [],
    "responses": {"200": {"description": "They hold.", "content": {_JSON: {}}}, **refusals()},
}
_PURGE = {
    "tags": ["state"],
    "summary": "Erase what the device keeps; `edge-agent purge` asks for it, from the device itself.",
    "security": [{"HTTPBearer": []}],
    "parameters": [],
    "requestBody": {
        "required": True,
        "content": {
            _JSON: {
                "schema": {
                    "type": "object",
                    "required": ["places", "proof"],
                    "properties": {
                        "places": {"type": "array", "items": {"type": "string"}},
                        "proof": {"type": "string", "description": "What the caller just wrote beside the state."},
                    },
                    "additionalProperties": False,
                }
            }
        },
    },
    "responses": {"200": {"description": "What was erased.", "content": {_JSON: {}}}, **refusals()},
}


def description() -> dict[str, Any]:
    """All routes of `app.create_app`."""
    models = ("/v2/models/{model}", (MODEL,)), ("/v2/models/{model}/versions/{version}", (MODEL, VERSION))
    paths = {
        "/v2/health/live": _get("health", "Is the process up? Needs no token.", open_to_all=True),
        "/v2/health/ready": _get("health", "Does it take requests? 400 while it does not.", open_to_all=True),
        "/v2": _get("models", "The server's name, version and extensions."),
        **{path: _get("models", "What the model takes and gives.", *named) for path, named in models},
        **{f"{path}/ready": _get("models", "Would the model answer now?", *named) for path, named in models},
        **{f"{path}/config": _get("models", "Triton's configuration of the model.", *named) for path, named in models},
        "/v2/models/stats": _get("models", "How often and how long each model ran, as Triton tells it."),
        **{f"{path}/stats": _get("models", "How often and how long the model ran.", *named) for path, named in models},
        "/v2/repository/index": {"post": _INDEX},
        "/v2/repository/models/{model}/load": {
            "post": repository_change("Read a model's bundles anew; from the device itself.")
        },
        "/v2/repository/models/{model}/unload": {
            "post": repository_change("Hold a model no more; from the device itself.")
        },
        **{f"{path}/infer": {"post": v2_infer("Run the model.", *named)} for path, named in models},
        "/firstline/v1/models/{model}/infer": {
            "post": short_infer(
                route={"enum": ["auto", "edge", "cloud"]},
                privacy={"enum": ["any", "local_only"]},
                wait={"enum": ["final", "first"]},
                timeout=TIMEOUT,
                priority=PRIORITY,
            )
        },
        "/firstline/v1/answers/{request_id}": _get("answers", "The latest answer under an id.", _REQUEST_ID, _FORM),
        "/firstline/v1/answers/{request_id}/events": _get(
            *("answers", "The answer as it stands, and its last word when it comes."),
            *(_REQUEST_ID, _FORM, _LAST_EVENT_ID),
            content=_EVENTS,
        ),
        "/firstline/v1/status": _get("health", "How the agent is: models, links, cache, outbox, budgets."),
        "/firstline/v1/updates/{model}/rollback": {"post": _ROLL_BACK},
        "/firstline/v1/configuration/rollback": {"post": _ROLL_BACK_CONFIGURATION},
        "/firstline/v1/purge": {"post": _PURGE},
        "/metrics": _get("health", "Prometheus metrics.", content=_TEXT),
        "/openapi.json": _get("health", "This description."),
    }
    return {
        "openapi": "3.1.0",
        "info": {"title": "Firstline edge agent", "version": AGENT_VERSION},
        "paths": paths,
        "components": {"securitySchemes": {"HTTPBearer": {"type": "http", "scheme": "bearer"}}},
    }


def _get(
    tag: str, summary: str, *parameters: dict[str, Any], content: str = _JSON, open_to_all: bool = False
) -> dict[str, Any]:
    return {
        "get": {
            "tags": [tag],
            "summary": summary,
            "security": [] if open_to_all else [{"HTTPBearer": []}],
            "parameters": list(parameters),
            "responses": {"200": {"description": "As asked.", "content": {content: {}}}, **refusals()},
        }
    }
