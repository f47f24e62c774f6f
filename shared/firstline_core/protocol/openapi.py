"""OpenAPI 3.1 descriptions of the routes of both tiers, as plain JSON values.

Each tier adds its own routes and serves all of them at `GET /openapi.json`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from firstline_core.types import SOURCE_LIMIT, Reason, Status, Tier

JSON = "application/json"
BINARY = "application/octet-stream"


def path_parameter(name: str, description: str) -> dict[str, Any]:
    """Returns the description of a part of the path."""
    return {"name": name, "in": "path", "required": True, "schema": {"type": "string"}, "description": description}


MODEL = path_parameter("model", "Its name.")
VERSION = path_parameter("version", "The bundle's version.")


def request_header(name: str, description: str, schema: dict[str, Any] | None = None) -> dict[str, Any]:
    """Returns the description of a header that a caller may send; a string without a schema."""
    return {"name": name, "in": "header", "schema": schema or {"type": "string"}, "description": description}


def response_header(description: str, kind: str = "string") -> dict[str, Any]:
    """Returns the description of a header of some answers."""
    return {"schema": {"type": kind}, "description": description}


RETRY_AFTER = {"Retry-After": response_header("Seconds after which to try again, if known.", "integer")}
_LENGTH_NAME = "Inference-Header-Content-Length"
_LENGTH = "Bytes of JSON before the binary tensors; absent where the body is JSON alone."
_TRACE = (
    request_header("traceparent", "The trace of the request (W3C Trace Context)."),
    request_header("tracestate", "Accompanies `traceparent`."),
)
_STRING, _NUMBER, _INTEGER, _BOOLEAN = ({"type": kind} for kind in ("string", "number", "integer", "boolean"))
# Generators of typed clients take an object without properties for an empty one unless it says this.
ANY_OBJECT: dict[str, Any] = {"type": "object", "additionalProperties": True}
_OBJECTS = {"type": "array", "items": ANY_OBJECT}
_TENSOR = {
    "type": "object",
    "required": ["name", "datatype", "shape"],
    "properties": {
        "name": _STRING,
        "datatype": {**_STRING, "examples": ["FP32", "BYTES"]},
        "shape": {"type": "array", "items": _INTEGER},
        "parameters": ANY_OBJECT,
        "data": {"type": "array", "items": {}},
    },
}
_TENSORS: dict[str, Any] = {"type": "array", "items": _TENSOR}
_PREFERENCES = "route, privacy, wait, timeout (microseconds), priority (1 is the highest), source, ..."
_REQUEST = {
    "type": "object",
    "required": ["inputs"],
    "properties": {
        "id": _STRING,
        "parameters": {**ANY_OBJECT, "description": _PREFERENCES},
        "inputs": _TENSORS,
        "outputs": _OBJECTS,
    },
}
_RESPONSE = {
    "type": "object",
    "properties": {
        **dict.fromkeys(("model_name", "model_version", "id"), _STRING),
        "parameters": {**ANY_OBJECT, "description": "request_id, tier, reason, status, certified, ..."},
        "outputs": _TENSORS,
    },
}
_FILE_ANSWER = {
    **ANY_OBJECT,
    "description": "The fields of every answer, and those of the model's task, such as `label` or `objects`.",
    "required": [
        *("request_id", "status", "certified", "durable", "tier", "reason", "model_digest", "attempts"),
        *("model", "version"),
    ],
    "properties": {
        **dict.fromkeys(("request_id", "model_digest", "refusal", "model", "version", "id"), _STRING),
        **dict.fromkeys(("certified", "durable", "changed"), _BOOLEAN),
        **dict.fromkeys(("attempts", "rows"), _OBJECTS),
        **dict.fromkeys(("width", "height"), _INTEGER),
        "status": {**_STRING, "enum": list(map(str, Status))},
        "tier": {**_STRING, "enum": list(map(str, Tier))},
        "reason": {**_STRING, "enum": list(map(str, Reason))},
        "confidence": _NUMBER,
        "results": {**_OBJECTS, "description": "Of each row, if there are several."},
    },
}
_SENTENCE = {**_STRING, "description": "What is wrong, where, and what to do."}
_REFUSAL = {
    "code": {**_STRING, "description": "Name of the error, such as `queue_full`; it never changes."},
    "request_id": {**_STRING, "description": "Id of the refused request, which is also in the server's log."},
    "retry_after_s": {**_NUMBER, "description": "Seconds after which to try again, if known."},
}
_ERROR = {"type": "object", "required": ["error", "code"], "properties": {"error": _SENTENCE, **_REFUSAL}}
PROBLEM = {
    "type": "object",
    "required": ["type", "title", "status", "detail", "code", "request_id"],
    "properties": {
        "type": {**_STRING, "description": "`about:blank`: there is no page about this error."},
        "title": {**_STRING, "description": "The name of the status."},
        "status": {**_INTEGER, "description": "The status of the response."},
        "detail": _SENTENCE,
        **_REFUSAL,
    },
}
"""The schema `Problem`, to which refusals in the form of RFC 9457 refer."""


def _object(*optional: str, **properties: dict[str, Any]) -> dict[str, Any]:
    """Returns the schema of an object; the properties that `optional` names may be absent."""
    required = [name for name in properties if name not in optional]
    return {"type": "object", "required": required, "properties": properties}


_STRINGS: dict[str, Any] = {"type": "array", "items": _STRING}
_DURATION = _object(count=_INTEGER, ns=_INTEGER)
_COMPUTED = dict.fromkeys(("compute_input", "compute_infer", "compute_output"), _DURATION)
_BATCHES = _object(batch_size=_INTEGER, **_COMPUTED)
_TIMES = _object(**dict.fromkeys(("success", "fail", "queue", "cache_hit", "cache_miss"), _DURATION), **_COMPUTED)
_STATISTICS = _object(
    **dict.fromkeys(("name", "version"), _STRING),
    **dict.fromkeys(("last_inference", "inference_count", "execution_count"), _INTEGER),
    inference_stats=_TIMES,
    batch_stats={"type": "array", "items": _BATCHES},
)
_ALL_STATISTICS = _object(model_stats={"type": "array", "items": _STATISTICS})
_LISTED = _object("reason", name=_STRING, version=_STRING, state=_STRING, reason=_STRING)
_JSON_ANSWERS = {
    "/v2": _object(name=_STRING, version=_STRING, extensions=_STRINGS),
    "/v2/health/live": _object(live=_BOOLEAN),
    "/v2/health/ready": _object(ready=_BOOLEAN),
    "/v2/models/{model}": _object(
        *("labels", "task"),
        **dict.fromkeys(("name", "platform"), _STRING),
        **dict.fromkeys(("versions", "labels"), _STRINGS),
        **dict.fromkeys(("inputs", "outputs"), _TENSORS),
        task=ANY_OBJECT,
    ),
    "/v2/models/{model}/ready": _object(name=_STRING, ready=_BOOLEAN),
    "/v2/models/{model}/stats": _ALL_STATISTICS,
    "/v2/models/stats": _ALL_STATISTICS,
    "/v2/repository/index": {"type": "array", "items": _LISTED},
}
"""The JSON of V2's routes on both tiers, by path; a route of a version answers as that of its model."""
_OPTIONS: dict[str, dict[str, Any]] = {
    "wait": {"enum": ["final", "first"]},
    "timeout": {"type": "integer", "minimum": 0},
    "priority": {"type": "integer", "minimum": 0},
    "source": {"type": "string", "maxLength": SOURCE_LIMIT},
}
PARAMETERS = {
    "model": "Name of the model.",
    "priority": "1 is the highest, 2 the default, 3 the lowest; 0 for the default.",
    "privacy": "`local_only` keeps the input on the device.",
    "request_id": "The `request_id` of the answer.",
    "route": "`edge` for the device's model, `cloud` for the full model; `auto` lets the tier decide.",
    "source": "The camera, microphone or machine of the input; audits of one source keep a distance in time.",
    "timeout": "Microseconds until the deadline; 0 for the tier's default.",
    "version": "Version of the bundle.",
    "wait": "`first` returns the device's answer at once, and the correction follows.",
}
"""The parameters of both tiers, unless their routes describe them."""
BYTES = {"schema": {"type": "string", "format": "binary"}}
TEXT = {"schema": {"type": "string"}}


