"""The agent's API as an OpenAPI 3.1 document."""

from __future__ import annotations

from typing import Any

from firstline_core.protocol.http import EVENT_STREAM_TYPE
from firstline_core.protocol.openapi import (
    ANY_OBJECT,
    JSON,
    MODEL,
    PRIORITY,
    SOURCE,
    TIMEOUT,
    VERSION,
    VIEW,
    file_infer,
    identified,
    operation,
    path_parameter,
    v2_infer,
)
from firstline_edge.telemetry.version import VERSION as AGENT_VERSION

_REQUEST_ID = path_parameter("request_id", "From an answer's parameters.")
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

_INDEX = operation(
    "models",
    'Triton\'s list of models; the body is empty, or {"ready": true}.',
    body={JSON: {"schema": {"type": "object", "properties": {"ready": {"type": "boolean"}}}}},
    body_required=False,
)
_ROLL_BACK = operation(
    "state",
    "Roll a model back to the version before the fleet's latest update; only from the device itself.",
    MODEL,
    answer="The previous version runs.",
)
_ROLL_BACK_CONFIGURATION = operation(
    "state",
    "Roll the settings back to those before the fleet's latest configuration; only from the device itself.",
    answer="The previous settings apply.",
)
_PURGE = operation(
    "state",
    "Erase stored data; `edge-agent purge` calls this, from the device itself.",
    body={
        JSON: {
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
    answer="What was erased.",
)


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
            "post": _change("Reload the bundles of a model; from the device itself.")
        },
        "/v2/repository/models/{model}/unload": {"post": _change("Unload a model; from the device itself.")},
        **{f"{path}/infer": {"post": v2_infer("Run the model.", *named)} for path, named in models},
        "/firstline/v1/models/{model}/infer": {
            "post": file_infer(
                route={"enum": ["auto", "edge", "cloud"]},
                privacy={"enum": ["any", "local_only"]},
                wait={"enum": ["final", "first"]},
                timeout=TIMEOUT,
                priority=PRIORITY,
                source=SOURCE,
            )
        },
        "/firstline/v1/answers/{request_id}": _get(
            "answers", "The latest answer under an id.", _REQUEST_ID, _FORM, *VIEW
        ),
        "/firstline/v1/answers/{request_id}/events": _get(
            *("answers", "The present answer, and the final one when it arrives."),
            *(_REQUEST_ID, _FORM, *VIEW, _LAST_EVENT_ID),
            content=EVENT_STREAM_TYPE,
        ),
        "/firstline/v1/status": _get("health", "State of the agent: models, links, cache, outbox, budgets."),
        "/firstline/v1/updates/{model}/rollback": {"post": _ROLL_BACK},
        "/firstline/v1/configuration/rollback": {"post": _ROLL_BACK_CONFIGURATION},
        "/firstline/v1/purge": {"post": _PURGE},
        "/metrics": _get("health", "Prometheus metrics.", content="text/plain"),
        "/openapi.json": _get("health", "This description."),
    }
    return identified(
        {
            "openapi": "3.1.0",
            "info": {"title": "Firstline edge agent", "version": AGENT_VERSION},
            "paths": paths,
            "components": {"securitySchemes": {"HTTPBearer": {"type": "http", "scheme": "bearer"}}},
        }
    )


def _change(summary: str) -> dict[str, Any]:
    body = {JSON: {"schema": {"type": "object", "properties": {"parameters": ANY_OBJECT}}}}
    return operation("models", summary, MODEL, body=body, body_required=False, answer="Done.")


def _get(tag: str, summary: str, *parameters: dict[str, Any], content: str = JSON, open_to_all: bool = False) -> Any:
    return {"get": operation(tag, summary, *parameters, answers={content: {}}, open_to_all=open_to_all)}
