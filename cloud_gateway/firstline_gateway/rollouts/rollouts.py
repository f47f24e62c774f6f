"""The requests and commands of operators, each with an audit log entry in the same transaction."""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import msgspec
from msgspec.structs import replace
from sqlalchemy import Connection

from firstline_core.clock import Clock
from firstline_core.errors import ConflictError, ForbiddenError, NotFoundError
from firstline_core.fleet import rollout_documents as wire
from firstline_core.fleet.persons import same_person
from firstline_core.fleet.selector import parse_selector
from firstline_core.fleet.update import UpdateKind
from firstline_core.ids import new_request_id
from firstline_gateway import audit_log
from firstline_gateway.fleet import devices
from firstline_gateway.rollouts import records
from firstline_gateway.rollouts.commands import Command, command_changes, consequences, state_after
from firstline_gateway.rollouts.fleet_view import FleetCache, FleetView, contract_alarm
from firstline_gateway.rollouts.plan import no_device_warning, plan
from firstline_gateway.rollouts.rollout import LIVE, Definition, DeviceState, Rollout, RolloutState
from firstline_gateway.rollouts.step import StepTime
from firstline_gateway.store.service_clock import ServiceClock
from firstline_gateway.store.store import Store

if TYPE_CHECKING:  # loads python-tuf, which a gateway without a registry does not need
    from firstline_gateway.registry.catalogue import ListedVersion

_PLAN_PATIENCE_S = 20.0  # a plan reads the whole fleet; clients wait for 30 s

FindListed = Callable[[UpdateKind, str, int], Awaitable["ListedVersion | None"]]
"""Returns a signed model or configuration by name and version; None if it is not signed."""


