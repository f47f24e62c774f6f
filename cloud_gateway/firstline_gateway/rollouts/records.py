"""Rollouts in the store: tables, and functions that read and write within a caller's transaction."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import islice
from typing import TypeVar

import sqlalchemy as sa
from msgspec.structs import replace

from firstline_core.fleet.rollout_documents import Look
from firstline_core.fleet.twin import Desired
from firstline_core.fleet.update import UpdateKind
from firstline_core.storage.seals import DECODING_ERRORS
from firstline_gateway import audit_log
from firstline_gateway.fleet import devices
from firstline_gateway.fleet.totals import Totals
from firstline_gateway.rollouts.device_progress import after_withdrawal, desires_version_of, with_audits, with_desired
from firstline_gateway.rollouts.judgement.figures import Baseline, Period
from firstline_gateway.rollouts.rollout import LIVE, WAITING, Assignment, Rollout, RolloutState
from firstline_gateway.rollouts.step import StepChanges, StepTime
from firstline_gateway.store.schema import METADATA, JsonColumn, batched, insert_missing, single_row, upsert

ROLLOUTS = sa.Table(
    "rollouts",
    METADATA,
    sa.Column("id", sa.String(64), primary_key=True),
    sa.Column("bundle", sa.String(64), nullable=False, index=True),
    sa.Column("state", sa.String(16), nullable=False),
    sa.Column("active", sa.Boolean, nullable=False, index=True),  # whether steps are due
    sa.Column("idempotency", sa.String(64), unique=True),  # hash of the creator and the key; NULL without a key
    sa.Column("record", JsonColumn(Rollout), nullable=False),
    sa.Index(None, "state", "id"),
)
ASSIGNMENTS = sa.Table(
    "rollout_devices",
    METADATA,
    sa.Column("rollout", sa.String(64), primary_key=True),
    sa.Column("device", sa.String(64), primary_key=True),
    sa.Column("state", sa.String(16), nullable=False),
    sa.Column("record", JsonColumn(Assignment), nullable=False),
    sa.Column("before", JsonColumn(Period)),  # a period before the stage, for the judgement
    sa.Column("start", JsonColumn(Totals)),  # counts at the start of the observation
)
LOOKS = sa.Table(
    "rollout_looks",
    METADATA,
    sa.Column("rollout", sa.String(64), primary_key=True),
    sa.Column("stage", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("look", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("verdict", JsonColumn(Look), nullable=False),
)
LEASE = single_row(
    "rollout_lease",
    sa.Column("holder", sa.String(64), nullable=False),
    sa.Column("until_service_s", sa.Double, nullable=False),
)
"""The replica that drives the rollouts."""

_R, _A = ROLLOUTS.c, ASSIGNMENTS.c
_T = TypeVar("_T")


def add(connection: sa.Connection, rollout: Rollout, idempotency: str | None) -> Rollout:
    """Stores a new rollout and returns it; returns the stored one if it exists under the same idempotency key."""
    row = {
        "id": rollout.id,
        "bundle": rollout.definition.bundle,
        "state": rollout.state.value,
        "active": False,
        "idempotency": idempotency,
        "record": rollout,
    }
    insert_missing(connection, ROLLOUTS, row)
    if idempotency is None:
        return rollout
    stored: Rollout = connection.execute(sa.select(_R.record).where(_R.idempotency == idempotency)).scalar_one()
    return stored


def find(connection: sa.Connection, rollout_id: str, *, lock: bool = False) -> Rollout | None:
    """Returns one rollout; with `lock`, it stays locked until this transaction ends."""
    query = sa.select(_R.record).where(_R.id == rollout_id)
    return connection.execute(query.with_for_update() if lock else query).scalar_one_or_none()


def page(connection: sa.Connection, after: str, limit: int, bundle: str = "") -> list[Rollout]:
    """Returns rollouts, newest first; ids increase with time."""
    query = sa.select(_R.record).order_by(_R.id.desc()).limit(limit)
    if after:
        query = query.where(_R.id < after)
    if bundle:
        query = query.where(_R.bundle == bundle)
    return list(connection.execute(query).scalars())


def in_states(connection: sa.Connection, *states: RolloutState) -> list[Rollout]:
    """Returns the rollouts in these states, oldest first."""
    return list(connection.execute(sa.select(_R.record).where(_R.state.in_(states)).order_by(_R.id)).scalars())


def active(connection: sa.Connection) -> list[str]:
    """Returns the ids of the rollouts that need a step, oldest first.

    Rollouts that are ending come before running ones, so that a running rollout never records the desired state of an
    ending one as a device's earlier state.
    """
    running = _R.state.in_([RolloutState.RUNNING, RolloutState.PAUSED])
    return list(connection.execute(sa.select(_R.id).where(_R.active.is_(True)).order_by(running, _R.id)).scalars())


def by_state(connection: sa.Connection) -> dict[RolloutState, int]:
    """Returns the number of rollouts in each state."""
    counts: dict[str, int] = dict(connection.execute(sa.select(_R.state, sa.func.count()).group_by(_R.state)).all())
    return {state: counts.get(state.value, 0) for state in RolloutState}


def waiting(connection: sa.Connection, sees: Callable[[str], bool], limit: int) -> list[Rollout]:
    """Returns the rollouts that wait for a person who sees their selectors, newest first."""
    query = sa.select(_R.record).where(_R.state.in_(WAITING)).order_by(_R.id.desc())
    seen = (each for each in connection.execute(query).scalars() if sees(each.definition.selector))
    return list(islice(seen, limit))


def lock(connection: sa.Connection) -> None:
    """Locks all rollouts until this transaction ends, so that of two simultaneous starts the second sees the first."""
    connection.execute(sa.select(_R.id).order_by(_R.id).with_for_update()).all()


def put(connection: sa.Connection, rollout: Rollout) -> Rollout:
    """Stores the state of a rollout as a new revision."""
    changed = replace(rollout, revision=rollout.revision + 1)
    values = {"state": changed.state.value, "active": changed.state in LIVE or changed.unsettled, "record": changed}
    connection.execute(sa.update(ROLLOUTS).where(_R.id == rollout.id).values(values))
    return changed


def pause_restored(connection: sa.Connection, as_of: str, now: StepTime) -> list[str]:
    """Pauses the rollouts that run in a restored store, because a later abort or rollback is forgotten.

    Args:
        connection: within a transaction that writes.
        as_of: the time of the backup, for people.
        now: the time.

    Returns:
        The ids of the paused rollouts. A damaged one is left as it is: it takes no step either.
    """
    paused = []
    running = sa.select(_R.id).where(_R.state == RolloutState.RUNNING).order_by(_R.id)
    for each in connection.execute(running).scalars().all():
        with contextlib.suppress(*DECODING_ERRORS):
            if (rollout := find(connection, each)) is not None:
                changes = StepChanges(rollout)
                changes.pause(
                    f"The store was restored from a backup as of {as_of}, which knows no later command: resume it, or "
                    "roll it back.",
                    now,
                    rule="restore",
                )
                apply(connection, rollout, changes, now.wall_s)
                paused.append(each)
    return paused


def assignments(connection: sa.Connection, rollout_id: str) -> dict[str, Assignment]:
    """Returns the devices of a rollout so far, by name."""
    query = sa.select(_A.device, _A.record).where(_A.rollout == rollout_id).order_by(_A.device)
    return {row.device: row.record for row in connection.execute(query)}


def page_of_devices(connection: sa.Connection, rollout_id: str, state: str, after: str, limit: int) -> list[Assignment]:
    """Returns devices of a rollout by name, from the first one after a name on; in one state, or in all for ""."""
    query = sa.select(_A.record).where(_A.rollout == rollout_id, _A.device > after).order_by(_A.device).limit(limit)
    if state:
        query = query.where(_A.state == state)
    return list(connection.execute(query).scalars())


def counts(connection: sa.Connection, rollout_ids: Iterable[str]) -> dict[str, dict[str, int]]:
    """Returns the number of devices by state, by rollout."""
    query = (
        sa.select(_A.rollout, _A.state, sa.func.count())
        .where(_A.rollout.in_(list(rollout_ids)))
        .group_by(_A.rollout, _A.state)
        .order_by(_A.rollout, _A.state)
    )
    by_rollout: dict[str, dict[str, int]] = {}
    for rollout, state, number in connection.execute(query):
        by_rollout.setdefault(rollout, {})[state] = number
    return by_rollout


def assigned(connection: sa.Connection, rollout_ids: Iterable[str], names: Iterable[str]) -> set[str]:
    """Returns those of the devices that one of the rollouts has assigned."""
    found, wanted = set[str](), list(rollout_ids)
    for some in batched(names):
        query = sa.select(_A.device).where(_A.rollout.in_(wanted), _A.device.in_(some))
        found.update(connection.execute(query).scalars())
    return found


def assign(
    connection: sa.Connection, rollout_id: str, changed: Iterable[Assignment], before: Mapping[str, Period | None]
) -> None:
    """Stores assignments; existing ones keep their baselines.

    Args:
        connection: within a transaction.
        rollout_id: of the rollout.
        changed: the assignments.
        before: for those of a new stage, the period before it; their observation starts again.
    """
    rows, new = list[dict[str, object]](), list[dict[str, object]]()
    for each in changed:
        row: dict[str, object] = {
            "rollout": rollout_id,
            "device": each.device,
            "state": each.state.value,
            "record": each,
        }
        if each.device in before:
            new.append(row | {"before": before[each.device], "start": None})
        else:
            rows.append(row)
    upsert(connection, ASSIGNMENTS, *rows)
    upsert(connection, ASSIGNMENTS, *new)


def _withdraw(connection: sa.Connection, rollout: Rollout, replaced: Mapping[str, Assignment]) -> None:
    """Makes rollouts that replaced this one's version on devices return them to the version before it."""
    if not replaced:
        return
    others = sa.select(_R.record).where(_R.id != rollout.id)
    if rollout.definition.what is UpdateKind.MODEL:  # a configuration replaces those of other names
        others = others.where(_R.bundle == rollout.definition.bundle)
    for newer in connection.execute(others).scalars():
        if newer.definition.document_key != rollout.definition.document_key or newer.started_s < rollout.started_s:
            continue
        for names in batched(replaced):
            query = sa.select(_A.record).where(_A.rollout == newer.id, _A.device.in_(names))
            found: list[Assignment] = list(connection.execute(query).scalars())
            manifest_sha256 = newer.definition.manifest_sha256
            after = [after_withdrawal(each, replaced[each.device], rollout, manifest_sha256) for each in found]
            assign(connection, newer.id, after, {})


