"""How the store is, for operators."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Depends, Request
from fastapi.security import HTTPBearer
from starlette.responses import Response

from firstline_core.protocol import http
from firstline_gateway.api.auth import authorize
from firstline_gateway.api.control import gateway_of
from firstline_gateway.api.errors import response_of


async def _operator(
    request: Request,
    _documented: Annotated[
        object, Depends(HTTPBearer(auto_error=False, description="An API key with the scope 'fleet'."))
    ],
) -> None:
    await authorize(gateway_of(request).identity, request, "fleet")


router = APIRouter(prefix="/firstline/v1/store", tags=["store"], dependencies=[Depends(_operator)])


@router.get("", summary="Which database it is, and why it takes nothing at the moment.")
async def read_store(request: Request) -> Response:
    gateway = gateway_of(request)
    problem = gateway.writer.trouble
    return response_of(http.json_reply({"database": gateway.database.shown, "up": not problem, "problem": problem}))
