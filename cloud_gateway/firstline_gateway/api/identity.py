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
from firstline_gateway.api.auth import GatewayDep, OperatorDep, address_of, certificate_of, require_fleet
from firstline_gateway.api.messages import DeviceName, OptionalDeviceName, answer, body_of, body_schema

_STRANGERS = Limits(body_bytes=16 * 1024)
_FLEET = Limits(body_bytes=2 * MIB)
_LISTED_LIMIT = 1000

enrolment = APIRouter(tags=["devices"])
fleet = APIRouter(tags=["devices"], dependencies=[Depends(require_fleet)])


@enrolment.get(CA_PATH)
async def read_authorities(gateway: GatewayDep) -> Response:
    """The certificate authorities for devices, as PEM. Needs no key: a join token has their hash."""
    pem = await gateway.identity.devices.authorities_pem()
    return Response(pem, media_type="application/x-pem-file")


@enrolment.post(ENROL_PATH, openapi_extra=body_schema(EnrolRequest))
async def enrol(request: Request, gateway: GatewayDep) -> Response:
    """Issue a device's first certificate for the secret of a join token."""
    request_body = await body_of(request, EnrolRequest, _STRANGERS)
    identity = gateway.identity
    return answer(await identity.devices.enrol(request_body, address_of(identity, request)))


@enrolment.post(RENEW_PATH, openapi_extra=body_schema(RenewRequest))
async def renew(request: Request, gateway: GatewayDep) -> Response:
    """Renew a device's certificate, which may have expired some time ago."""
    identity = gateway.identity
    certificate = await certificate_of(identity, request.scope)
    if certificate is None:
        raise UnauthorizedError("Only a device renews its certificate, and must show the present one.")
    await identity.gatekeeper.authenticate_certificate(certificate, renewing=True)  # before the body is read
    return answer(await identity.devices.renew(await body_of(request, RenewRequest, _STRANGERS), certificate))


@fleet.post(DEVICES_PATH, openapi_extra=body_schema(InviteRequest))
async def invite(request: Request, gateway: GatewayDep, principal: OperatorDep) -> Response:
    """Create join tokens for devices; each is shown only once."""
    request_body = await body_of(request, InviteRequest, _FLEET)
    return answer(await gateway.identity.devices.invite(request_body, principal))


@fleet.get(DEVICES_PATH)
async def list_devices(gateway: GatewayDep, after: OptionalDeviceName = "") -> Response:
    """The enrolled and invited devices by name, 1,000 at a time."""
    return answer(await gateway.identity.devices.list(after, _LISTED_LIMIT))


@fleet.post(DEVICES_PATH + "/{name}/revoke")
async def revoke(gateway: GatewayDep, principal: OperatorDep, name: DeviceName) -> Response:
    """Refuse a device from now on, and close its connections."""
    await gateway.identity.devices.revoke(name, principal)
    return answer({"revoked": name})
