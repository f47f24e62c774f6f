"""Routes of the fleet: devices, tags, the limit on escalations and answers by tier for operators; twins for devices.

A device without a broker reads and reports its own twin here, and no other.
"""

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
from firstline_core.fleet.twin import LIMIT_BYTES, Brake, Desired, Reported
from firstline_core.protocol.limits import Limits
from firstline_gateway.api.auth import CallingDevice, Operator, OwnSelector, device_only, scope
from firstline_gateway.api.fleet.rollouts import Seen
from firstline_gateway.api.messages import (
    IF_MATCH,
    PAGE,
    UNCHANGED,
    DeviceName,
    OptionalDeviceName,
    OptionalModelName,
    PageLimit,
    answer,
    body_of,
    cached_response,
    check_unchanged,
    known_parameters,
    schemas,
    tagged,
)
from firstline_gateway.api.services import DevicesDep, FleetDep
from firstline_gateway.fleet.devices import Filter

_ONE = rest.DEVICES_PATH + "/{name}"

_CHANGE = schemas(rest.FleetDevice, takes=rest.DeviceChange, also=tagged(IF_MATCH))
_DOCUMENT = Limits(body_bytes=LIMIT_BYTES)

# The routes of the devices, one by one and together, for operators.
router = APIRouter(tags=["fleet"], dependencies=[Depends(scope("fleet")), Depends(known_parameters)])
# The routes of a device that has no broker.
twin_router = APIRouter(tags=["twins"], dependencies=[Depends(device_only), Depends(known_parameters)])


@router.get(rest.DEVICES_PATH, openapi_extra=schemas(rest.FleetDevicePage))
async def list_devices(
    *,
    fleet: FleetDep,
    after: OptionalDeviceName = "",
    selector: OwnSelector,
    search: Annotated[str, Query(max_length=64)] = "",
    model: OptionalModelName = "",
    version: Annotated[int | None, Query(ge=1, le=2**53)] = None,
    presence: rest.Presence | None = None,
    accepted: bool | None = None,
    sort: rest.Sort = rest.Sort.NAME,
    limit: PageLimit = PAGE,
) -> Response:
    """The devices, filtered by a selector of tags, a part of the name, a model and presence."""
    device_filter = Filter(selector, search, model, version, presence, accepted)
    return answer(await fleet.page(after, limit, device_filter, sort))


@router.get(_ONE, openapi_extra=schemas(rest.FleetDevice, also=UNCHANGED))
async def read_device(fleet: FleetDep, request: Request, name: DeviceName) -> Response:
    """One device: its desired and reported state, and when it was last seen."""
    device = await fleet.device(name)
    return cached_response(request, msgspec.json.encode(device), _etag(device), "no-cache")


@router.patch(_ONE, openapi_extra=_CHANGE)
async def change_device(fleet: FleetDep, request: Request, principal: Operator, name: DeviceName) -> Response:
    """Tag a device, or accept it."""
    change = await body_of(request, rest.DeviceChange)
    changed = await fleet.change(name, change, principal, lambda seen: check_unchanged(request, _etag(seen)))
    return answer(changed, etag=_etag(changed))


@router.post(_ONE + "/decommission")
async def decommission(fleet: FleetDep, enrolled: DevicesDep, principal: Operator, name: DeviceName) -> Response:
    """Decommission a device: revoke its access and delete its data."""
    await fleet.device(name)
    with suppress(RequestError):  # it never enrolled here: its key, if it has one, is revoked by its own command
        await enrolled.revoke(name, principal)
    await fleet.decommission(name, principal)
    return answer({"decommissioned": name})


@router.get(rest.OVERVIEW_PATH, openapi_extra=schemas(rest.FleetOverview))
async def read_overview(
    fleet: FleetDep, seen: Seen, selector: OwnSelector, tag: Annotated[str, Query(max_length=63)] = "site"
) -> Response:
    """The fleet now: devices by presence and tag, agents, outboxes, certificates, and rollouts that wait."""
    found = await fleet.overview(tag, selector)
    waiting = await seen.rollouts.waiting(rest.LISTED, seen.sees)
    return answer(msgspec.structs.replace(found, waiting=waiting))


@router.get(rest.BRAKE_PATH, openapi_extra=schemas(rest.BrakeState))
async def read_brake(fleet: FleetDep) -> Response:
    """The limit on escalations of the whole fleet."""
    return answer(rest.BrakeState(await fleet.brake()))


@router.put(rest.BRAKE_PATH, openapi_extra=schemas(takes=Brake))
async def set_brake(fleet: FleetDep, request: Request, principal: Operator) -> Response:
    """Limit the escalations of every device."""
    brake = await body_of(request, Brake)
    informed = await fleet.set_brake(brake, principal)
    return answer({"brake": brake, "devices": informed})


@router.delete(rest.BRAKE_PATH)
async def lift_brake(fleet: FleetDep, principal: Operator) -> Response:
    """Remove the limit on escalations."""
    informed = await fleet.set_brake(None, principal)
    return answer({"brake": None, "devices": informed})


@router.get(rest.TIERS_PATH, openapi_extra=schemas(rest.TierHistory))
async def read_tiers(
    fleet: FleetDep, model: OptionalModelName = "", hours: Annotated[int, Query(ge=1, le=rest.TIERS_HOURS)] = 24
) -> Response:
    """Answers of the fleet by tier, over the last hours."""
    return answer(await fleet.tiers(hours, model))


def _etag(device: rest.FleetDevice) -> str:
    """Returns the ETag of what operators change and the device reports, without what passes with time."""
    stable = msgspec.structs.replace(device, last_seen_age_s=None, latest=None)
    return hashlib.sha256(msgspec.json.encode(stable)).hexdigest()[:32]


@twin_router.get(rest.TWIN_PATH, openapi_extra=schemas(Desired, also=UNCHANGED))
async def read_desired(fleet: FleetDep, request: Request, device: CallingDevice) -> Response:
    """The desired state of this device; 304 if it is unchanged (If-None-Match)."""
    desired = await fleet.desired(device)
    return cached_response(request, msgspec.json.encode(desired), str(desired.revision), "no-cache")


@twin_router.put(rest.REPORTED_PATH, status_code=204, openapi_extra=schemas(takes=Reported))
async def take_reported(fleet: FleetDep, request: Request, device: CallingDevice) -> Response:
    """Report the state of this device."""
    reported = await body_of(request, Reported, _DOCUMENT)
    await fleet.report(device, reported)
    return Response(status_code=204)


@twin_router.post(rest.TELEMETRY_PATH, status_code=204, openapi_extra=schemas(takes=Telemetry))
async def take_telemetry(fleet: FleetDep, request: Request, device: CallingDevice) -> Response:
    """Report the counters of this device."""
    telemetry = await body_of(request, Telemetry, _DOCUMENT)
    await fleet.take_telemetry(device, telemetry)
    return Response(status_code=204)