def start_observation(connection: sa.Connection, rollout_id: str, start: Mapping[str, Totals]) -> None:
    """Stores the counts of devices at the start of the observation."""
    mine = (_A.rollout == rollout_id) & (_A.device == sa.bindparam("one"))
    totals = [{"one": device, "totals": one} for device, one in sorted(start.items())]
    if totals:
        connection.execute(sa.update(ASSIGNMENTS).where(mine).values(start=sa.bindparam("totals")), totals)


def baselines(connection: sa.Connection, rollout_id: str) -> dict[str, Baseline]:
    """Returns the baseline of each observed device."""
    query = sa.select(_A.device, _A.before, _A.start).where(_A.rollout == rollout_id, _A.start.is_not(None))
    return {row.device: Baseline(row.before, row.start) for row in connection.execute(query)}


def add_look(connection: sa.Connection, rollout_id: str, look: Look) -> None:
    """Stores an evaluation."""
    row = {"rollout": rollout_id, "stage": look.stage, "look": look.look, "verdict": look}
    connection.execute(sa.insert(LOOKS).values(row))


def looks(connection: sa.Connection, rollout_id: str, after: tuple[int, int], limit: int) -> list[Look]:
    """Returns the evaluations of a rollout in order, after the given (stage, look)."""
    stage, look = after
    behind = sa.or_(LOOKS.c.stage > stage, sa.and_(LOOKS.c.stage == stage, LOOKS.c.look > look))
    query = sa.select(LOOKS.c.verdict).where(LOOKS.c.rollout == rollout_id, behind)
    return list(connection.execute(query.order_by(LOOKS.c.stage, LOOKS.c.look).limit(limit)).scalars())


