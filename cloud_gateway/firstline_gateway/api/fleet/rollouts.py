"""Routes for operators: rollouts, their plans, evaluations and commands."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Depends, Query, Request
from starlette.responses import Response

from firstline_core.errors import RequestError
from firstline_core.fleet import rollout as wire
from firstline_gateway.api.auth import gateway_of, require_fleet
from firstline_gateway.api.fleet.shared import PAGE, answer, body_of, body_schema, name_of
from firstline_gateway.rollouts.commands import Command
from firstline_gateway.rollouts.definition import Definition

_ONE = wire.ROLLOUTS_PATH + "/{rollout_id}"
_KEY_CHARACTERS = 255

router = APIRouter(tags=["rollouts"], dependencies=[Depends(require_fleet)])


@router.get(wire.ROLLOUTS_PATH, summary="The rollouts, newest first; of one bundle, or of all.")
async def list_rollouts(
    request: Request, after: str = "", bundle: str = "", limit: Annotated[int, Query(ge=1, le=PAGE)] = 100
) -> Response:
    for text, what in ((after, "a rollout"), (bundle, "a bundle")):
        if text:
            name_of(text, what)
    return answer(await gateway_of(request).rollouts.page(after, limit, bundle))


@router.post(
    wire.ROLLOUTS_PATH,
    summary="Create a rollout, which is not started yet; with an Idempotency-Key only once.",
    openapi_extra=body_schema(Definition),
)
async def create_rollout(request: Request) -> Response:
    key = request.headers.get("idempotency-key")
    if key is not None and not 0 < len(key) <= _KEY_CHARACTERS:
        raise RequestError(f"Idempotency-Key has {len(key)} characters; 1 to {_KEY_CHARACTERS} can be used.")
    definition = await body_of(request, Definition)
    made = await gateway_of(request).rollouts.create(definition, request.state.principal, key)
    return answer(made, 201, etag=str(made.revision))


@router.post(
    wire.PLAN_PATH,
    summary="The plan of a rollout: devices, bytes, time, and detectable effects.",
    openapi_extra=body_schema(Definition),
)
async def plan_rollout(request: Request, size_bytes: Annotated[int | None, Query(ge=0, le=2**53)] = None) -> Response:
    definition = await body_of(request, Definition)
    return answer(await gateway_of(request).rollouts.plan(definition, size_bytes))


@router.get(_ONE, summary="One rollout: its state, and the effect of commands on its devices.")
async def read_rollout(request: Request, rollout_id: str) -> Response:
    found = await gateway_of(request).rollouts.get(name_of(rollout_id, "a rollout"))
    return answer(found, etag=str(found.revision))


@router.get(_ONE + "/looks", summary="The evaluations of a rollout, each with its verdict and numbers.")
async def read_looks(
    request: Request,
    rollout_id: str,
    after: Annotated[str, Query(pattern=r"^[0-9]{1,6}\.[0-9]{1,9}$", description="A look, as `after` said.")] = "",
    limit: Annotated[int, Query(ge=1, le=PAGE)] = 200,
) -> Response:
    stage, _, look = after.partition(".")
    behind = (int(stage), int(look)) if after else (-1, 0)
    return answer(await gateway_of(request).rollouts.looks(name_of(rollout_id, "a rollout"), behind, limit))


@router.post(
    _ONE + "/{command}",
    summary="approve, start, pause, resume, promote, abort, retry or rollback; with If-Match only if unchanged.",
)
async def command_rollout(request: Request, rollout_id: str, command: str) -> Response:
    if command not in set(Command):
        raise RequestError(f"There is no command {command[:40]!a}; there are {', '.join(Command)}.")
    rollout = name_of(rollout_id, "a rollout")
    found = await gateway_of(request).rollouts.command(
        rollout, Command(command), request.state.principal, _revision(request.headers.get("if-match"))
    )
    return answer(found, etag=str(found.revision))


def _revision(match: str | None) -> int | None:
    if match is None or match.strip() == "*":
        return None
    text = match.strip().removeprefix("W/").strip('"')
    # A text that is not a revision matches no revision.
    return int(text) if text.isascii() and text.isdigit() and len(text) < 16 else -1


audit_log = APIRouter(tags=["audit"], dependencies=[Depends(require_fleet)])


@audit_log.get(wire.AUDIT_PATH, summary="The decisions of all principals, by number; of one subject, or of all.")
async def read_audit(
    request: Request,
    after: Annotated[int, Query(ge=0, le=2**53)] = 0,
    limit: Annotated[int, Query(ge=1, le=PAGE)] = PAGE,
    subject: Annotated[str, Query(max_length=256)] = "",
) -> Response:
    return answer(await gateway_of(request).audit_log.page(after, limit, subject))


@audit_log.get(
    wire.AUDIT_HEAD_PATH, summary="The signed head of the audit log; store it where the gateway cannot change it."
)
async def read_head(request: Request) -> Response:
    return answer(await gateway_of(request).audit_log.head())