BINARY_ANSWER = {"content": {BINARY: BYTES}, "headers": {_LENGTH_NAME: response_header(_LENGTH, "integer")}}
"""What an answer with binary tensors adds to its description."""
INDEX_BODY = {JSON: {"schema": {"type": "object", "properties": {"ready": {"type": "boolean"}}}}}
"""Of the repository's index; may be absent."""
LOADING_BODY = {JSON: {"schema": {"type": "object", "properties": {"parameters": ANY_OBJECT}}}}
"""Of loading and unloading; may be absent."""
NO_MORE_EVENTS = {"204": {"description": "There are no more events."}}


_REFUSALS = {
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
_REFUSAL_HEADERS = {
    "401": {"WWW-Authenticate": response_header("Bearer.")},
    **dict.fromkeys(("429", "503", "504"), RETRY_AFTER),
}


def refusals(schema: str = "Error") -> dict[str, Any]:
    """Returns references to the error responses of any route, in the form of `Error` or of `Problem` (RFC 9457)."""
    return {status: {"$ref": f"#/components/responses/{schema}{status}"} for status in _REFUSALS}


def refusal(description: str, schema: str = "Error") -> dict[str, Any]:
    """Returns one error response."""
    form = "application/problem+json" if schema == "Problem" else JSON
    return {"description": description, "content": {form: {"schema": {"$ref": f"#/components/schemas/{schema}"}}}}


def completed(document: dict[str, Any], parameters: Mapping[str, str] = PARAMETERS) -> dict[str, Any]:
    """Adds the errors, the answers of V2, descriptions of parameters, and an id for each operation.

    Generated clients name an operation by its id. An answer in JSON without a schema is an object.

    Args:
        document: of a tier.
        parameters: descriptions by name, for parameters whose routes do not describe them.
    """
    schemas = document["components"].setdefault("schemas", {})
    schemas["Error"] = _ERROR
    document["components"]["responses"] = {
        f"{schema}{status}": refusal(text, schema) | {"headers": _REFUSAL_HEADERS.get(status, {})}
        for schema in ("Error", "Problem")
        if schema in schemas
        for status, text in _REFUSALS.items()
    }
    for path, methods in document["paths"].items():
        words = re.sub(r"\W+", "_", path).strip("_")
        for method, described in methods.items():
            described.setdefault("operationId", f"{method}_{words}")
            for parameter in described.get("parameters", ()):
                if parameter["name"] in parameters:
                    parameter.setdefault("description", parameters[parameter["name"]])
            schema = _JSON_ANSWERS.get(path.replace("/versions/{version}", ""), ANY_OBJECT)
            if path.startswith("/v2/") and path.endswith("/ready"):
                described["responses"]["400"] = {"description": "Not ready.", "content": {JSON: {}}}
            for response in described["responses"].values():
                content = response.get("content", {})
                if JSON in content and not content[JSON].get("schema"):
                    content[JSON] = {"schema": schema}
    return document


def operation(
    tag: str,
    summary: str,
    *parameters: dict[str, Any],
    body: dict[str, Any] | None = None,
    body_required: bool = True,
    answer: str = "The answer.",
    answers: dict[str, Any] | None = None,
    open_to_all: bool = False,
) -> dict[str, Any]:
    """Returns the description of one method of a path.

    Args:
        tag: the group of the operation.
        summary: one sentence.
        parameters: of the path, the query and the headers.
        body: the content of the request's body, by media type; None without a body.
        body_required: whether the body must be sent.
        answer: a sentence about the answer.
        answers: the content of the answer, by media type; None for JSON.
        open_to_all: whether it needs no authentication.
    """
    described: dict[str, Any] = {
        "tags": [tag],
        "summary": summary,
        "security": [] if open_to_all else [{"HTTPBearer": []}],
        "parameters": list(parameters),
        "responses": {"200": {"description": answer, "content": answers or {JSON: {}}}, **refusals()},
    }
    if body is not None:
        described["requestBody"] = {"required": body_required, "content": body}
    return described


def v2_infer(summary: str, *path: dict[str, Any]) -> dict[str, Any]:
    """Returns the operation of V2 inference.

    Args:
        summary: one sentence.
        path: parameters of the path.
    """
    length = request_header(_LENGTH_NAME, _LENGTH, {"type": "integer"})
    body = {JSON: {"schema": _REQUEST}, BINARY: BYTES}
    answers = {JSON: {"schema": _RESPONSE}, BINARY: BYTES}
    described = operation("inference", summary, *path, length, *_TRACE, body=body, answers=answers)
    described["responses"]["200"] |= {"headers": BINARY_ANSWER["headers"]}
    return described


def _query(name: str, schema: dict[str, Any], **described: str) -> dict[str, Any]:
    return {"name": name, "in": "query", "schema": schema, **described}


_LABELS = "Show only objects of these labels; separated by commas, or repeated."
VIEW = (
    _query("min_score", {**_NUMBER, "minimum": 0, "maximum": 1}, description="Leave out objects below this score."),
    _query("classes", {"type": "array", "items": _STRING}, description=_LABELS),
    _query(
        "max_objects", {**_INTEGER, "minimum": 1, "maximum": 1000}, description="Maximum number of objects, best first."
    ),
    _query("masks", {"enum": ["png", "rle"]}, description="Masks as PNG in base64, or as run lengths."),
)
"""Query parameters about the description of an answer; see `firstline_core/file_route.py`."""


def file_infer(routes: Sequence[str], privacies: Sequence[str], *more_types: str) -> dict[str, Any]:
    """Returns the operation of inference by file.

    Args:
        routes: values of the query parameter `route` on this tier.
        privacies: values of `privacy`.
        more_types: media types of text in which this tier also answers.
    """
    query = {"route": {"enum": routes}, "privacy": {"enum": privacies}, **_OPTIONS}
    described = operation(
        "inference",
        "Send a file (an image, a recording, text, or JSON) and read what the model found.",
        MODEL,
        *(_query(name, schema) for name, schema in query.items()),
        *VIEW,
        _query("id", _STRING, description="Your own; the answer repeats it."),
        *_TRACE,
        body={  # any other type is read as the file itself
            BINARY: BYTES,
            "multipart/form-data": {"schema": {"type": "object", "additionalProperties": BYTES["schema"]}},
            JSON: {"schema": {}},
        },
        answer="The answer of the model's task, such as a label, or objects with boxes; or a picture of it.",
        answers={JSON: {"schema": _FILE_ANSWER}, "image/jpeg": BYTES, **dict.fromkeys(more_types, TEXT)},
    )
    fields = response_header("Of a picture: the fields of every answer, as JSON.")
    described["responses"]["200"]["headers"] = {"Firstline-Answer": fields}
    described["responses"]["406"] = refusal("`Accept` names only types of images that are not drawn.")
    return described
