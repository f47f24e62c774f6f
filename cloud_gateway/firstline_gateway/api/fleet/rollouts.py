"""Routes for operators: rollouts, their plans, evaluations and commands."""

from __future__ import annotations

from typing import Annotated, NamedTuple

from fastapi import APIRouter, Depends, Query, Request
from starlette.responses import Response

from firstline_core.errors import RequestError, listed
from firstline_core.fleet import rollout_documents as wire
from firstline_core.fleet.persons import Person
from firstline_core.protocol.openapi import request_header
from firstline_gateway.api.auth import OnBehalf, Operator, scope
from firstline_gateway.api.messages import (
    IF_MATCH,
    PAGE,
    OptionalBundleName,
    OptionalDeviceName,
    OptionalRolloutId,
    PageLimit,
    RolloutId,
    answer,
    body_of,
    known_parameters,
    schemas,
    tagged,
)
from firstline_gateway.api.persons import check_rollout, sees_rollout
from firstline_gateway.api.services import RolloutsDep
from firstline_gateway.rollouts.commands import Command
from firstline_gateway.rollouts.rollout import Definition, DeviceState
from firstline_gateway.rollouts.rollouts import Rollouts

_ONE = wire.ROLLOUTS_PATH + "/{rollout_id}"
_KEY_CHARACTERS = 255
_IDEMPOTENCY_KEY = request_header("Idempotency-Key", "Your own; a repeated request with it creates no second rollout.")
_CREATE = schemas(wire.RolloutSummary, 201, takes=Definition, also=tagged(_IDEMPOTENCY_KEY, status=201))
_LookPosition = Annotated[str, Query(pattern=r"^([0-9]{1,6}\.[0-9]{1,9})?$", description="A look, as `after` said.")]


class SeenRollouts(NamedTuple):
    """The rollouts that the person of a request sees; without a person, all are seen."""

    rollouts: Rollouts
    person: Person | None

    def sees(self, selector: str) -> bool:
        """Returns whether the person sees the rollouts with a selector."""
        return sees_rollout(self.person, selector)

    async def check(self, rollout_id: str) -> None:
        """Checks that the person sees a stored rollout.

        Raises:
            NotFoundError: the rollout is unknown.
            ForbiddenError: it may select other devices than those of the person.
        """
        if self.person is not None and self.person.devices:
            check_rollout(self.person, (await self.rollouts.get(rollout_id)).definition["selector"])

    async def page(self, after: str, limit: int, bundle: str) -> wire.RolloutPage:
        """Returns the next page with a rollout that the person sees; an empty one if there is none."""
        shown: tuple[wire.RolloutSummary, ...] = ()
        following: str | None = after
        while following is not None and not shown:
            page = await self.rollouts.page(following, limit, bundle)
            shown = tuple(one for one in page.rollouts if self.sees(one.definition["selector"]))
            following = page.after
        return wire.RolloutPage(shown, following)


async def _seen_rollouts(rollouts: RolloutsDep, person: OnBehalf) -> SeenRollouts:
    return SeenRollouts(rollouts, person)


Seen = Annotated[SeenRollouts, Depends(_seen_rollouts)]
router = APIRouter(tags=["rollouts"], dependencies=[Depends(scope("fleet")), Depends(known_parameters)])


@router.get(wire.ROLLOUTS_PATH, openapi_extra=schemas(wire.RolloutPage))
async def list_rollouts(
    seen: Seen, after: OptionalRolloutId = "", bundle: OptionalBundleName = "", limit: PageLimit = 100
) -> Response:
    """The rollouts, newest first; of one bundle, or of all."""
    return answer(await seen.page(after, limit, bundle))


@router.post(wire.ROLLOUTS_PATH, status_code=201, openapi_extra=_CREATE)
async def create_rollout(seen: Seen, request: Request, principal: Operator) -> Response:
    """Create a rollout, which is not started yet; with an Idempotency-Key only once."""
    key = _idempotency_key(request)
    definition = await body_of(request, Definition)
    check_rollout(seen.person, definition.selector)
    rollout = await seen.rollouts.create(definition, principal, key)
    return answer(rollout, 201, etag=str(rollout.revision))


@router.post(wire.PLAN_PATH, openapi_extra=schemas(wire.Plan, takes=Definition))
async def plan_rollout(
    seen: Seen, request: Request, size_bytes: Annotated[int | None, Query(ge=0, le=2**53)] = None
) -> Response:
    """The plan of a rollout: devices, bytes, time, and detectable effects."""
    definition = await body_of(request, Definition)
    check_rollout(seen.person, definition.selector)
    return answer(await seen.rollouts.plan(definition, size_bytes))


@router.get(_ONE, openapi_extra=schemas(wire.RolloutSummary, also=tagged()))
async def read_rollout(seen: Seen, rollout_id: RolloutId) -> Response:
    """One rollout: its state, and the effect of commands on its devices."""
    await seen.check(rollout_id)
    rollout = await seen.rollouts.get(rollout_id)
    return answer(rollout, etag=str(rollout.revision))


@router.get(_ONE + "/looks", openapi_extra=schemas(wire.LookList))
async def read_looks(seen: Seen, rollout_id: RolloutId, after: _LookPosition = "", limit: PageLimit = 200) -> Response:
    """The evaluations of a rollout, each with its verdict and numbers."""
    await seen.check(rollout_id)
    stage, _, look = after.partition(".")
    behind = (int(stage), int(look)) if after else (-1, 0)
    return answer(await seen.rollouts.looks(rollout_id, behind, limit))


@router.get(_ONE + "/devices", openapi_extra=schemas(wire.RolloutDevices))
async def read_devices(
    seen: Seen,
    rollout_id: RolloutId,
    state: DeviceState | None = None,
    after: OptionalDeviceName = "",
    limit: PageLimit = PAGE,
) -> Response:
    """The devices of a rollout by name, with the reasons of failures; in one state, or in all."""
    await seen.check(rollout_id)
    return answer(await seen.rollouts.devices(rollout_id, state.value if state is not None else "", after, limit))


@router.post(_ONE + "/{command}", openapi_extra=schemas(wire.RolloutSummary, also=tagged(IF_MATCH)))
async def command_rollout(
    seen: Seen, request: Request, principal: Operator, rollout_id: RolloutId, command: str
) -> Response:
    """approve, start, pause, resume, promote, abort, retry or rollback; with If-Match only if unchanged."""
    if command not in set(Command):
        raise RequestError(f"There is no command {command[:40]!a}{listed(command, Command)}")
    await seen.check(rollout_id)
    revision = _revision(request.headers.get("if-match"))
    rollout = await seen.rollouts.command(rollout_id, Command(command), principal, revision, seen.sees)
    return answer(rollout, etag=str(rollout.revision))


def _idempotency_key(request: Request) -> str | None:
    key = request.headers.get("idempotency-key")
    if key is not None and not 0 < len(key) <= _KEY_CHARACTERS:
        raise RequestError(f"Idempotency-Key has {len(key)} characters; 1 to {_KEY_CHARACTERS} can be used.")
    return key


def _revision(match: str | None) -> int | None:
    if match is None or match.strip() == "*":
        return None
    text = match.strip().removeprefix("W/").strip('"')
    # A text that is not a revision matches no revision.
    return int(text) if text.isascii() and text.isdigit() and len(text) < 16 else -1
