"""For people: the audit trail, and its signed head to keep elsewhere."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Depends, Query, Request
from starlette.responses import Response

from firstline_core.fleet import rollout as wire
from firstline_gateway.api.asked import gateway_of, keeper
from firstline_gateway.api.fleet.asking import PAGE, answer

router = APIRouter(tags=["audit"], dependencies=[Depends(keeper)])


@router.get(wire.AUDIT_PATH, summary="Who decided what, by number; about one subject, or all.")
async def read_audit(
    request: Request,
    after: Annotated[int, Query(ge=0, le=2**53)] = 0,
    limit: Annotated[int, Query(ge=1, le=PAGE)] = PAGE,
    subject: Annotated[str, Query(max_length=256)] = "",
) -> Response:
    return answer(await gateway_of(request).audit_log.page(after, limit, subject))


@router.get(wire.AUDIT_HEAD_PATH, summary="How far the trail goes, signed: keep it where the gateway cannot reach.")
async def read_head(request: Request) -> Response:
    return answer(await gateway_of(request).audit_log.head())
