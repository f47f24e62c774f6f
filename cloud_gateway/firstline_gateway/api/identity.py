"""Devices: they enrol and renew; and whoever keeps the fleet invites, lists and revokes them."""

from __future__ import annotations

from typing import Annotated, Any, TypeVar

import msgspec
from fastapi import APIRouter, Depends, Request
from fastapi.security import HTTPBearer
from starlette.responses import Response

from firstline_core.errors import RequestError, UnauthorizedError
from firstline_core.names import Name
from firstline_core.protocol.enrolment import (
    CA_PATH,
    DEVICES_PATH,
    ENROL_PATH,
    RENEW_PATH,
    EnrolRequest,
    InviteRequest,
    RenewRequest,
)
from firstline_core.protocol.http import Reply
from firstline_core.protocol.http_body import read_body
from firstline_core.protocol.limits import MIB, Limits
from firstline_core.protocol.tensors import shown
from firstline_gateway.api.auth import address_of, authorize, presented_by
from firstline_gateway.api.bodies import in_time
from firstline_gateway.api.control import gateway_of
from firstline_gateway.api.errors import response_of

_STRANGERS = Limits(body_bytes=16 * 1024)
_FLEET = Limits(body_bytes=2 * MIB)
_LISTED_LIMIT = 1000

_T = TypeVar("_T")


async def _keeper(
    request: Request,
    _documented: Annotated[
        object, Depends(HTTPBearer(auto_error=False, description="An API key with the scope 'fleet'."))
    ],
) -> None:
    caller = await authorize(gateway_of(request).identity, request, "fleet")
    request.state.principal = caller.principal


def _body(kind: type[msgspec.Struct]) -> dict[str, Any]:
    """A route's body for the API's description."""
    (_,), definitions = msgspec.json.schema_components([kind])
    schema = definitions[kind.__name__]
    return {"requestBody": {"required": True, "content": {"application/json": {"schema": schema}}}}


enrolment = APIRouter(tags=["devices"])
fleet = APIRouter(tags=["devices"], dependencies=[Depends(_keeper)])


@enrolment.get(
    CA_PATH, summary="The authorities that a device believes, as PEM. Needs no key: a join token has the hash."
)
async def read_authorities(request: Request) -> Response:
    pem = await gateway_of(request).identity.devices.authorities_pem()
    return Response(pem, media_type="application/x-pem-file")


@enrolment.post(
    ENROL_PATH, summary="A device's first certificate, for a join token's secret.", openapi_extra=_body(EnrolRequest)
)
async def enrol(request: Request) -> Response:
    asked = await _read(request, EnrolRequest, _STRANGERS)
    identity = gateway_of(request).identity
    return _json(await identity.devices.enrol(asked, address_of(identity, request)))


@enrolment.post(
    RENEW_PATH,
    summary="A device's next certificate, for its present one, which may have expired some time ago.",
    openapi_extra=_body(RenewRequest),
)
async def renew(request: Request) -> Response:
    identity = gateway_of(request).identity
    presented = await presented_by(identity, request)
    if presented is None:
        raise UnauthorizedError("Only a device renews its certificate, and shows the present one to do so.")
    await identity.gatekeeper.device(presented, renewing=True)  # before the body is read
    return _json(await identity.devices.renew(await _read(request, RenewRequest, _STRANGERS), presented))


@fleet.post(
    DEVICES_PATH,
    summary="Join tokens for devices, each shown this once.",
    openapi_extra=_body(InviteRequest),
)
async def invite(request: Request) -> Response:
    asked = await _read(request, InviteRequest, _FLEET)
    return _json(await gateway_of(request).identity.devices.invite(asked, request.state.principal))


@fleet.get(DEVICES_PATH, summary="The devices that are enrolled or invited, by name, a thousand at a time.")
async def list_devices(request: Request, after: str = "") -> Response:
    return _json(await gateway_of(request).identity.devices.list(after and _name(after), _LISTED_LIMIT))


@fleet.post(DEVICES_PATH + "/{name}/revoke", summary="Refuse a device from now on, and close its connections.")
async def revoke(request: Request, name: str) -> Response:
    await gateway_of(request).identity.devices.revoke(_name(name), request.state.principal)
    return _json({"revoked": name})


async def _read(request: Request, kind: type[_T], limits: Limits) -> _T:
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


def _name(text: str) -> str:
    """A device's name.

    Raises:
        RequestError: it cannot be one.
    """
    try:
        return msgspec.convert(text, Name)
    except msgspec.ValidationError as error:
        raise RequestError(f"{shown(text)} cannot be a device's name.") from error


def _json(value: object) -> Response:
    # Certificates and tokens are for nobody's cache.
    headers = {"Content-Type": "application/json", "Cache-Control": "no-store"}
    return response_of(Reply(200, headers, msgspec.json.encode(value)))
