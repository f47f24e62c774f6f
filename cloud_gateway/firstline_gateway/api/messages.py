"""Reads the bodies and parameters of the control plane's requests, and builds its responses."""

from __future__ import annotations

import re
from collections.abc import Mapping
from copy import deepcopy
from functools import cache, partial
from types import MappingProxyType
from typing import Annotated, Any, NamedTuple, TypeVar

import msgspec
from fastapi import Query, Request
from fastapi.dependencies.models import Dependant
from fastapi.routing import APIRoute
from fastapi.utils import deep_dict_update
from pydantic import AfterValidator, BeforeValidator
from starlette.responses import Response

from firstline_core.docstrings import text_and_entries
from firstline_core.errors import ConflictError, RequestError, listed
from firstline_core.protocol import http
from firstline_core.protocol.http import Reply, json_reply
from firstline_core.protocol.limits import Limits
from firstline_core.protocol.openapi import request_header, response_header
from firstline_core.protocol.tensors import shown
from firstline_core.storage.structs import fault_of
from firstline_core.types import Name
from firstline_core.units import MIB

BODY = Limits(body_bytes=MIB)
PAGE = 1000
"""Largest number of items on a page."""
# One range only: a request for several gets the whole file, as the RFC allows.
_RANGE = re.compile(r"bytes=(?:([0-9]{1,18})-([0-9]{0,18})|-([0-9]{1,18}))", re.ASCII)

_T = TypeVar("_T")


async def read_body(request: Request, limits: Limits) -> bytes:
    """Returns the body, as received.

    Raises:
        PayloadTooLargeError: the body is over the limit.
        RemoteTimeoutError: the body arrives too slowly.
    """
    return await http.read_body(http.timed_chunks(request.stream()), request.headers, limits)