def lease(connection: sa.Connection, holder: str, service_s: float, for_s: float) -> bool:
    """Takes or renews the right to drive rollouts; returns False if another replica has it."""
    free = sa.or_(LEASE.c.holder == holder, LEASE.c.until_service_s < service_s)
    taken = sa.update(LEASE).where(free).values(holder=holder, until_service_s=service_s + for_s)
    return connection.execute(taken).rowcount > 0


def holds(connection: sa.Connection, holder: str) -> bool:
    """Returns whether the lease is still held; locks it until this transaction ends."""
    found: str = connection.execute(sa.select(LEASE.c.holder).with_for_update()).scalar_one()
    return found == holder


def release(connection: sa.Connection, holder: str) -> None:
    """Releases the lease."""
    connection.execute(sa.update(LEASE).where(LEASE.c.holder == holder).values(until_service_s=-1.0))


def in_parts(before: Rollout, changes: StepChanges) -> Iterator[StepChanges]:
    """Yields the changes of a step in parts, each for a transaction that holds up commands for a short time only.

    Everything that takes effect is in the last part: a step that is interrupted between parts is computed again.
    """
    together = changes.desired.keys() | changes.replaced.keys()
    early = list(batched(sorted((changes.assigned.keys() | changes.start.keys()) - together)))[:-1]
    written = {name for names in early for name in names}

    def of(values: Mapping[str, _T], names: Iterable[str]) -> dict[str, _T]:
        return {name: values[name] for name in names if name in values}

    for names in early:
        yield StepChanges(
            before,
            assigned=of(changes.assigned, names),
            before=of(changes.before, names),
            start=of(changes.start, names),
        )
    yield dataclasses.replace(
        changes,
        assigned=of(changes.assigned, changes.assigned.keys() - written),
        before=of(changes.before, changes.before.keys() - written),
        start=of(changes.start, changes.start.keys() - written),
    )


