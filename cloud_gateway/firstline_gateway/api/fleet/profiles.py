"""Routes of profiles: the measured costs of models by machine, and requests to devices to measure them."""

from __future__ import annotations

import asyncio
from typing import Annotated

from fastapi import APIRouter, Depends, Query, Request
from starlette.responses import Response

from firstline_core.errors import RequestError
from firstline_core.fleet.profiles import (
    BODY_BYTES,
    OWN_PROFILES_PATH,
    PROFILES_PATH,
    ProfileAsked,
    ProfileEntry,
    requests_path,
)
from firstline_core.profile.profile import Profile
from firstline_core.protocol.http_body import in_time, read_body
from firstline_core.protocol.limits import Limits
from firstline_gateway.api.auth import gateway_of, require_fleet
from firstline_gateway.api.fleet.shared import (
    PAGE,
    answer,
    body_of,
    body_schema,
    has_already,
    name_of,
    number_of,
    require_device,
)
from firstline_gateway.profiles.profiles import read_uploaded
from firstline_gateway.profiles.records import Place

_DOCUMENT = Limits(body_bytes=BODY_BYTES)
_ONE = PROFILES_PATH + "/{bundle}/versions/{version}/machines/{machine}"

_ASKED = requests_path("{name}")

router = APIRouter(tags=["profiles"], dependencies=[Depends(require_fleet)])
own = APIRouter(tags=["twins"], dependencies=[Depends(require_device)])


@router.get(
    PROFILES_PATH,
    summary="The stored profiles, by bundle, version and machine (after=BUNDLE/VERSION/MACHINE).",
)
async def list_profiles(
    request: Request,
    *,
    after: str = "",
    bundle: str = "",
    machine: str = "",
    limit: Annotated[int, Query(ge=1, le=PAGE)] = 200,
) -> Response:
    behind: Place = _place(*after.split("/")) if after.count("/") == 2 else ("", 0, "")
    if after and not behind[0]:
        raise RequestError("`after` is what the page before said: BUNDLE/VERSION/MACHINE.")
    found = await gateway_of(request).profiles.page(
        behind,
        limit,
        bundle=bundle and name_of(bundle, "a bundle"),
        machine=machine and name_of(machine, "a machine"),
    )
    return answer(found)


@router.get(_ONE, summary="One profile.")
async def read_profile(request: Request, bundle: str, version: str, machine: str) -> Response:
    entry, content = await gateway_of(request).profiles.get(_place(bundle, version, machine))
    headers = {"ETag": f'"{entry.sha256}"', "Cache-Control": "private, no-cache"}
    if has_already(request.headers.get("if-none-match"), headers["ETag"]):
        return Response(status_code=304, headers=headers)
    return Response(content, headers=headers, media_type="application/json")


@router.put(_ONE, summary="Store a profile, and replace the previous one.", openapi_extra=body_schema(Profile))
async def write_profile(request: Request, bundle: str, version: str, machine: str) -> Response:
    place = _place(bundle, version, machine)
    entry, content = await _uploaded(request, place)
    return answer(await gateway_of(request).profiles.put(entry, content, request.state.principal))


@router.delete(_ONE, summary="Delete a profile.")
async def remove_profile(request: Request, bundle: str, version: str, machine: str) -> Response:
    place = _place(bundle, version, machine)
    await gateway_of(request).profiles.remove(place, request.state.principal)
    return answer({"removed": {"bundle": place[0], "version": place[1], "machine": place[2]}})


@router.get(_ASKED, summary="The measurements requested from a device, and their progress.")
async def list_requests(request: Request, name: str) -> Response:
    return answer(await gateway_of(request).profile_requests.of(name_of(name)))


@router.post(
    _ASKED,
    summary="Request that a device measures a bundle: 201 if new, 200 if already requested.",
    openapi_extra=body_schema(ProfileAsked),
)
async def ask(request: Request, name: str) -> Response:
    asked = await body_of(request, ProfileAsked)
    found = await gateway_of(request).profile_requests.ask(name_of(name), asked, request.state.principal)
    return answer(found, 201 if found.new else 200)


@router.delete(_ASKED + "/{bundle}", summary="Cancel such a request.")
async def cancel(request: Request, name: str, bundle: str) -> Response:
    asked = name_of(name), name_of(bundle, "a bundle")
    await gateway_of(request).profile_requests.cancel(*asked, request.state.principal)
    return answer({"cancelled": {"device": asked[0], "bundle": asked[1]}})


@own.put(
    OWN_PROFILES_PATH + "/{bundle}/versions/{version}",
    summary="Store the profile that was requested from the calling device.",
    openapi_extra=body_schema(Profile),
)
async def write_own(request: Request, bundle: str, version: str) -> Response:
    profiles, place = gateway_of(request).profiles, _place(bundle, version, request.state.device)
    await profiles.check_requested(place[2], place[0], place[1])  # before megabytes arrive that were not requested
    entry, content = await _uploaded(request, place)
    return answer(await profiles.take(entry, content, place[2]))


async def _uploaded(request: Request, place: Place) -> tuple[ProfileEntry, bytes]:
    content = await read_body(in_time(request.stream()), request.headers, _DOCUMENT)
    return await asyncio.to_thread(read_uploaded, content, place), content


def _place(bundle: str, version: str, machine: str) -> Place:
    return name_of(bundle, "a bundle"), number_of(version, "a version"), name_of(machine, "a machine")
