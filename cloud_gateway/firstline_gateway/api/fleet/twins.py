"""For devices without a broker: what to run, and what runs. A device has its own twin and sees no other."""

from __future__ import annotations

from fastapi import APIRouter, Depends, Request
from starlette.responses import Response

from firstline_core.fleet import rest
from firstline_core.fleet.telemetry import Telemetry
from firstline_core.fleet.twin import LIMIT_BYTES, Reported
from firstline_core.protocol.limits import Limits
from firstline_gateway.api.asked import gateway_of
from firstline_gateway.api.fleet.asking import body_of, described, device, unless_known

_DOCUMENT = Limits(body_bytes=LIMIT_BYTES)

router = APIRouter(tags=["twins"], dependencies=[Depends(device)])


@router.get(rest.TWIN_PATH, summary="What this device is to run; 304 where that is what it knows (If-None-Match).")
async def read_desired(request: Request) -> Response:
    desired = await gateway_of(request).fleet.desired(request.state.device)
    return unless_known(request, desired, str(desired.revision))


@router.put(rest.REPORTED_PATH, summary="What this device runs.", openapi_extra=described(Reported))
async def take_reported(request: Request) -> Response:
    reported = await body_of(request, Reported, _DOCUMENT)
    await gateway_of(request).fleet.report(request.state.device, reported)
    return Response(status_code=204)


@router.post(rest.TELEMETRY_PATH, summary="What this device counted.", openapi_extra=described(Telemetry))
async def take_telemetry(request: Request) -> Response:
    telemetry = await body_of(request, Telemetry, _DOCUMENT)
    await gateway_of(request).fleet.count(request.state.device, telemetry)
    return Response(status_code=204)