def apply(connection: sa.Connection, before: Rollout, changes: StepChanges, wall_s: float) -> Rollout | None:
    """Carries out the changes of a command, or a part of those of a step, with their entries in the audit log.

    Args:
        connection: within a transaction that writes.
        before: the rollout that the changes were computed from.
        changes: of the step.
        wall_s: now.

    Returns:
        The changed rollout; None if it had been changed meanwhile and nothing was done.
    """
    if changes.replaced:
        lock(connection)
    current = find(connection, before.id, lock=True)
    if current is None or current.revision != before.revision:
        return None
    assign(connection, before.id, changes.assigned.values(), changes.before)
    _withdraw(connection, before, changes.replaced)
    start_observation(connection, before.id, changes.start)
    if changes.look is not None:
        add_look(connection, before.id, changes.look)

    def desire(name: str, document: Desired) -> Desired:
        if name in changes.desired and (name not in changes.replaced or desires_version_of(before, document)):
            document = with_desired(document, before.definition.what, changes.desired[name])
        if name in changes.audits:
            document = with_audits(document, before.definition.judged_bundle, wanted=changes.audits[name])
        return document

    devices.desire(connection, changes.desired.keys() | changes.audits.keys(), desire)
    for action, actor, details in changes.notes:
        audit_log.add(connection, wall_s, actor, action, f"rollout:{before.id}", **details)
    return put(connection, changes.rollout) if changes.rollout != before else current
