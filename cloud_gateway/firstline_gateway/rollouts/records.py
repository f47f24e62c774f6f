"""Rollouts in the store, within a caller's transaction."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec
from sqlalchemy import Connection, and_, bindparam, func, insert, or_, select, update

from firstline_core.fleet.rollout import Look
from firstline_gateway.fleet.totals import Totals
from firstline_gateway.rollouts.definition import Assignment, Rollout
from firstline_gateway.rollouts.judgement.periods import Period
from firstline_gateway.rollouts.states import LIVE, RolloutState
from firstline_gateway.rollouts.tables import ASSIGNMENTS, LEASE, LOOKS, ROLLOUTS
from firstline_gateway.store import statements
from firstline_gateway.store.statements import batched

_R, _A = ROLLOUTS.c, ASSIGNMENTS.c


def add(connection: Connection, rollout: Rollout, idempotency: str | None) -> Rollout:
    """Keeps a new rollout; the one that was made under the same word before, where there is one."""
    row = {
        "id": rollout.id,
        "bundle": rollout.definition.bundle,
        "state": rollout.state.value,
        "active": False,
        "revision": rollout.revision,
        "idempotency": idempotency,
        "record": msgspec.json.encode(rollout).decode(),
    }
    connection.execute(statements.insert(connection, ROLLOUTS).values(row).on_conflict_do_nothing())
    if idempotency is None:
        return rollout
    held = connection.execute(select(_R.record).where(_R.idempotency == idempotency)).scalar_one()
    return _rollout(held)


def find(connection: Connection, rollout_id: str, *, lock: bool = False) -> Rollout | None:
    """Returns one rollout; with `lock`, it stays locked until this transaction ends."""
    query = select(_R.record).where(_R.id == rollout_id)
    held = connection.execute(query.with_for_update() if lock else query).scalar_one_or_none()
    return _rollout(held) if held is not None else None


def page(connection: Connection, after: str, limit: int, bundle: str = "") -> list[Rollout]:
    """Rollouts, the newest first; ids grow with time."""
    query = select(_R.record).order_by(_R.id.desc()).limit(limit)
    if after:
        query = query.where(_R.id < after)
    if bundle:
        query = query.where(_R.bundle == bundle)
    return [_rollout(held) for held in connection.execute(query).scalars()]


def active(connection: Connection) -> list[str]:
    """Returns the ids of the rollouts that need a step, oldest first.

    Rollouts that are ending come before running ones, so that a running rollout never records the desired state of an
    ending one as a device's earlier state.
    """
    running = _R.state.in_([RolloutState.RUNNING, RolloutState.PAUSED])
    return list(connection.execute(select(_R.id).where(_R.active.is_(True)).order_by(running, _R.id)).scalars())


def live(connection: Connection) -> list[Rollout]:
    """Rollouts of which devices may hear more."""
    query = select(_R.record).where(_R.active.is_(True)).order_by(_R.id)
    found = [_rollout(held) for held in connection.execute(query).scalars()]
    return [rollout for rollout in found if rollout.state in LIVE]


def completed(connection: Connection) -> list[Rollout]:
    """Returns rollouts that were completed and not rolled back since."""
    query = select(_R.record).where(_R.state == RolloutState.COMPLETED).order_by(_R.id)
    return [_rollout(held) for held in connection.execute(query).scalars()]


def ended(connection: Connection) -> list[Rollout]:
    """Rollouts that were ended before their end, or taken back, and of which no device hears any more."""
    states = [RolloutState.ABORTED, RolloutState.ROLLED_BACK]
    query = select(_R.record).where(_R.state.in_(states), _R.active.is_(False)).order_by(_R.id)
    return [_rollout(held) for held in connection.execute(query).scalars()]


def lock(connection: Connection) -> None:
    """Locks all rollouts until this transaction ends, including those that wait to be started.

    Of two that are started at the same moment the second so sees the first.
    """
    connection.execute(select(_R.id).order_by(_R.id).with_for_update()).all()


def put(connection: Connection, rollout: Rollout) -> Rollout:
    """Keeps a rollout as it is now, as a new revision."""
    changed = msgspec.structs.replace(rollout, revision=rollout.revision + 1)
    values = {
        "state": changed.state.value,
        "active": changed.state in LIVE or changed.unsettled,
        "revision": changed.revision,
        "record": msgspec.json.encode(changed).decode(),
    }
    connection.execute(update(ROLLOUTS).where(_R.id == rollout.id).values(values))
    return changed


def assignments(connection: Connection, rollout_id: str) -> dict[str, Assignment]:
    """All devices of a rollout so far, by name."""
    return {name: assignment(text) for name, text in assignment_texts(connection, rollout_id)}


def assignment_texts(connection: Connection, rollout_id: str) -> Iterable[tuple[str, str]]:
    """Likewise, each with its record as it is kept."""
    query = select(_A.device, _A.record).where(_A.rollout == rollout_id).order_by(_A.device)
    return ((row.device, row.record) for row in connection.execute(query))


def assignment(text: str) -> Assignment:
    """Decodes a stored assignment."""
    return msgspec.json.decode(text, type=Assignment)


def counts(connection: Connection, rollout_ids: Iterable[str]) -> dict[str, dict[str, int]]:
    """How many devices are in which state, by rollout."""
    query = (
        select(_A.rollout, _A.state, func.count())
        .where(_A.rollout.in_(list(rollout_ids)))
        .group_by(_A.rollout, _A.state)
        .order_by(_A.rollout, _A.state)
    )
    found: dict[str, dict[str, int]] = {}
    for rollout, state, number in connection.execute(query):
        found.setdefault(rollout, {})[state] = number
    return found


def assigned(connection: Connection, rollout_ids: Iterable[str], names: Iterable[str]) -> set[str]:
    """Those of some devices that any of some rollouts has to do with."""
    found, wanted = set[str](), list(rollout_ids)
    for some in batched(names):
        query = select(_A.device).where(_A.rollout.in_(wanted), _A.device.in_(some))
        found.update(connection.execute(query).scalars())
    return found


def assign(connection: Connection, rollout_id: str, changed: Iterable[Assignment]) -> None:
    """Keeps assignments; those that are there already lose nothing of what they were measured by."""
    rows = [
        {
            "rollout": rollout_id,
            "device": each.device,
            "state": each.state.value,
            "record": msgspec.json.encode(each).decode(),
        }
        for each in changed
    ]
    if not rows:
        return
    kept = statements.insert(connection, ASSIGNMENTS)
    newer = {name: kept.excluded[name] for name in ("state", "record")}
    connection.execute(kept.on_conflict_do_update(index_elements=["rollout", "device"], set_=newer), rows)


def measure(
    connection: Connection,
    rollout_id: str,
    before: Mapping[str, Period | None],
    start: Mapping[str, Totals],
) -> None:
    """Stores the base of the comparison; a named device starts again."""
    mine = (_A.rollout == rollout_id) & (_A.device == bindparam("one"))
    if before:
        periods = [
            {"one": device, "period": msgspec.json.encode(period).decode() if period is not None else None}
            for device, period in sorted(before.items())
        ]
        connection.execute(update(ASSIGNMENTS).where(mine).values(before=bindparam("period"), start=None), periods)
    if start:
        totals = [{"one": device, "totals": msgspec.json.encode(one).decode()} for device, one in sorted(start.items())]
        connection.execute(update(ASSIGNMENTS).where(mine).values(start=bindparam("totals")), totals)


def measured(connection: Connection, rollout_id: str) -> dict[str, tuple[Period | None, Totals]]:
    """By what devices are compared: the time before, and what they had counted when they began to be observed."""
    query = select(_A.device, _A.before, _A.start).where(_A.rollout == rollout_id, _A.start.is_not(None))
    return {
        row.device: (
            msgspec.json.decode(row.before, type=Period) if row.before is not None else None,
            msgspec.json.decode(row.start, type=Totals),
        )
        for row in connection.execute(query)
    }


def add_look(connection: Connection, rollout_id: str, look: Look) -> None:
    """Keeps a look; each is one."""
    row = {
        "rollout": rollout_id,
        "stage": look.stage,
        "look": look.look,
        "at_s": look.at_s,
        "verdict": msgspec.json.encode(look).decode(),
    }
    connection.execute(insert(LOOKS).values(row))


def looks(connection: Connection, rollout_id: str, after: tuple[int, int], limit: int) -> list[Look]:
    """Looks at a rollout in order, from the first one behind a stage's look on."""
    stage, look = after
    behind = or_(LOOKS.c.stage > stage, and_(LOOKS.c.stage == stage, LOOKS.c.look > look))
    query = select(LOOKS.c.verdict).where(LOOKS.c.rollout == rollout_id, behind)
    rows = connection.execute(query.order_by(LOOKS.c.stage, LOOKS.c.look).limit(limit)).scalars()
    return [msgspec.json.decode(verdict, type=Look) for verdict in rows]


def lease(connection: Connection, holder: str, service_s: float, for_s: float) -> bool:
    """Takes or renews the right to drive rollouts; False where another replica has it."""
    row = {"id": 1, "holder": holder, "until_service_s": service_s + for_s}
    connection.execute(
        statements.insert(connection, LEASE).values(row | {"until_service_s": service_s - 1.0}).on_conflict_do_nothing()
    )
    free = or_(LEASE.c.holder == holder, LEASE.c.until_service_s < service_s)
    return connection.execute(update(LEASE).where(LEASE.c.id == 1, free).values(row)).rowcount > 0


def holds(connection: Connection, holder: str) -> bool:
    """Returns whether the lease is still held; locks it until this transaction ends."""
    found = connection.execute(select(LEASE.c.holder).where(LEASE.c.id == 1).with_for_update()).scalar_one_or_none()
    return found == holder


def release(connection: Connection, holder: str) -> None:
    """Releases the lease."""
    connection.execute(update(LEASE).where(LEASE.c.holder == holder).values(until_service_s=-1.0))


def _rollout(held: str) -> Rollout:
    return msgspec.json.decode(held, type=Rollout)
