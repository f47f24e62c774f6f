"""Routes for operators: devices, tags, the limit on escalations, and answers by tier over time."""

from __future__ import annotations

import hashlib
from contextlib import suppress
from typing import Annotated

import msgspec
from fastapi import APIRouter, Depends, Query, Request
from starlette.responses import Response

from firstline_core.errors import RequestError
from firstline_core.fleet import rest
from firstline_core.fleet.telemetry import Telemetry
from firstline_core.fleet.twin import LIMIT_BYTES, Brake, Reported
from firstline_core.protocol.limits import Limits
from firstline_gateway.api.auth import gateway_of, require_fleet
from firstline_gateway.api.fleet.shared import (
    PAGE,
    answer,
    body_of,
    body_schema,
    check_unchanged,
    conditional_answer,
    name_of,
    require_device,
)
from firstline_gateway.fleet.selector import parse_selector

_ONE = rest.DEVICES_PATH + "/{name}"

router = APIRouter(tags=["fleet"], dependencies=[Depends(require_fleet)])


@router.get(rest.DEVICES_PATH, summary="The devices by name, filtered by a selector of tags or a model.")
async def list_devices(
    request: Request,
    *,
    after: str = "",
    selector: str = "",
    model: str = "",
    version: Annotated[int | None, Query(ge=1, le=2**53)] = None,
    limit: Annotated[int, Query(ge=1, le=PAGE)] = PAGE,
) -> Response:
    name = name_of(after) if after else ""
    bundle = name_of(model, "a model") if model else ""
    chosen = parse_selector(selector)
    return answer(await gateway_of(request).fleet.page(name, limit, chosen, model=bundle, version=version))


@router.get(_ONE, summary="One device: its desired and reported state, and when it was last seen.")
async def read_device(request: Request, name: str) -> Response:
    found = await gateway_of(request).fleet.device(name_of(name))
    return conditional_answer(request, found, _etag(found))


@router.patch(_ONE, summary="Tag a device, or accept it.", openapi_extra=body_schema(rest.DeviceChange))
async def change_device(request: Request, name: str) -> Response:
    fleet, change = gateway_of(request).fleet, await body_of(request, rest.DeviceChange)
    changed = await fleet.change(
        name_of(name), change, request.state.principal, lambda seen: check_unchanged(request, _etag(seen))
    )
    return answer(changed, etag=_etag(changed))


@router.post(_ONE + "/decommission", summary="Decommission a device: revoke its access and delete its data.")
async def decommission(request: Request, name: str) -> Response:
    gateway, device = gateway_of(request), name_of(name)
    await gateway.fleet.device(device)
    with suppress(RequestError):  # it never enrolled here: its key, if it has one, is revoked by its own command
        await gateway.identity.devices.revoke(device, request.state.principal)
    await gateway.fleet.decommission(device, request.state.principal)
    return answer({"decommissioned": device})


@router.get(rest.BRAKE_PATH, summary="The limit on escalations of the whole fleet.")
async def read_brake(request: Request) -> Response:
    return answer(rest.BrakeState(await gateway_of(request).fleet.brake()))


@router.put(
    rest.BRAKE_PATH,
    summary="Limit the escalations of every device.",
    openapi_extra=body_schema(Brake),
)
async def set_brake(request: Request) -> Response:
    brake = await body_of(request, Brake)
    told = await gateway_of(request).fleet.set_brake(brake, request.state.principal)
    return answer({"brake": brake, "devices": told})


@router.delete(rest.BRAKE_PATH, summary="Remove the limit on escalations.")
async def lift_brake(request: Request) -> Response:
    told = await gateway_of(request).fleet.set_brake(None, request.state.principal)
    return answer({"brake": None, "devices": told})


@router.get(rest.TIERS_PATH, summary="Answers of the fleet by tier, over the last hours.")
async def read_tiers(
    request: Request, model: str = "", hours: Annotated[int, Query(ge=1, le=rest.TIERS_HOURS)] = 24
) -> Response:
    bundle = name_of(model, "a model") if model else ""
    return answer(await gateway_of(request).fleet.tiers(hours, bundle))


def _etag(device: rest.FleetDevice) -> str:
    """Returns the ETag of what operators change and the device reports, without the time when it was last seen."""
    said = msgspec.structs.replace(device, last_seen_age_s=None)
    return hashlib.sha256(msgspec.json.encode(said)).hexdigest()[:32]


_DOCUMENT = Limits(body_bytes=LIMIT_BYTES)

twins = APIRouter(tags=["twins"], dependencies=[Depends(require_device)])


@twins.get(rest.TWIN_PATH, summary="The desired state of this device; 304 if it is unchanged (If-None-Match).")
async def read_desired(request: Request) -> Response:
    desired = await gateway_of(request).fleet.desired(request.state.device)
    return conditional_answer(request, desired, str(desired.revision))


@twins.put(rest.REPORTED_PATH, summary="Report the state of this device.", openapi_extra=body_schema(Reported))
async def take_reported(request: Request) -> Response:
    reported = await body_of(request, Reported, _DOCUMENT)
    await gateway_of(request).fleet.report(request.state.device, reported)
    return Response(status_code=204)


@twins.post(rest.TELEMETRY_PATH, summary="Report the counters of this device.", openapi_extra=body_schema(Telemetry))
async def take_telemetry(request: Request) -> Response:
    telemetry = await body_of(request, Telemetry, _DOCUMENT)
    await gateway_of(request).fleet.count(request.state.device, telemetry)
    return Response(status_code=204)
