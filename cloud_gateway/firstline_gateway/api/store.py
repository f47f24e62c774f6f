"""The route that describes the store, for operators."""

from __future__ import annotations

from fastapi import APIRouter, Depends, Request
from starlette.responses import Response

from firstline_core.protocol import http
from firstline_gateway.api.dependencies import gateway_of, require_fleet
from firstline_gateway.api.errors import response_of

router = APIRouter(prefix="/firstline/v1/store", tags=["store"], dependencies=[Depends(require_fleet)])


@router.get("", summary="The database, and the reason if it accepts no writes at the moment.")
async def read_store(request: Request) -> Response:
    gateway = gateway_of(request)
    problem = gateway.writer.trouble
    return response_of(http.json_reply({"database": gateway.database.shown, "up": not problem, "problem": problem}))
