"""What the fleet's routes share: who asks, bodies, names, and answers that may not have changed."""

from __future__ import annotations

from typing import Annotated, Any, TypeVar

import msgspec
from fastapi import Depends, Request
from fastapi.security import HTTPBearer
from starlette.responses import Response

from firstline_core.errors import ConflictError, ForbiddenError, RequestError
from firstline_core.protocol.enrolment import device_of_principal
from firstline_core.protocol.http_body import in_time, read_body
from firstline_core.protocol.limits import MIB, Limits
from firstline_core.protocol.tensors import shown
from firstline_core.types import Name
from firstline_gateway.api.asked import gateway_of
from firstline_gateway.api.auth import authenticate, check_scope

BODY = Limits(body_bytes=MIB)
PAGE = 1000
"""Most items on a page."""

_T = TypeVar("_T")


async def device(
    request: Request,
    _documented: Annotated[
        object, Depends(HTTPBearer(auto_error=False, description="A device's key; or its client certificate."))
    ],
) -> None:
    """Only for devices; `request.state.device` is then the name that its certificate or key says, and nothing else."""
    caller = await authenticate(gateway_of(request).identity, request)
    name = device_of_principal(caller.principal) if caller.principal else None
    if name is None:
        raise ForbiddenError(
            "This address is for devices, each of which it knows by its certificate or its key; switch authentication "
            "on (auth.mode), and have the device join."
        )
    request.state.device = name


async def device_or_keeper(
    request: Request,
    _documented: Annotated[
        object,
        Depends(HTTPBearer(auto_error=False, description="A device's key, or an API key with the scope 'fleet'.")),
    ],
) -> None:
    """For devices, by their certificate or key, and for who keeps the fleet."""
    caller = await authenticate(gateway_of(request).identity, request)
    if device_of_principal(caller.principal) is None:
        check_scope(caller, "fleet")


async def body_of(request: Request, kind: type[_T], limits: Limits = BODY) -> _T:
    """The body as JSON.

    Raises:
        RequestError: it is none, or says something else.
        PayloadTooLargeError: over the limit.
        RemoteTimeoutError: it comes too slowly.
    """
    body = await read_body(in_time(request.stream()), request.headers, limits)
    try:
        return msgspec.json.decode(body, type=kind)
    except msgspec.ValidationError as error:
        raise RequestError(f"The body does not say what it must: {error}.") from error
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise RequestError(f"The body is not JSON: {error}.") from error


def described(kind: type[msgspec.Struct]) -> dict[str, Any]:
    """A route's body for the API's description."""
    (_,), definitions = msgspec.json.schema_components([kind], ref_template="#/components/schemas/{name}")
    schema = definitions[kind.__name__]
    return {"requestBody": {"required": True, "content": {"application/json": {"schema": schema}}}}


def name_of(text: str, what: str = "a device") -> str:
    """A name from a path.

    Raises:
        RequestError: it cannot be one.
    """
    try:
        return msgspec.convert(text, Name)
    except msgspec.ValidationError as error:
        raise RequestError(f"{shown(text)} cannot be the name of {what}.") from error


def number_of(text: str, what: str, most: int = 10**18 - 1) -> int:
    """A whole number from 1 on, from a path or a query.

    Raises:
        RequestError: it is none, or more than that.
    """
    if not (text.isascii() and text.isdigit() and len(text) <= 18 and 1 <= int(text) <= most):
        raise RequestError(f"{shown(text)} cannot be {what}; give a whole number from 1 to {most}.")
    return int(text)


def answer(value: object, status: int = 200, *, etag: str = "") -> Response:
    """JSON that no cache keeps without asking again."""
    headers = {"Content-Type": "application/json", "Cache-Control": "no-cache" if etag else "no-store"}
    if etag:
        headers["ETag"] = f'"{etag}"'
    return Response(msgspec.json.encode(value), status, headers)


def unless_known(request: Request, value: object, etag: str) -> Response:
    """The answer, or 304 where the caller has it (`If-None-Match`)."""
    known = request.headers.get("if-none-match", "")
    if etag in (tag.strip().removeprefix("W/").strip('"') for tag in known.split(",")):
        return Response(status_code=304, headers={"ETag": f'"{etag}"', "Cache-Control": "no-cache"})
    return answer(value, etag=etag)


def check_unchanged(request: Request, etag: str) -> None:
    """Whether what the caller wants to change is what it has seen (`If-Match`); without that header it does not care.

    Raises:
        ConflictError: somebody else has changed it since.
    """
    wanted = request.headers.get("if-match")
    if wanted is not None and wanted.strip() != "*" and wanted.strip().strip('"') != etag:
        raise ConflictError("It was changed since you looked at it; look again, then repeat.")
