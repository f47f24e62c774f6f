"""Routes of the audit log: its entries, its signed head, sign-ins to a console, and exports."""

from __future__ import annotations

from typing import Annotated

import msgspec
from fastapi import APIRouter, Depends, Query, Request
from starlette.responses import Response

from firstline_core.fleet import rollout_documents as wire
from firstline_core.fleet.audit_log import Head
from firstline_core.fleet.persons import SIGN_INS_PATH, PersonName, SignIn, acting
from firstline_gateway.api.auth import Operator, scope
from firstline_gateway.api.fleet.rollouts import Seen
from firstline_gateway.api.messages import PAGE, PageLimit, answer, body_of, known_parameters, schemas
from firstline_gateway.api.services import AuditLogDep
from firstline_gateway.audit_log import EntryFilter

router = APIRouter(tags=["audit"], dependencies=[Depends(scope("fleet")), Depends(known_parameters)])
# The route of consoles, to which persons sign in.
sign_in_router = APIRouter(tags=["audit"], dependencies=[Depends(scope("delegate")), Depends(known_parameters)])


@router.get(wire.AUDIT_PATH, openapi_extra=schemas(wire.AuditPage))
async def read_audit(
    *,
    audit_log: AuditLogDep,
    seen: Seen,
    after: Annotated[int, Query(ge=0, le=2**53)] = 0,
    limit: PageLimit = PAGE,
    subject: Annotated[str, Query(max_length=256)] = "",
    action: Annotated[str, Query(max_length=64)] = "",
    since_s: Annotated[float, Query(ge=0)] = 0.0,
    before: Annotated[int | None, Query(ge=1, le=2**53, description="List the newest first, below it.")] = None,
) -> Response:
    """The decisions of all principals, by number; of one subject, or with one beginning of the action."""
    kind, _, name = subject.partition(":")
    if kind == "rollout":
        await seen.check(name)
    entry_filter = EntryFilter(after, subject, action, since_s, before)
    return answer(await audit_log.page(entry_filter, limit))


@router.get(wire.AUDIT_HEAD_PATH, openapi_extra=schemas(Head))
async def read_head(audit_log: AuditLogDep) -> Response:
    """The signed head of the audit log; store it where the gateway cannot change it."""
    return answer(await audit_log.head())


@sign_in_router.post(SIGN_INS_PATH, status_code=204, openapi_extra=schemas(takes=SignIn))
async def note_sign_in(audit_log: AuditLogDep, request: Request, principal: Operator) -> Response:
    """Note that a person signed in to a console, or was refused."""
    attempt = await body_of(request, SignIn)
    action = "person.refused" if attempt.refused else "person.sign_in"
    details = {"method": attempt.method, "address": attempt.address}
    details |= {"why": attempt.refused} if attempt.refused else {}
    try:
        person = msgspec.convert(attempt.person, PersonName)
    except msgspec.ValidationError:  # typed by anyone; it must not look like an actor
        person, details = "", details | {"person": attempt.person}
    await audit_log.note(acting(person, principal), action, "console", details)
    return Response(status_code=204)


@router.post(wire.AUDIT_EXPORT_PATH, openapi_extra=schemas(Head))
async def note_export(
    audit_log: AuditLogDep, principal: Operator, since_s: Annotated[float, Query(ge=0)] = 0.0
) -> Response:
    """Note an export of the audit log, and return the signed head that follows; the export ends there."""
    return answer(await audit_log.note_export(principal, since_s))
