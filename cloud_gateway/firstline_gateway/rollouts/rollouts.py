"""Rollouts: people's requests and commands, each with an audit log entry in the same transaction."""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import TypeVar

import msgspec
from msgspec.structs import replace
from sqlalchemy import Connection

from firstline_core.clock import Clock
from firstline_core.errors import ConflictError, ForbiddenError, NotFoundError
from firstline_core.fleet.rollout import Look, LookList, Plan, RolloutPage, RolloutSummary
from firstline_core.ids import new_request_id
from firstline_gateway.audit_log import records as audit_log
from firstline_gateway.fleet import devices
from firstline_gateway.fleet.selector import parse_selector
from firstline_gateway.rollouts import records
from firstline_gateway.rollouts.changes import Now
from firstline_gateway.rollouts.commands import command_step
from firstline_gateway.rollouts.definition import Definition, DeviceState, Rollout
from firstline_gateway.rollouts.execution import apply
from firstline_gateway.rollouts.mirror import Mirror
from firstline_gateway.rollouts.plan import consequences, for_nobody, plan
from firstline_gateway.rollouts.states import Command, RolloutState, after
from firstline_gateway.rollouts.subject import Subject
from firstline_gateway.rollouts.view import StoreView
from firstline_gateway.store.readers import Readers
from firstline_gateway.store.service import ServiceClock
from firstline_gateway.store.writer import StoreWriter

_LOOKS = 200  # a page of them

_T = TypeVar("_T")
Listed = Callable[[str, str, int], Awaitable[str | None]]
"""The sha256 that is signed for, of "model" or "configuration", a name and a version; None where none is."""


class Rollouts:
    """The rollouts of one gateway, or of the replicas that share its store.

    Args:
        readers: of the store.
        writer: writes to it.
        clock: for wall time.
        service: by which rollouts last.
        listed: returns the signed digest of a version; None if this gateway has no registry.
        on_change: called where the engine has something to do.
        before_start: prepares the start; a rollout does not start if it raises.
    """

    def __init__(
        self,
        readers: Readers,
        writer: StoreWriter,
        *,
        clock: Clock,
        service: ServiceClock,
        listed: Listed | None = None,
        on_change: Callable[[], None],
        before_start: Callable[[Definition], Awaitable[None]] | None = None,
    ) -> None:
        self._readers = readers
        self._writer = writer
        self._clock = clock
        self._service = service
        self._listed = listed
        self._on_change = on_change
        self._before_start = before_start

    async def create(self, definition: Definition, by: str, idempotency_key: str | None = None) -> RolloutSummary:
        """Creates a rollout, which can be started, or has to be approved by another person first.

        Raises:
            ConflictError: the same key was used for another one.
            RequestError: its rules can never promote a stage, or a stage takes no device.
        """
        definition.check()
        now_s = self._clock.wall_s()
        word = None
        if idempotency_key is not None:
            word = hashlib.sha256(msgspec.json.encode([by, idempotency_key])).hexdigest()
        state = RolloutState.DRAFT if definition.approval else RolloutState.APPROVED
        sentence = "It waits for a second person to approve it." if definition.approval else "It can be started."
        made = Rollout(new_request_id(), definition, state, by, now_s, seed=secrets.randbits(62), sentence=sentence)

        def created(connection: Connection) -> Rollout:
            kept = records.add(connection, made, word)
            if kept.id != made.id:
                return kept
            audit_log.add(
                connection,
                at_s=now_s,
                actor=by,
                action="rollout.create",
                subject=f"rollout:{made.id}",
                details=msgspec.to_builtins(definition),
            )
            return kept

        kept = await self._writer.write(created)
        if kept.definition != definition:
            raise ConflictError("This Idempotency-Key was used for another rollout; take a new one.")
        return _shown(kept, {})

    async def page(self, after: str, limit: int, bundle: str) -> RolloutPage:
        """Rollouts, the newest first."""

        def read(connection: Connection) -> tuple[list[Rollout], dict[str, dict[str, int]]]:
            found = records.page(connection, after, limit, bundle)
            return found, records.counts(connection, [rollout.id for rollout in found])

        found, counts = await self._readers.ask(read)
        shown = tuple(_shown(rollout, counts.get(rollout.id, {})) for rollout in found)
        return RolloutPage(shown, found[-1].id if len(found) == limit else None)

    async def get(self, rollout_id: str) -> RolloutSummary:
        """One rollout.

        Raises:
            NotFoundError: there is none.
        """

        def read(connection: Connection) -> RolloutSummary:
            found = _known(records.find(connection, rollout_id), rollout_id)
            return _shown(found, records.counts(connection, [rollout_id]).get(rollout_id, {}))

        return await self._readers.ask(read)

    async def looks(self, rollout_id: str, after: tuple[int, int] = (-1, 0), limit: int = _LOOKS) -> LookList:
        """Looks at a rollout, from the first one behind a stage's look on.

        Raises:
            NotFoundError: there is none.
        """

        def read(connection: Connection) -> list[Look]:
            _known(records.find(connection, rollout_id), rollout_id)
            return records.looks(connection, rollout_id, after, limit)

        found = await self._readers.ask(read)
        return LookList(tuple(found), f"{found[-1].stage}.{found[-1].look}" if len(found) == limit else None)

    async def command(self, rollout_id: str, command: Command, by: str, revision: int | None = None) -> RolloutSummary:
        """Does something to a rollout.

        Args:
            rollout_id: of which.
            command: what.
            by: who.
            revision: that the caller has seen; None where it does not care.

        Raises:
            NotFoundError: there is none.
            ConflictError: it was changed since, or what it is to offer is not signed for.
            RequestError: not in the state that it is in.
            ForbiddenError: its creator may not approve it.
        """
        if command is Command.START:
            await self._prepare(rollout_id)
        now = Now(self._service.now_s(), self._clock.wall_s())

        def commanded(connection: Connection) -> RolloutSummary:
            if command is Command.START:
                records.lock(connection)
            found = _known(records.find(connection, rollout_id, lock=True), rollout_id)
            if revision is not None and revision != found.revision:
                raise ConflictError("The rollout was changed since you looked at it; look again, then repeat.")
            if command is Command.APPROVE and by == found.created_by:
                raise ForbiddenError(f"{by} made this rollout; a second person has to approve it.")
            made = command_step(command, found, records.assignments(connection, rollout_id), by, now)
            if command is Command.START:
                _supersede(connection, found, by, now)
            kept = apply(connection, found, made, now.wall_s) or found
            shown = _shown(kept, records.counts(connection, [rollout_id]).get(rollout_id, {}))
            if command is Command.START:
                shown = replace(shown, warnings=for_nobody(found.definition, len(_meant(connection, found.definition))))
            return shown

        shown = await self._writer.write(commanded)
        self._on_change()
        return shown

    async def _prepare(self, rollout_id: str) -> None:
        """Does the slow part of a start, before its transaction."""
        found = _known(await self._readers.ask(partial(records.find, rollout_id=rollout_id)), rollout_id)
        after(Command.START, found.state)
        await self._check_listed(found.definition)
        if self._before_start is not None:
            await self._before_start(found.definition)

    async def plan(self, definition: Definition, size_bytes: int | None) -> Plan:
        """Returns the plan of a rollout.

        Args:
            definition: of the rollout.
            size_bytes: the bytes that one device fetches; None if unknown.

        Raises:
            RequestError: as `create` does.
        """
        definition.check()
        now = Now(self._service.now_s(), self._clock.wall_s())

        def read(connection: Connection) -> Plan:
            view = StoreView(connection, "", Mirror(definition), now.wall_s)
            found = plan(definition, view, size_bytes, now)
            over = tuple(rollout.id for rollout in _in_the_way(connection, definition))
            return replace(found, supersedes=over)

        return await self._readers.ask(read)

    async def _check_listed(self, wanted: Definition) -> None:
        """Whether devices would find what the rollout is to offer; each would refuse it otherwise, one by one."""
        if self._listed is None:
            return
        listed = await self._listed(wanted.what.value, wanted.bundle, wanted.version)
        if listed is None:
            raise ConflictError(
                f"The registry's signed targets list no {wanted.brought}, and no device would take it; push it first."
            )
        if listed != wanted.manifest_sha256:
            raise ConflictError(
                f"The registry's signed targets list {wanted.brought} with the sha256 {listed}, and this rollout "
                f"offers {wanted.manifest_sha256}, which no device would take; make it anew."
            )


