"""Routes of device identities: enrolment and renewal for devices; invitation and revocation for operators."""

from __future__ import annotations

from fastapi import APIRouter, Depends, Request
from starlette.responses import Response

from firstline_core.errors import UnauthorizedError
from firstline_core.protocol.enrolment import (
    CA_PATH,
    DEVICES_PATH,
    ENROL_PATH,
    RENEW_PATH,
    EnrolRequest,
    InviteRequest,
    RenewRequest,
)
from firstline_core.protocol.limits import MIB, Limits
from firstline_gateway.api.auth import address_of, gateway_of, presented_by, require_fleet
from firstline_gateway.api.fleet.shared import answer, body_of, body_schema, name_of

_STRANGERS = Limits(body_bytes=16 * 1024)
_FLEET = Limits(body_bytes=2 * MIB)
_LISTED_LIMIT = 1000

enrolment = APIRouter(tags=["devices"])
fleet = APIRouter(tags=["devices"], dependencies=[Depends(require_fleet)])


@enrolment.get(
    CA_PATH, summary="The certificate authorities for devices, as PEM. Needs no key: a join token has their hash."
)
async def read_authorities(request: Request) -> Response:
    pem = await gateway_of(request).identity.devices.authorities_pem()
    return Response(pem, media_type="application/x-pem-file")


@enrolment.post(
    ENROL_PATH,
    summary="Issue a device's first certificate for the secret of a join token.",
    openapi_extra=body_schema(EnrolRequest),
)
async def enrol(request: Request) -> Response:
    asked = await body_of(request, EnrolRequest, _STRANGERS)
    identity = gateway_of(request).identity
    return answer(await identity.devices.enrol(asked, address_of(identity, request)))


@enrolment.post(
    RENEW_PATH,
    summary="Renew a device's certificate, which may have expired some time ago.",
    openapi_extra=body_schema(RenewRequest),
)
async def renew(request: Request) -> Response:
    identity = gateway_of(request).identity
    presented = await presented_by(identity, request.scope)
    if presented is None:
        raise UnauthorizedError("Only a device renews its certificate, and must show the present one.")
    await identity.gatekeeper.device(presented, renewing=True)  # before the body is read
    return answer(await identity.devices.renew(await body_of(request, RenewRequest, _STRANGERS), presented))


@fleet.post(
    DEVICES_PATH,
    summary="Create join tokens for devices; each is shown only once.",
    openapi_extra=body_schema(InviteRequest),
)
async def invite(request: Request) -> Response:
    asked = await body_of(request, InviteRequest, _FLEET)
    return answer(await gateway_of(request).identity.devices.invite(asked, request.state.principal))


@fleet.get(DEVICES_PATH, summary="The enrolled and invited devices by name, 1,000 at a time.")
async def list_devices(request: Request, after: str = "") -> Response:
    return answer(await gateway_of(request).identity.devices.list(after and name_of(after), _LISTED_LIMIT))


@fleet.post(DEVICES_PATH + "/{name}/revoke", summary="Refuse a device from now on, and close its connections.")
async def revoke(request: Request, name: str) -> Response:
    await gateway_of(request).identity.devices.revoke(name_of(name), request.state.principal)
    return answer({"revoked": name})
