"""What a route asks first: whose gateway it is, and whether the caller may."""

from __future__ import annotations

from typing import Annotated, cast

from fastapi import Depends, Request
from fastapi.security import HTTPBearer

from firstline_gateway.api.auth import authorize
from firstline_gateway.api.gateway import Gateway


def gateway_of(request: Request) -> Gateway:
    return cast(Gateway, request.app.state.gateway)


async def caller(
    request: Request, _documented: Annotated[object, Depends(HTTPBearer(auto_error=False, description="An API key."))]
) -> None:
    """Only for who may ask the models; `request.state.principal` is then known."""
    request.state.principal = (await authorize(gateway_of(request).identity, request, "infer")).principal


async def keeper(
    request: Request,
    _documented: Annotated[
        object, Depends(HTTPBearer(auto_error=False, description="An API key with the scope 'fleet'."))
    ],
) -> None:
    """Only for who keeps the fleet; `request.state.principal` is then known."""
    caller = await authorize(gateway_of(request).identity, request, "fleet")
    request.state.principal = caller.principal or "anybody"