async def body_of(request: Request, kind: type[_T], limits: Limits = BODY) -> _T:
    """Returns the body, decoded from JSON.

    Raises:
        RequestError: the body is not JSON, or not of this kind.
        PayloadTooLargeError: the body is over the limit.
        RemoteTimeoutError: the body arrives too slowly.
    """
    try:
        return msgspec.json.decode(await read_body(request, limits), type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        fault = fault_of(error, getattr(kind, "__struct_encode_fields__", ()))
        raise RequestError(f"The body is not valid: {fault}; GET /openapi.json has its schema.") from error


async def known_parameters(request: Request) -> None:
    """Refuses a parameter of the query that a route with parameters does not have.

    In the lists of dependencies it comes after the one that authenticates, so that a stranger gets 401 and not 400.

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


NEW: dict[int | str, dict[str, Any]] = {201: {"description": "It is new.", "content": {"application/json": {}}}}
"""A further response of a route, for its description."""

ETAG = {"ETag": response_header("Changes with the content.")}
IF_MATCH = request_header("If-Match", "The ETag that was read; 409 if it has changed since.")
UNCHANGED: dict[str, Any] = {
    "parameters": [request_header("If-None-Match", "The ETag of the content that the caller has.")],
    "responses": {
        "200": {"headers": ETAG},
        "304": {"description": "The caller has it already (If-None-Match).", "headers": ETAG},
    },
}
"""What a route with an `ETag` adds to its description."""


def tagged(*parameters: dict[str, Any], status: int = 200) -> dict[str, Any]:
    """Returns what a route adds to its description if it answers with an `ETag`, but never with 304."""
    return {"parameters": list(parameters), "responses": {str(status): {"headers": ETAG}}}


SCHEMAS = "x-schemas"
"""The schemas to which a route refers, until `describe` moves them to the components of the whole description."""
_NOTHING_ELSE: Mapping[str, Any] = MappingProxyType({})
_REFERENCE = "#/components/schemas/{name}"


def schemas(
    answers: type[msgspec.Struct] | None = None,
    *statuses: int,
    takes: type[msgspec.Struct] | None = None,
    also: Mapping[str, Any] = _NOTHING_ELSE,
) -> dict[str, Any]:
    """Returns what a route adds to its OpenAPI description; the parts of its schemas are under `SCHEMAS`.

    Args:
        answers: the JSON that it answers; None if that has no schema.
        statuses: of these answers; 200 without any.
        takes: the JSON of its body; None without one.
        also: more of the description.
    """
    description = deepcopy(dict(also))
    if takes is not None:
        deep_dict_update(description, {"requestBody": {"required": True, **_content_of(takes)}})
    if answers is not None:
        deep_dict_update(
            description, {"responses": {str(status): _content_of(answers) for status in statuses or (200,)}}
        )
    return description | {SCHEMAS: _parts_of(*filter(None, (answers, takes)))}


@cache
def _parts_of(*kinds: type[msgspec.Struct]) -> dict[str, Any]:
    """Returns the schemas of types and of what they consist of, by name; they must not be changed."""
    encoded = msgspec.json.encode(msgspec.json.schema_components(kinds, ref_template=_REFERENCE)[1])
    # openapi-python-client accepts no schema `false`; `maxItems` closes these tuples too.
    parts: dict[str, Any] = msgspec.json.decode(encoded.replace(b'"items":false', b'"items":{}'))
    for part in parts.values():
        _describe_fields(part)
    return parts


_FIELDS = {
    "after": "Where the next page begins, for the parameter `after`; null on the last page.",
    "bundle": "Name of the bundle.",
    "by": "The principal that made the change.",
    "created_by": "The principal that created it.",
    "device": "Name of the device.",
    "expires_s": "When it expires, in seconds since 1970.",
    "format": "Version of this document's format.",
    "name": "Its name.",
    "not_before_s": "Earliest time of the trial, in seconds since 1970; the files are fetched earlier.",
    "rollout": "The `id` of the rollout that set it; empty for a manual change.",
    "sha256": "SHA-256 of its content, in hexadecimal digits.",
    "size_bytes": "Its size in bytes.",
    "stage": "Number of the stage, from 0.",
    "undone": "Whether the device rolls this version back.",
    "version": "Its version.",
    "window": "When it may be tried; null for any time.",
    "withdrawn": "SHA-256 of the versions that the fleet withdrew before, latest last.",
}
"""Descriptions of fields by name, for types whose docstrings do not describe them."""


def _describe_fields(part: dict[str, Any]) -> None:
    """Moves what a docstring says about attributes to the properties of these names."""
    text, entries = text_and_entries(part.get("description", ""))
    properties = part.get("properties", {})
    for name in _FIELDS.keys() & properties.keys():
        properties[name].setdefault("description", _FIELDS[name])
    for name in entries.keys() & properties.keys():
        properties[name]["description"] = _in_json(entries[name])
    others = (f"{name}: {_in_json(entry)}" for name, entry in entries.items() if name not in properties)
    if text:
        part["description"] = "\n\n".join((text, *others))


def _in_json(entry: str) -> str:
    """Returns a sentence about a field with JSON's names of Python's values."""
    return re.sub(r"\bNone\b", "null", entry).replace("()", "[]")


def _content_of(kind: type[msgspec.Struct]) -> dict[str, Any]:
    return {"content": {"application/json": {"schema": {"$ref": _REFERENCE.format(name=kind.__name__)}}}}


def name_of(text: str, what: str = "a device") -> str:
    """Returns a name from a path.

    Raises:
        RequestError: the text is not a name.
    """
    try:
        return msgspec.convert(text, Name)
    except msgspec.ValidationError as error:
        raise RequestError(
            f"{shown(text)} cannot be the name of {what}; use 1 to 64 letters, digits, '.', '_' and '-', the first "
            "a letter or digit."
        ) from error


def version_of(text: str) -> int:
    """Returns a version, a whole number of at least 1, from a path or a query.

    Raises:
        RequestError: the text is not such a number, or has more than 18 digits.
    """
    if not (text.isascii() and text.isdigit() and len(text) <= 18 and int(text)):
        raise RequestError(f"{shown(text)} cannot be a version; give a whole number from 1 to {10**18 - 1}.")
    return int(text)


def _name(what: str) -> AfterValidator:
    return AfterValidator(partial(name_of, what=what))


def _optional_name(what: str) -> AfterValidator:
    return AfterValidator(lambda text: text and name_of(text, what))


# Parameters of routes; optional ones are "" if they are absent.
DeviceName = Annotated[str, _name("a device")]
ModelName = Annotated[str, _name("a model")]
BundleName = Annotated[str, _name("a bundle")]
MachineName = Annotated[str, _name("a machine")]
AliasName = Annotated[str, _name("an alias")]
RolloutId = Annotated[str, _name("a rollout")]
Version = Annotated[int, BeforeValidator(version_of)]
OptionalDeviceName = Annotated[str, _optional_name("a device")]
OptionalModelName = Annotated[str, _optional_name("a model")]
OptionalBundleName = Annotated[str, _optional_name("a bundle")]
OptionalMachineName = Annotated[str, _optional_name("a machine")]
OptionalConfigurationName = Annotated[
    str, Query(description="Name of the configuration."), _optional_name("a configuration")
]
OptionalRolloutId = Annotated[str, _optional_name("a rollout")]
PageLimit = Annotated[int, Query(ge=1, le=PAGE)]


def response_of(reply: Reply) -> Response:
    """Returns a reply as the framework's response."""
    return Response(reply.body, status_code=reply.status, headers=reply.headers)


def json_response(value: object) -> Response:
    """Returns a JSON response in the form of V2."""
    return response_of(json_reply(value))


def answer(value: object, status: int = 200, *, etag: str = "") -> Response:
    """Returns a JSON response, which caches must revalidate."""
    headers = {"Content-Type": "application/json", "Cache-Control": "no-cache" if etag else "no-store"}
    if etag:
        headers["ETag"] = f'"{etag}"'
    return Response(msgspec.json.encode(value), status, headers)


def cached_response(request: Request, content: bytes, etag: str, cache_control: str) -> Response:
    """Returns a JSON document, or 304 if the caller has it (`If-None-Match`)."""
    headers = {"ETag": f'"{etag}"', "Cache-Control": cache_control}
    if has_already(request.headers.get("if-none-match"), headers["ETag"]):
        return Response(status_code=304, headers=headers)
    return Response(content, headers=headers, media_type="application/json")


def check_unchanged(request: Request, etag: str) -> None:
    """Checks that a resource is still as the caller has read it (`If-Match`); without that header it is not checked.

    Raises:
        ConflictError: the resource has changed since.
    """
    condition = request.headers.get("if-match")
    if condition is not None and condition.strip() != "*" and condition.strip().strip('"') != etag:
        raise ConflictError("The resource was changed since you read it; read it again, then repeat.")


class ByteRange(NamedTuple):
    """The bytes from `start` to before `end`."""

    start: int
    end: int


def byte_range_of(size_bytes: int, range_header: str | None, if_range: str | None, etag: str) -> ByteRange | None:
    """Returns the part of a file that a request asks for.

    Args:
        size_bytes: of the file.
        range_header: the header Range.
        if_range: the header If-Range; for another ETag, or a date, the whole file is sent.
        etag: of the file, strong.

    Returns:
        The part; None if the whole file is to be sent with status 200.

    Raises:
        ValueError: the file has no such bytes; the status is 416.
    """
    if range_header is None or (if_range is not None and if_range.strip() != etag):
        return None
    match = _RANGE.fullmatch(range_header.strip().lower().replace(" ", ""))
    if match is None:
        return None
    first, last, suffix = match.groups()
    if suffix is not None:
        start, end = max(0, size_bytes - int(suffix)), size_bytes
    else:
        start, end = int(first), min(int(last) + 1, size_bytes) if last else size_bytes
        if last and int(last) < start:
            return None  # an invalid range is ignored
    if start >= end:
        raise ValueError(f"bytes={start}- begins after the end of the file")
    return ByteRange(start, end)


def has_already(if_none_match: str | None, etag: str) -> bool:
    """Returns whether the client has the current version."""
    if if_none_match is None:
        return False
    etags = {one.strip().removeprefix("W/") for one in if_none_match.split(",")}
    return etag in etags or "*" in etags
