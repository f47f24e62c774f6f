"""Routes of device identities: enrolment and renewal for devices; invitation and revocation for operators."""

from __future__ import annotations

from fastapi import APIRouter, Depends, Request
from starlette.responses import Response

from firstline_core.errors import UnauthorizedError
from firstline_core.protocol import enrolment as wire
from firstline_core.protocol.limits import Limits
from firstline_core.units import MIB
from firstline_gateway.api.auth import Operator, certificate_of, client_address, scope
from firstline_gateway.api.messages import DeviceName, OptionalDeviceName, answer, body_of, known_parameters, schemas
from firstline_gateway.api.services import DevicesDep, IdentityDep

_STRANGERS = Limits(body_bytes=16 * 1024)
_FLEET = Limits(body_bytes=2 * MIB)
_LISTED_LIMIT = 1000

# Without a scope: a device that enrols has no certificate yet, and one that renews may show an expired one.
enrolment_router = APIRouter(tags=["devices"], dependencies=[Depends(known_parameters)])
router = APIRouter(tags=["devices"], dependencies=[Depends(scope("fleet")), Depends(known_parameters)])


class _Pem(Response):
    media_type = "application/x-pem-file"


@enrolment_router.get(wire.CA_PATH, response_class=_Pem)
async def read_authorities(identity: IdentityDep) -> Response:
    """The certificate authorities for devices, as PEM. Needs no key: a join token has their hash."""
    pem = await identity.devices.authorities_pem()
    return _Pem(pem)


@enrolment_router.post(wire.ENROL_PATH, openapi_extra=schemas(wire.EnrolAnswer, takes=wire.EnrolRequest))
async def enrol(identity: IdentityDep, request: Request) -> Response:
    """Issue a device's first certificate for the secret of a join token."""
    request_body = await body_of(request, wire.EnrolRequest, _STRANGERS)
    return answer(await identity.devices.enrol(request_body, client_address(identity, request)))


@enrolment_router.post(wire.RENEW_PATH, openapi_extra=schemas(wire.EnrolAnswer, takes=wire.RenewRequest))
async def renew(identity: IdentityDep, request: Request) -> Response:
    """Renew a device's certificate, which may have expired some time ago."""
    certificate = await certificate_of(identity, request.scope)
    if certificate is None:
        raise UnauthorizedError("Only a device renews its certificate, and must show the present one.")
    await identity.gatekeeper.authenticate_certificate(certificate, renewing=True)  # before the body is read
    return answer(await identity.devices.renew(await body_of(request, wire.RenewRequest, _STRANGERS), certificate))


@router.post(wire.DEVICES_PATH, openapi_extra=schemas(wire.InviteAnswer, takes=wire.InviteRequest))
async def invite(devices: DevicesDep, request: Request, principal: Operator) -> Response:
    """Create join tokens for devices; each is shown only once."""
    request_body = await body_of(request, wire.InviteRequest, _FLEET)
    return answer(await devices.invite(request_body, principal))


@router.get(wire.DEVICES_PATH, openapi_extra=schemas(wire.DeviceList))
async def list_devices(devices: DevicesDep, after: OptionalDeviceName = "") -> Response:
    """The enrolled and invited devices by name, 1,000 at a time."""
    return answer(await devices.list(after, _LISTED_LIMIT))


@router.post(wire.DEVICES_PATH + "/{name}/revoke")
async def revoke(devices: DevicesDep, principal: Operator, name: DeviceName) -> Response:
    """Refuse a device from now on, and close its connections."""
    await devices.revoke(name, principal)
    return answer({"revoked": name})
