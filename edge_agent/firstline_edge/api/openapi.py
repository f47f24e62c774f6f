"""The descriptions of the agent's endpoints, for the OpenAPI 3.1 document that `app.py` makes of its routes."""

from __future__ import annotations

from typing import Any

from firstline_core.protocol.http import EVENT_STREAM_TYPE
from firstline_core.protocol.openapi import (
    ANY_OBJECT,
    INDEX_BODY,
    JSON,
    LOADING_BODY,
    MODEL,
    NO_MORE_EVENTS,
    VIEW,
    file_infer,
    operation,
    path_parameter,
    request_header,
)


def get(
    tag: str, summary: str, *parameters: dict[str, Any], content: str = JSON, open_to_all: bool = False
) -> dict[str, Any]:
    """Returns the description of an endpoint that a GET reads."""
    return operation(tag, summary, *parameters, answers={content: {}}, open_to_all=open_to_all)


def _change(summary: str) -> dict[str, Any]:
    return operation("models", summary, MODEL, body=LOADING_BODY, body_required=False, answer="Done.")


_REQUEST_ID = path_parameter("request_id", "From an answer's parameters.")
_FORM = {
    "name": "form",
    "in": "query",
    "schema": {"enum": ["short", "v2"]},
    "description": "As short JSON, or as tensors.",
}
_LAST_EVENT_ID = request_header(
    "Last-Event-ID",
    "Id of the last event received: 1 is the provisional answer, 2 the final one, after which the answer is 204.",
    {"enum": ["0", "1", "2"]},
)

INDEX = operation(
    "models", 'Triton\'s list of models; the body is empty, or {"ready": true}.', body=INDEX_BODY, body_required=False
)
ROLL_BACK = operation(
    "state",
    "Roll a model back to the version before the fleet's latest update; only from the device itself.",
    MODEL,
    answer="The previous version runs.",
)
ROLL_BACK_CONFIGURATION = operation(
    "state",
    "Roll the settings back to those before the fleet's latest configuration; only from the device itself.",
    answer="The previous settings apply.",
)
INFER_FILE = file_infer(["auto", "edge", "cloud"], ["any", "local_only"], EVENT_STREAM_TYPE)
LIVE = get("health", "Is the process up? Needs no token.", open_to_all=True)
READY = get("health", "Does it accept requests? 400 while it does not.", open_to_all=True)
_OBJECTS: dict[str, Any] = {"type": "array", "items": ANY_OBJECT}
_OBJECT_OR_NULL: dict[str, Any] = {**ANY_OBJECT, "type": ["object", "null"]}
_STATUS_FIELDS: dict[str, tuple[dict[str, Any], str]] = {
    "device_id": ({"type": "string"}, "Name of the device."),
    "version": ({"type": "string"}, "Version of the agent."),
    "ready": ({"type": "boolean"}, "Whether it accepts requests."),
    "uptime_s": ({"type": "number"}, "Seconds since its start."),
    "models": (_OBJECTS, "Each model: its version, variant, threshold, certificate and problem."),
    "problems": (_OBJECTS, "What is wrong, in a sentence each, and the file or folder concerned."),
    "identity": (_OBJECT_OR_NULL, "The device's certificate; null for a device that has not joined."),
    "links": (ANY_OBJECT, "The links to the gateway by name: state, traffic and times."),
    "outbox": (ANY_OBJECT, "Number and size of the promises that wait."),
    "cache": (ANY_OBJECT, "Number and size of the cached results."),
    "policy": ({"type": "string"}, "Kind of the policy that decides what is escalated."),
    "budgets": (_OBJECTS, "Each budget, and how much of it is spent."),
    "conditions": (ANY_OBJECT, "Battery, heat and whether the link is metered, which change the costs."),
    "hardware": (ANY_OBJECT, "The latest readings of the sensors."),
    "fleet": (_OBJECT_OR_NULL, "Updates, configuration and brake; null for a device outside of a fleet."),
}
STATUS = get("health", "State of the agent: models, links, cache, outbox, budgets.")
STATUS["responses"]["200"]["content"][JSON]["schema"] = {
    "type": "object",
    "required": list(_STATUS_FIELDS),
    "properties": {name: {**schema, "description": text} for name, (schema, text) in _STATUS_FIELDS.items()},
}
ALL_STATISTICS = get("models", "Numbers and durations of runs of every model, in Triton's format.")
LOAD = _change("Reload the bundles of a model; from the device itself.")
UNLOAD = _change("Unload a model; from the device itself.")
ANSWER = get("answers", "The latest answer under an id.", _REQUEST_ID, _FORM, *VIEW)
EVENTS = get(
    *("answers", "The present answer, and the final one when it arrives."),
    *(_REQUEST_ID, _FORM, *VIEW, _LAST_EVENT_ID),
    content=EVENT_STREAM_TYPE,
)
EVENTS["responses"] |= NO_MORE_EVENTS
