"""How the store is, for operators."""

from __future__ import annotations

from fastapi import APIRouter, Depends, Request
from starlette.responses import Response

from firstline_core.protocol import http
from firstline_gateway.api.asked import gateway_of, keeper
from firstline_gateway.api.errors import response_of

router = APIRouter(prefix="/firstline/v1/store", tags=["store"], dependencies=[Depends(keeper)])


@router.get("", summary="Which database it is, and why it takes nothing at the moment.")
async def read_store(request: Request) -> Response:
    gateway = gateway_of(request)
    problem = gateway.writer.trouble
    return response_of(http.json_reply({"database": gateway.database.shown, "up": not problem, "problem": problem}))