def _supersede(connection: Connection, newer: Rollout, by: str, now: Now) -> None:
    """Ends what is in a rollout's way: devices under way stop, those that are done stay."""
    for older in _in_the_way(connection, newer.definition):
        if older.id == newer.id or older.state is RolloutState.ROLLING_BACK:
            continue
        made = command_step(Command.ABORT, older, records.assignments(connection, older.id), by, now)
        sentence = f"Superseded by {newer.id}, which brings version {newer.definition.version}."
        made.rollout = replace(made.rollout, superseded_by=newer.id, sentence=sentence)
        made.notes = [("rollout.supersede", by, {"by": newer.id, "sentence": sentence})]
        apply(connection, older, made, now.wall_s)


def _in_the_way(connection: Connection, newer: Definition) -> list[Rollout]:
    """Rollouts under way of the same bundle; of any configuration that means a device which this one means too."""
    found = [rollout for rollout in records.live(connection) if rollout.definition.what is newer.what]
    if newer.what is Subject.MODEL:
        return [rollout for rollout in found if rollout.definition.bundle == newer.bundle]
    mine = _meant(connection, newer)
    return [
        rollout
        for rollout in found
        if rollout.definition.bundle == newer.bundle
        or any(map(parse_selector(rollout.definition.selector).matches, mine))
    ]


def _meant(connection: Connection, definition: Definition) -> list[Mapping[str, str]]:
    """The tags of each device that a rollout is for."""
    selector = parse_selector(definition.selector)
    return [tags for _, tags in devices.tagged(connection) if selector.matches(tags)]


def _shown(rollout: Rollout, counts: dict[str, int]) -> RolloutSummary:
    definition = rollout.definition
    states = {state: number for state, number in counts.items() if state != DeviceState.CONTROL}
    return RolloutSummary(
        id=rollout.id,
        bundle=definition.bundle,
        version=definition.version,
        state=rollout.state.value,
        stage=rollout.stage,
        stages=len(definition.stages),
        phase=rollout.phase.value,
        sentence=rollout.sentence,
        revision=rollout.revision,
        created_by=rollout.created_by,
        created_s=rollout.created_s,
        approved_by=rollout.approved_by,
        superseded_by=rollout.superseded_by,
        devices=states,
        control=counts.get(DeviceState.CONTROL, 0),
        consequences=consequences(rollout, states),
        definition=msgspec.to_builtins(definition),
    )


def _known(found: Rollout | None, rollout_id: str) -> Rollout:
    if found is None:
        raise NotFoundError(f"There is no rollout {rollout_id} here; `firstline rollout ls` shows those that are.")
    return found