@dataclass(eq=False)
class Rollouts:
    """The rollouts of one gateway, or of the replicas that share its store.

    Args:
        store: reads and writes it.
        clock: for wall time.
        service: measures the durations of rollouts.
        delta: the probability with which a contract that holds may ever alarm.
        on_change: called when a step is due.
        find_listed: returns a signed version; None if this gateway has no registry.
        before_start: prepares the start; a rollout does not start if it raises.
    """

    store: Store
    clock: Clock
    service: ServiceClock
    delta: float
    on_change: Callable[[], None]
    find_listed: FindListed | None = None
    before_start: Callable[[Definition], Awaitable[None]] | None = None

    async def create(self, definition: Definition, by: str, idempotency_key: str | None = None) -> wire.RolloutSummary:
        """Creates a rollout, which can be started, or must be approved by another person first.

        Raises:
            ConflictError: the same key was used for another rollout.
            RequestError: its rules can never promote a stage, or a stage takes no device.
        """
        definition.check()
        now_s = self.clock.wall_s()
        idempotency = None
        if idempotency_key is not None:
            idempotency = hashlib.sha256(msgspec.json.encode([by, idempotency_key])).hexdigest()
        state = RolloutState.DRAFT if definition.approval else RolloutState.APPROVED
        sentence = "It waits for a second person to approve it." if definition.approval else "It can be started."
        rollout = Rollout(new_request_id(), definition, state, by, now_s, seed=secrets.randbits(62), sentence=sentence)

        def create(connection: Connection) -> Rollout:
            stored = records.add(connection, rollout, idempotency)
            if stored.id == rollout.id:
                details = msgspec.to_builtins(definition)
                audit_log.add(connection, now_s, by, "rollout.create", f"rollout:{rollout.id}", **details)
            return stored

        stored = await self.store.change(create)
        if stored.definition != definition:
            raise ConflictError("This Idempotency-Key was used for another rollout; take a new one.")
        return _summary(stored, {})

    async def page(self, after: str, limit: int, bundle: str) -> wire.RolloutPage:
        """Returns rollouts, newest first."""
        found = await self.store.read(lambda on: _summaries(on, records.page(on, after, limit, bundle)))
        return wire.RolloutPage(found, found[-1].id if len(found) == limit else None)

    async def waiting(self, limit: int, sees: Callable[[str], bool]) -> tuple[wire.RolloutSummary, ...]:
        """Returns the rollouts that wait for a person who sees their selectors, newest first."""
        return await self.store.read(lambda on: _summaries(on, records.waiting(on, sees, limit)))

    async def get(self, rollout_id: str) -> wire.RolloutSummary:
        """Returns one rollout.

        Raises:
            NotFoundError: the rollout is unknown.
        """
        (summary,) = await self.store.read(lambda on: _summaries(on, [_existing(on, rollout_id)]))
        return summary

    async def looks(self, rollout_id: str, after: tuple[int, int], limit: int) -> wire.LookList:
        """Returns the evaluations of a rollout after the given (stage, look).

        Raises:
            NotFoundError: the rollout is unknown.
        """

        def read(connection: Connection) -> list[wire.Look]:
            _existing(connection, rollout_id)
            return records.looks(connection, rollout_id, after, limit)

        found = await self.store.read(read)
        return wire.LookList(tuple(found), f"{found[-1].stage}.{found[-1].look}" if len(found) == limit else None)

    async def devices(self, rollout_id: str, state: str, after: str, limit: int) -> wire.RolloutDevices:
        """Returns a page of the devices of a rollout, in one state or in all.

        Raises:
            NotFoundError: the rollout is unknown.
        """

        def read(connection: Connection) -> list[wire.RolloutDevice]:
            _existing(connection, rollout_id)
            found = records.page_of_devices(connection, rollout_id, state, after, limit)
            return [wire.RolloutDevice(one.device, one.stage, one.state.value, one.reason) for one in found]

        found = await self.store.read(read)
        return wire.RolloutDevices(tuple(found), found[-1].device if len(found) == limit else None)

    async def command(
        self,
        rollout_id: str,
        command: Command,
        by: str,
        revision: int | None = None,
        sees: Callable[[str], bool] = lambda _: True,
    ) -> wire.RolloutSummary:
        """Applies a command to a rollout.

        Args:
            rollout_id: of the rollout.
            command: to apply.
            by: the operator.
            revision: the last that the caller knows; None for any.
            sees: whether the operator sees rollouts with a selector; a start may supersede no other.

        Raises:
            NotFoundError: the rollout is unknown.
            ConflictError: the rollout has a newer revision, its version is not signed, or its contract is broken.
            RequestError: the rollout's state does not allow the command.
            ForbiddenError: its creator may not approve it, or its start would supersede a rollout that is not seen.
        """
        warnings = await self._prepare(rollout_id) if command is Command.START else ()
        now = StepTime(self.service.now_s(), self.clock.wall_s())

        def apply(connection: Connection) -> wire.RolloutSummary:
            if command is Command.START:
                records.lock(connection)
            rollout = _existing(connection, rollout_id, lock=True)
            if revision is not None and revision != rollout.revision:
                raise ConflictError("The rollout was changed since you looked at it; look again, then repeat.")
            if command is Command.APPROVE and same_person(by, rollout.created_by):
                raise ForbiddenError(f"{by} made this rollout; a second person has to approve it.")
            changes = command_changes(command, rollout, records.assignments(connection, rollout_id), by, now)
            if command is Command.START:
                _check_contract(connection, rollout.definition)
                _supersede(connection, rollout, by, now, sees)
            after = records.apply(connection, rollout, changes, now.wall_s) or rollout
            (summary,) = _summaries(connection, [after])
            return replace(summary, warnings=warnings)

        summary = await self.store.change(apply)
        self.on_change()
        return summary

    async def _prepare(self, rollout_id: str) -> tuple[str, ...]:
        """Does the slow part of a start, before its transaction; returns what the rollout cannot achieve."""
        rollout = await self.store.read(partial(_existing, rollout_id=rollout_id))
        state_after(Command.START, rollout.state)
        await self._check_signed(rollout.definition)
        if self.before_start is not None:
            await self.before_start(rollout.definition)
        planned = await self._planned(rollout.definition, None)
        blind = "" if planned.sees else planned.detects
        warnings = (blind,) if planned.devices else no_device_warning(rollout.definition)
        return tuple(filter(None, (*warnings, planned.unaudited)))

    async def plan(self, definition: Definition, size_bytes: int | None) -> wire.Plan:
        """Returns the plan of a rollout.

        Args:
            definition: of the rollout.
            size_bytes: the bytes that one device fetches; None if unknown.

        Raises:
            RequestError: as `create` does.
        """
        definition.check()
        return await self._planned(definition, size_bytes)

    async def _planned(self, definition: Definition, size_bytes: int | None) -> wire.Plan:
        now = StepTime(self.service.now_s(), self.clock.wall_s())
        listed = await self._listed(definition)
        # A version that the registry does not list may have one certified variant.
        contracts = listed.contracts if listed is not None else int(definition.what is UpdateKind.MODEL)
        has_full_model = listed is None or bool(listed.full_digest)

        def read(connection: Connection) -> wire.Plan:
            view = FleetView(connection, "", definition, FleetCache(definition), now.wall_s)
            supersedes = tuple(rollout.id for rollout in _conflicting(connection, definition))
            planned = plan(
                definition, view, size_bytes, now, delta=self.delta, contracts=contracts, has_full_model=has_full_model
            )
            return replace(planned, supersedes=supersedes)

        return await self.store.read(read, patience_s=_PLAN_PATIENCE_S)

    async def _check_signed(self, definition: Definition) -> None:
        """Checks that the version is signed; each device would refuse it otherwise."""
        if self.find_listed is None:
            return
        listed = await self._listed(definition)
        if listed is None:
            raise ConflictError(
                f"The registry's signed targets list no {definition.title}, and no device would take it; push it first."
            )
        if listed.sha256 != definition.manifest_sha256:
            raise ConflictError(
                f"The registry's signed targets list {definition.title} with the sha256 {listed.sha256}, and this "
                f"rollout offers {definition.manifest_sha256}, which no device would take; create the rollout again."
            )

    async def _listed(self, definition: Definition) -> ListedVersion | None:
        if self.find_listed is None:
            return None
        return await self.find_listed(definition.what, definition.bundle, definition.version)


