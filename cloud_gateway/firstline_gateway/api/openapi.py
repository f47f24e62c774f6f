"""The API's description: the framework's own routes, and by hand the raw ones that it does not see."""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI

_MODEL = {"name": "model", "in": "path", "required": True, "schema": {"type": "string"}, "description": "Its name."}
_VERSION = {
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
        "parameters": {"type": "object", "description": "timeout (microseconds), full_model_digest, ..."},
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
_BYTES = {"schema": {"type": "string", "format": "binary"}}


def _refusals() -> dict[str, Any]:
    said = {
        "400": "The request does not say what it must.",
        "401": "No valid token.",
        "404": "No such model or version.",
        "409": "The device's bundle names another full model.",
        "413": "Over a limit that the sentence names.",
        "503": "No room now; Retry-After says when to come back.",
        "504": "The deadline passed before the request's turn.",
    }
    content = {"application/json": {"schema": _ERROR}}
    return {status: {"description": text, "content": content} for status, text in said.items()}


def _v2(summary: str, *path: dict[str, Any]) -> dict[str, Any]:
    content = {"application/json": {"schema": _REQUEST}, "application/octet-stream": _BYTES}
    answered = {"application/json": {"schema": _RESPONSE}, "application/octet-stream": _BYTES}
    return {
        "tags": ["inference"],
        "summary": summary,
        "security": [{"HTTPBearer": []}],
        "parameters": [*path, _HEADER_LENGTH],
        "requestBody": {"required": True, "content": content},
        "responses": {"200": {"description": "The answer.", "content": answered}, **_refusals()},
    }


def _short() -> dict[str, Any]:
    query = [
        {"name": name, "in": "query", "schema": schema}
        for name, schema in (
            ("route", {"enum": ["auto", "cloud"]}),
            ("timeout", {"type": "integer", "description": "Microseconds."}),
        )
    ]
    return {
        "tags": ["inference"],
        "summary": "Send a file (an image, or JSON numbers) and read the label.",
        "security": [{"HTTPBearer": []}],
        "parameters": [_MODEL, *query],
        "requestBody": {"required": True, "content": {"*/*": _BYTES}},
        "responses": {
            "200": {"description": "Label, score and the five likeliest.", "content": {"application/json": {}}},
            **_refusals(),
        },
    }


def describe(app: FastAPI) -> None:
    """Puts the raw routes into the app's description."""
    framework = app.openapi

    def whole() -> dict[str, Any]:
        if app.openapi_schema is None:
            schema = framework()
            schema["paths"] |= {
                "/v2/models/{model}/infer": {"post": _v2("Run the current version.", _MODEL)},
                "/v2/models/{model}/versions/{version}/infer": {"post": _v2("Run a version.", _MODEL, _VERSION)},
                "/firstline/v1/models/{model}/infer": {"post": _short()},
            }
            app.openapi_schema = schema
        return app.openapi_schema

    app.openapi = whole  # type: ignore[method-assign]  # FastAPI's documented way to extend it
