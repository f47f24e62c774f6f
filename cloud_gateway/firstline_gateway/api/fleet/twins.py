"""Routes for devices without a broker: their desired and reported state. A device sees only its own twin."""

from __future__ import annotations

from fastapi import APIRouter, Depends, Request
from starlette.responses import Response

from firstline_core.fleet import rest
from firstline_core.fleet.telemetry import Telemetry
from firstline_core.fleet.twin import LIMIT_BYTES, Reported
from firstline_core.protocol.limits import Limits
from firstline_gateway.api.dependencies import gateway_of
from firstline_gateway.api.fleet.shared import body_of, body_schema, conditional_answer, require_device

_DOCUMENT = Limits(body_bytes=LIMIT_BYTES)

router = APIRouter(tags=["twins"], dependencies=[Depends(require_device)])


@router.get(rest.TWIN_PATH, summary="The desired state of this device; 304 if it is unchanged (If-None-Match).")
async def read_desired(request: Request) -> Response:
    desired = await gateway_of(request).fleet.desired(request.state.device)
    return conditional_answer(request, desired, str(desired.revision))


@router.put(rest.REPORTED_PATH, summary="Report the state of this device.", openapi_extra=body_schema(Reported))
async def take_reported(request: Request) -> Response:
    reported = await body_of(request, Reported, _DOCUMENT)
    await gateway_of(request).fleet.report(request.state.device, reported)
    return Response(status_code=204)


@router.post(rest.TELEMETRY_PATH, summary="Report the counters of this device.", openapi_extra=body_schema(Telemetry))
async def take_telemetry(request: Request) -> Response:
    telemetry = await body_of(request, Telemetry, _DOCUMENT)
    await gateway_of(request).fleet.count(request.state.device, telemetry)
    return Response(status_code=204)
