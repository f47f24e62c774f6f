"""The route that describes the executors, for operators."""

from __future__ import annotations

from fastapi import APIRouter, Depends, Request
from starlette.responses import Response

from firstline_core.protocol import http
from firstline_gateway.api.dependencies import gateway_of, require_fleet
from firstline_gateway.api.errors import response_of
from firstline_gateway.executors.base import ExecutorReport

router = APIRouter(prefix="/firstline/v1/executors", tags=["executors"], dependencies=[Depends(require_fleet)])


@router.get("", summary="The executors, if there are several: their state, shares and speeds.")
async def list_executors(request: Request) -> Response:
    return response_of(http.json_reply({"executors": [_executor(each) for each in gateway_of(request).executors]}))


def _executor(found: ExecutorReport) -> dict[str, object]:
    return {
        "name": found.name,
        "up": not found.problem,
        "problem": found.problem,
        "slots": found.slots,
        "under_way": found.under_way,
        "batches": dict(found.batches),
        "paces": [
            {
                "model": key.name,
                "version": str(key.version),
                "pace": round(each.pace, 3),
                "oldest_s": round(each.oldest_s, 3),
                "problem": each.problem,
                "mind": each.mind,
            }
            for key, each in sorted(found.models.items())
        ],
        "energy_j": round(found.energy_j, 3),
        "energy_sources": sorted(found.energy_sources),
    }
