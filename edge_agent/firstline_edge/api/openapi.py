"""The agent's API as an OpenAPI 3.1 document."""

from __future__ import annotations

from typing import Any

from firstline_core.protocol.openapi import (
    MODEL,
    PRIORITY,
    TIMEOUT,
    VERSION,
    file_infer,
    refusals,
    repository_change,
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
    "description": "As short JSON, or as tensors.",
}
_LAST_EVENT_ID = {
    "name": "Last-Event-ID",
    "in": "header",
    "schema": {"enum": ["0", "1", "2"]},
    "description": "Id of the last event received: 1 is the provisional answer, 2 the final one.",
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
    "responses": {"200": {"description": "The answer.", "content": {_JSON: {}}}, **refusals()},
}
_ROLL_BACK = {
    "tags": ["state"],
    "summary": "Roll a model back to the version before the fleet's latest update; only from the device itself.",
    "security": [{"HTTPBearer": []}],
    "parameters": [MODEL],
    "responses": {"200": {"description": "The previous version runs.", "content": {_JSON: {}}}, **refusals()},
}
_ROLL_BACK_CONFIGURATION = {
    "tags": ["state"],
    "summary": "Roll the settings back to those before the fleet's latest configuration; only from the device itself.",
    "security": [{"HTTPBearer": []}],
    "parameters": [],
    "responses": {"200": {"description": "The previous settings apply.", "content": {_JSON: {}}}, **refusals()},
}
_PURGE = {
    "tags": ["state"],
    "summary": "Erase stored data; `edge-agent purge` calls this, from the device itself.",
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
                        "proof": {
                            "type": "string",
                            "description": "Content of the file that the caller just wrote in the state directory.",
                        },
                    },
                    "additionalProperties": False,
                }
            }
        },
    },
    "responses": {"200": {"description": "What was erased.", "content": {_JSON: {}}}, **refusals()},
}


def description() -> dict[str, Any]:
    """Returns the description of every endpoint."""
    models = ("/v2/models/{model}", (MODEL,)), ("/v2/models/{model}/versions/{version}", (MODEL, VERSION))
    paths = {
        "/v2/health/live": _get("health", "Is the process up? Needs no token.", open_to_all=True),
        "/v2/health/ready": _get("health", "Does it accept requests? 400 while it does not.", open_to_all=True),
        "/v2": _get("models", "The server's name, version and extensions."),
        **{path: _get("models", "Inputs and outputs of the model.", *named) for path, named in models},
        **{f"{path}/ready": _get("models", "Would the model answer now?", *named) for path, named in models},
        **{f"{path}/config": _get("models", "Triton's configuration of the model.", *named) for path, named in models},
        "/v2/models/stats": _get("models", "Numbers and durations of runs of every model, in Triton's format."),
        **{
            f"{path}/stats": _get("models", "Numbers and durations of runs of the model.", *named)
            for path, named in models
        },
        "/v2/repository/index": {"post": _INDEX},
        "/v2/repository/models/{model}/load": {
            "post": repository_change("Reload the bundles of a model; from the device itself.")
        },
        "/v2/repository/models/{model}/unload": {"post": repository_change("Unload a model; from the device itself.")},
        **{f"{path}/infer": {"post": v2_infer("Run the model.", *named)} for path, named in models},
        "/firstline/v1/models/{model}/infer": {
            "post": file_infer(
                route={"enum": ["auto", "edge", "cloud"]},
                privacy={"enum": ["any", "local_only"]},
                wait={"enum": ["final", "first"]},
                timeout=TIMEOUT,
                priority=PRIORITY,
            )
        },
        "/firstline/v1/answers/{request_id}": _get("answers", "The latest answer under an id.", _REQUEST_ID, _FORM),
        "/firstline/v1/answers/{request_id}/events": _get(
            *("answers", "The present answer, and the final one when it arrives."),
            *(_REQUEST_ID, _FORM, _LAST_EVENT_ID),
            content=_EVENTS,
        ),
        "/firstline/v1/status": _get("health", "State of the agent: models, links, cache, outbox, budgets."),
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
            "responses": {"200": {"description": "The answer.", "content": {content: {}}}, **refusals()},
        }
    }
