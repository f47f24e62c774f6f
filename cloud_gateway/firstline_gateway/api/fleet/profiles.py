"""Routes of profiles: the measured costs of models by machine, and requests to devices to measure them."""

from __future__ import annotations

import asyncio
from typing import Annotated

from fastapi import APIRouter, Depends, Request
from starlette.responses import Response

from firstline_core.errors import ForbiddenError, RequestError
from firstline_core.fleet import profiles as wire
from firstline_core.profile.profile import Profile
from firstline_core.protocol.limits import Limits
from firstline_gateway.api.auth import CallingDevice, Operator, Sees, device_only, scope
from firstline_gateway.api.messages import (
    NEW,
    UNCHANGED,
    BundleName,
    DeviceName,
    MachineName,
    OptionalBundleName,
    OptionalMachineName,
    PageLimit,
    Version,
    answer,
    body_of,
    cached_response,
    known_parameters,
    name_of,
    read_body,
    schemas,
    version_of,
)
from firstline_gateway.api.services import ProfilesDep
from firstline_gateway.profiles.profiles import read_uploaded
from firstline_gateway.profiles.records import Place

_DOCUMENT = Limits(body_bytes=wire.BODY_BYTES)
_ONE = wire.PROFILES_PATH + "/{bundle}/versions/{version}/machines/{machine}"
_REQUESTS = wire.requests_path("{name}")

# The routes of the stored profiles, and of requests to devices, for operators.
router = APIRouter(tags=["profiles"], dependencies=[Depends(scope("fleet")), Depends(known_parameters)])
# The route with which a device sends its profiles.
own_router = APIRouter(tags=["twins"], dependencies=[Depends(device_only), Depends(known_parameters)])


async def place_of(bundle: BundleName, version: Version, machine: MachineName) -> Place:
    """Returns the place of a profile, from a path."""
    return bundle, version, machine


_ASK = schemas(wire.ProfileRequest, 200, 201, takes=wire.NewProfileRequest)
PlaceDep = Annotated[Place, Depends(place_of)]


@router.get(wire.PROFILES_PATH, openapi_extra=schemas(wire.ProfilePage))
async def list_profiles(
    *,
    profiles: ProfilesDep,
    sees: Sees,
    after: str = "",
    bundle: OptionalBundleName = "",
    machine: OptionalMachineName = "",
    limit: PageLimit = 200,
) -> Response:
    """The stored profiles, by bundle, version and machine (after=BUNDLE/VERSION/MACHINE)."""
    behind: Place = ("", 0, "")
    if after:
        if after.count("/") != 2:
            raise RequestError("`after` is what the page before said: BUNDLE/VERSION/MACHINE.")
        name, version, other = after.split("/")
        behind = name_of(name, "a bundle"), version_of(version), name_of(other, "a machine")
    shown: tuple[wire.ProfileEntry, ...] = ()
    more = True
    while more and not shown:
        read, more = await profiles.page(behind, limit, bundle=bundle, machine=machine)
        seen = {name for name in {one.machine for one in read} if await sees(name)}
        shown = tuple(one for one in read if one.machine in seen)
        behind = read[-1].place if read else behind
    # The last one that is shown: a cursor must not name another machine.
    return answer(wire.ProfilePage(shown, "{}/{}/{}".format(*shown[-1].place) if more else None))


@router.get(_ONE, openapi_extra=schemas(Profile, also=UNCHANGED))
async def read_profile(profiles: ProfilesDep, request: Request, place: PlaceDep, sees: Sees) -> Response:
    """One profile."""
    if not await sees(place[2]):
        raise ForbiddenError(f"The machine {place[2]} is not among the devices that you see.")
    entry, content = await profiles.get(place)
    return cached_response(request, content, entry.sha256, "private, no-cache")


@router.put(_ONE, openapi_extra=schemas(wire.ProfileEntry, takes=Profile))
async def write_profile(profiles: ProfilesDep, request: Request, principal: Operator, place: PlaceDep) -> Response:
    """Store a profile, and replace the previous one."""
    entry, content = await _uploaded(request, place)
    return answer(await profiles.put(entry, content, principal))


@router.delete(_ONE)
async def remove_profile(profiles: ProfilesDep, principal: Operator, place: PlaceDep) -> Response:
    """Delete a profile."""
    await profiles.remove(place, principal)
    return answer({"removed": {"bundle": place[0], "version": place[1], "machine": place[2]}})


@router.get(_REQUESTS, openapi_extra=schemas(wire.ProfileRequests))
async def list_requests(profiles: ProfilesDep, name: DeviceName) -> Response:
    """The measurements requested from a device, and their progress."""
    return answer(await profiles.requests_of(name))


@router.post(_REQUESTS, responses=NEW, openapi_extra=_ASK)
async def ask(profiles: ProfilesDep, request: Request, principal: Operator, name: DeviceName) -> Response:
    """Request that a device measures a bundle: 201 if new, 200 if already requested."""
    new_request = await body_of(request, wire.NewProfileRequest)
    created = await profiles.request(name, new_request, principal)
    return answer(created, 201 if created.new else 200)


@router.delete(_REQUESTS + "/{bundle}")
async def cancel(profiles: ProfilesDep, principal: Operator, name: DeviceName, bundle: BundleName) -> Response:
    """Cancel such a request."""
    await profiles.cancel_request(name, bundle, principal)
    return answer({"cancelled": {"device": name, "bundle": bundle}})


@own_router.put(
    wire.OWN_PROFILES_PATH + "/{bundle}/versions/{version}", openapi_extra=schemas(wire.ProfileEntry, takes=Profile)
)
async def write_own(
    profiles: ProfilesDep, request: Request, device: CallingDevice, bundle: BundleName, version: Version
) -> Response:
    """Store the profile that was requested from the calling device."""
    await profiles.check_requested(device, bundle, version)  # before megabytes arrive that were not requested
    entry, content = await _uploaded(request, (bundle, version, device))
    return answer(await profiles.take(entry, content, device))


async def _uploaded(request: Request, place: Place) -> tuple[wire.ProfileEntry, bytes]:
    content = await read_body(request, _DOCUMENT)
    return await asyncio.to_thread(read_uploaded, content, place), content
