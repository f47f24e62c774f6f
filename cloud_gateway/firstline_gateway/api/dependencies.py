"""FastAPI dependencies of the routes: the gateway, and the scopes that a caller needs."""

from __future__ import annotations

from typing import Annotated, cast

from fastapi import Depends, Request
from fastapi.security import HTTPBearer

from firstline_gateway.api.auth import authorize
from firstline_gateway.api.gateway import Gateway


def gateway_of(request: Request) -> Gateway:
    return cast(Gateway, request.app.state.gateway)


async def require_infer(
    request: Request, _documented: Annotated[object, Depends(HTTPBearer(auto_error=False, description="An API key."))]
) -> None:
    """Requires the scope 'infer', and sets `request.state.principal`."""
    request.state.principal = (await authorize(gateway_of(request).identity, request, "infer")).principal


async def require_fleet(
    request: Request,
    _documented: Annotated[
        object, Depends(HTTPBearer(auto_error=False, description="An API key with the scope 'fleet'."))
    ],
) -> None:
    """Requires the scope 'fleet', and sets `request.state.principal`."""
    caller = await authorize(gateway_of(request).identity, request, "fleet")
    request.state.principal = caller.principal or "anybody"
