"""For people: the fleet's devices, their tags, the brake, and who answered over time."""

from __future__ import annotations

import hashlib
from contextlib import suppress
from typing import Annotated

import msgspec
from fastapi import APIRouter, Depends, Query, Request
from starlette.responses import Response

from firstline_core.errors import RequestError
from firstline_core.fleet import rest
from firstline_core.fleet.twin import Brake
from firstline_gateway.api.asked import gateway_of, keeper
from firstline_gateway.api.fleet.asking import (
    PAGE,
    answer,
    body_of,
    check_unchanged,
    described,
    name_of,
    unless_known,
)
from firstline_gateway.fleet.selector import parse_selector

_ONE = rest.DEVICES_PATH + "/{name}"

router = APIRouter(tags=["fleet"], dependencies=[Depends(keeper)])


@router.get(rest.DEVICES_PATH, summary="The devices by name: those that a selector of tags means, or that run a model.")
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


@router.get(_ONE, summary="One device: what it is to run, what it runs, and when it was last heard of.")
async def read_device(request: Request, name: str) -> Response:
    found = await gateway_of(request).fleet.device(name_of(name))
    return unless_known(request, found, _etag(found))


@router.patch(_ONE, summary="Tag a device, and let it in.", openapi_extra=described(rest.DeviceChange))
async def change_device(request: Request, name: str) -> Response:
    fleet, change = gateway_of(request).fleet, await body_of(request, rest.DeviceChange)
    changed = await fleet.change(
        name_of(name), change, request.state.principal, lambda seen: check_unchanged(request, _etag(seen))
    )
    return answer(changed, etag=_etag(changed))


@router.post(_ONE + "/decommission", summary="Send a device away for good: no access, and nothing kept of it.")
async def decommission(request: Request, name: str) -> Response:
    gateway, device = gateway_of(request), name_of(name)
    await gateway.fleet.device(device)
    with suppress(RequestError):  # it never enrolled here: its key, if it has one, is revoked by its own command
        await gateway.identity.devices.revoke(device, request.state.principal)
    await gateway.fleet.decommission(device, request.state.principal)
    return answer({"decommissioned": device})


@router.get(rest.BRAKE_PATH, summary="Whether the whole fleet's escalation is braked.")
async def read_brake(request: Request) -> Response:
    return answer(rest.BrakeState(await gateway_of(request).fleet.brake()))


@router.put(
    rest.BRAKE_PATH,
    summary="Brake the whole fleet: no device escalates more than this.",
    openapi_extra=described(Brake),
)
async def set_brake(request: Request) -> Response:
    brake = await body_of(request, Brake)
    told = await gateway_of(request).fleet.set_brake(brake, request.state.principal)
    return answer({"brake": brake, "devices": told})


@router.delete(rest.BRAKE_PATH, summary="Lift the brake.")
async def lift_brake(request: Request) -> Response:
    told = await gateway_of(request).fleet.set_brake(None, request.state.principal)
    return answer({"brake": None, "devices": told})


@router.get(rest.TIERS_PATH, summary="Who answered what the fleet was asked, over the last hours.")
async def read_tiers(
    request: Request, model: str = "", hours: Annotated[int, Query(ge=1, le=rest.TIERS_HOURS)] = 24
) -> Response:
    bundle = name_of(model, "a model") if model else ""
    return answer(await gateway_of(request).fleet.tiers(hours, bundle))


def _etag(device: rest.FleetDevice) -> str:
    """Of what people may change, and what the device says; not of how long ago it was heard of."""
    said = msgspec.structs.replace(device, last_seen_age_s=None)
    return hashlib.sha256(msgspec.json.encode(said)).hexdigest()[:32]