def _check_contract(connection: Connection, definition: Definition) -> None:
    alarm = contract_alarm(connection, definition)
    if alarm:
        path = f"/firstline/v1/contracts/{definition.bundle}/versions/{definition.version}"
        raise ConflictError(
            f"{alarm} Its rollout would be aborted at once: roll out another version. If the model was not the cause, "
            f"delete its audits (DELETE {path}), and repeat."
        )


def _supersede(connection: Connection, newer: Rollout, by: str, now: StepTime, sees: Callable[[str], bool]) -> None:
    """Aborts the live rollouts that conflict with a new one.

    Raises:
        ForbiddenError: the operator does not see one of them.
    """
    for older in _conflicting(connection, newer.definition):
        if older.id == newer.id or older.state is RolloutState.ROLLING_BACK:
            continue
        if not sees(older.definition.selector):
            raise ForbiddenError(
                f"This start would abort a running rollout of {older.definition.title}, which concerns devices that "
                "you do not see; wait until it has ended, or ask a person who sees it."
            )
        changes = command_changes(Command.ABORT, older, records.assignments(connection, older.id), by, now)
        sentence = f"Superseded by {newer.id}, which brings version {newer.definition.version}."
        changes.rollout = replace(changes.rollout, superseded_by=newer.id, sentence=sentence)
        changes.notes = [("rollout.supersede", by, {"by": newer.id, "sentence": sentence})]
        records.apply(connection, older, changes, now.wall_s)


def _conflicting(connection: Connection, newer: Definition) -> list[Rollout]:
    """Returns the live rollouts of the same bundle; of a configuration, also those that select one of its devices."""
    live = [rollout for rollout in records.in_states(connection, *LIVE) if rollout.definition.what is newer.what]
    tags = [] if newer.what is UpdateKind.MODEL else _selected_tags(connection, newer)
    return [
        rollout
        for rollout in live
        if rollout.definition.bundle == newer.bundle
        or any(map(parse_selector(rollout.definition.selector).matches, tags))
    ]


def _selected_tags(connection: Connection, definition: Definition) -> list[Mapping[str, str]]:
    """Returns the tags of each device of a rollout."""
    selector = parse_selector(definition.selector)
    return [tags for _, tags in devices.tagged(connection) if selector.matches(tags)]


def _existing(connection: Connection, rollout_id: str, *, lock: bool = False) -> Rollout:
    rollout = records.find(connection, rollout_id, lock=lock)
    if rollout is None:
        raise NotFoundError(f"There is no rollout {rollout_id} here; `firstline rollout list` lists the rollouts.")
    return rollout


def _summaries(connection: Connection, rollouts: Sequence[Rollout]) -> tuple[wire.RolloutSummary, ...]:
    counts = records.counts(connection, [rollout.id for rollout in rollouts])
    return tuple(_summary(rollout, counts.get(rollout.id, {})) for rollout in rollouts)


def _summary(rollout: Rollout, counts: dict[str, int]) -> wire.RolloutSummary:
    definition = rollout.definition
    states = {state: number for state, number in counts.items() if state != DeviceState.CONTROL}
    return wire.RolloutSummary(
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
