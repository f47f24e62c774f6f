"""OpenAPI 3.1 descriptions of the routes of both tiers, as plain JSON values.

Each tier adds its own routes and serves all of them at `GET /openapi.json`.
"""

from __future__ import annotations

from typing import Any

MODEL = {"name": "model", "in": "path", "required": True, "schema": {"type": "string"}, "description": "Its name."}
VERSION = {
    "name": "version",
    "in": "path",
    "required": True,
    "schema": {"type": "string"},
    "description": "The bundle's version.",
}
_HEADER_LENGTH = {
    "name": "Inference-Header-Content-Length",
    "in": "header",
    "schema": {"type": "integer"},
    "description": "Bytes of JSON before the binary tensors; absent where the body is JSON alone.",
}
_TENSOR = {
    "type": "object",
    "required": ["name", "datatype", "shape"],
    "properties": {
        "name": {"type": "string"},
        "datatype": {"type": "string", "examples": ["FP32", "BYTES"]},
        "shape": {"type": "array", "items": {"type": "integer"}},
        "parameters": {"type": "object"},
        "data": {"type": "array", "items": {}},
    },
}
_REQUEST = {
    "type": "object",
    "required": ["inputs"],
    "properties": {
        "id": {"type": "string"},
        "parameters": {
            "type": "object",
            "description": "route, privacy, wait, timeout (microseconds), priority (1 is the highest), ...",
        },
        "inputs": {"type": "array", "items": _TENSOR},
        "outputs": {"type": "array", "items": {"type": "object"}},
    },
}
_RESPONSE = {
    "type": "object",
    "properties": {
        "model_name": {"type": "string"},
        "model_version": {"type": "string"},
        "id": {"type": "string"},
        "parameters": {"type": "object", "description": "request_id, tier, reason, status, certified, ..."},
        "outputs": {"type": "array", "items": _TENSOR},
    },
}
_ERROR = {
    "type": "object",
    "required": ["error", "code"],
    "properties": {"error": {"type": "string"}, "code": {"type": "string"}},
}
TIMEOUT = {"type": "integer", "minimum": 0, "description": "Microseconds; 0 for none."}
PRIORITY = {
    "type": "integer",
    "minimum": 0,
    "description": "1 is the highest, 2 the default, 3 the lowest; 0 for the default.",
}
_BYTES = {"schema": {"type": "string", "format": "binary"}}


def refusals() -> dict[str, Any]:
    """Returns the error responses of any route."""
    texts = {
        "400": "The request does not say what it must.",
        "401": "No valid key, token or certificate.",
        "403": "A valid one, but not for this.",
        "404": "No such model or version.",
        "409": "The device's bundle names another full model, or the request's id belongs to another.",
        "413": "Over a limit that the sentence names.",
        "429": "This caller asks too often; Retry-After says when to come back.",
        "500": "The model does not load or run, or a fault of ours.",
        "503": "No room now; Retry-After says when to come back.",
        "504": "The deadline passed before the request's turn.",
    }
    content = {"application/json": {"schema": _ERROR}}
    return {status: {"description": text, "content": content} for status, text in texts.items()}


def repository_change(summary: str) -> dict[str, Any]:
    """Returns the operation that loads or unloads a model."""
    return {
        "tags": ["models"],
        "summary": summary,
        "security": [{"HTTPBearer": []}],
        "parameters": [MODEL],
        "requestBody": {
            "required": False,
            "content": {
                "application/json": {
                    "schema": {"type": "object", "properties": {"parameters": {"type": "object"}}},
                }
            },
        },
        "responses": {"200": {"description": "Done.", "content": {"application/json": {}}}, **refusals()},
    }


def v2_infer(summary: str, *path: dict[str, Any]) -> dict[str, Any]:
    """Returns the operation of V2 inference.

    Args:
        summary: one sentence.
        path: parameters of the path.
    """
    content = {"application/json": {"schema": _REQUEST}, "application/octet-stream": _BYTES}
    answered = {"application/json": {"schema": _RESPONSE}, "application/octet-stream": _BYTES}
    return {
        "tags": ["inference"],
        "summary": summary,
        "security": [{"HTTPBearer": []}],
        "parameters": [*path, _HEADER_LENGTH],
        "requestBody": {"required": True, "content": content},
        "responses": {"200": {"description": "The answer.", "content": answered}, **refusals()},
    }


def file_infer(**query: dict[str, Any]) -> dict[str, Any]:
    """Returns the operation of inference by file.

    Args:
        query: schemas of the query parameters.
    """
    return {
        "tags": ["inference"],
        "summary": "Send a file (an image, or JSON numbers) and read the label.",
        "security": [{"HTTPBearer": []}],
        "parameters": [MODEL, *({"name": name, "in": "query", "schema": schema} for name, schema in query.items())],
        "requestBody": {"required": True, "content": {"*/*": _BYTES}},
        "responses": {
            "200": {"description": "Label, score and the five likeliest.", "content": {"application/json": {}}},
            **refusals(),
        },
    }
