"""Routes for operators: the audit log, and its signed head."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Depends, Query, Request
from starlette.responses import Response

from firstline_core.fleet import rollout as wire
from firstline_gateway.api.dependencies import gateway_of, require_fleet
from firstline_gateway.api.fleet.shared import PAGE, answer

router = APIRouter(tags=["audit"], dependencies=[Depends(require_fleet)])


@router.get(wire.AUDIT_PATH, summary="The decisions of all principals, by number; of one subject, or of all.")
async def read_audit(
    request: Request,
    after: Annotated[int, Query(ge=0, le=2**53)] = 0,
    limit: Annotated[int, Query(ge=1, le=PAGE)] = PAGE,
    subject: Annotated[str, Query(max_length=256)] = "",
) -> Response:
    return answer(await gateway_of(request).audit_log.page(after, limit, subject))


@router.get(
    wire.AUDIT_HEAD_PATH, summary="The signed head of the audit log; store it where the gateway cannot change it."
)
async def read_head(request: Request) -> Response:
    return answer(await gateway_of(request).audit_log.head())
