"""Contracts in the store, within a caller's transaction: pools, contributions, and audits of the last day.

An audit is one transaction, so that a test and the ids that it counted never differ. Replicas that share a database
share its pools: counting locks the pool's row, so that all audits form one sequence and each counts once.

`last_s` is wall time, to be shown. Records age by `service_s`, the store's own clock (`store/service_clock.py`).
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, NamedTuple

import msgspec
import sqlalchemy as sa

from firstline_core.errors import ConfigError
from firstline_core.fleet.rest import Evidence
from firstline_core.routing import audit
from firstline_core.telemetry.logs import logger
from firstline_core.types import AuditNote, ModelKey
from firstline_core.units import DAY_S, HOUR_S
from firstline_gateway import audit_log
from firstline_gateway.contracts.pool import AuditPool, PoolKey, new_pool, with_audit, with_recent
from firstline_gateway.settings.settings import ContractsSection
from firstline_gateway.store.schema import METADATA, insert, insert_missing, upsert

POOLS = sa.Table(
    "contract_pools",
    METADATA,
    sa.Column("key", sa.Text, primary_key=True),
    sa.Column("record", sa.Text),  # an `AuditPool` as JSON; NULL before the first audit
)

CONTRIBUTIONS = sa.Table(
    "contract_contributions",
    METADATA,
    sa.Column("pool", sa.Text, primary_key=True),
    sa.Column("device", sa.Text, primary_key=True),
    sa.Column("audits", sa.BigInteger, nullable=False),
    sa.Column("disagreements", sa.BigInteger, nullable=False),
    sa.Column("last_s", sa.Double, nullable=False),
    sa.Column("service_s", sa.Double, nullable=False),
)

AUDITS = sa.Table(
    "contract_audits",
    METADATA,
    sa.Column("device", sa.Text, primary_key=True),
    sa.Column("request_id", sa.Text, primary_key=True),
    sa.Column("service_s", sa.Double, nullable=False),
    sa.Index(None, "service_s"),
    sa.Index(None, "device", "service_s"),
)

EVIDENCE = sa.Table(
    "contract_evidence",
    METADATA,
    sa.Column("pool", sa.Text, primary_key=True),
    sa.Column("hour", sa.BigInteger, primary_key=True, autoincrement=False),  # since 1970
    sa.Column("audits", sa.BigInteger, nullable=False),
    sa.Column("e_value", sa.Double, nullable=False),
    sa.Column("risk", sa.Double, nullable=False),
)
"""Each pool after the last audit of an hour."""

log = logger(__name__)

_RNG = random.SystemRandom()
_EVIDENCE_HOURS = 60 * 24


class Contribution(NamedTuple):
    """One device's share of a pool; its latest audit was at `last_s` of wall time, and `service_s` of service."""

    device: str
    audits: int
    disagreements: int
    last_s: float
    service_s: float


def pools(connection: sa.Connection) -> list[AuditPool]:
    """Returns all pools. A pool whose state cannot be read is left out, and starts again."""
    rows = connection.execute(sa.select(POOLS.c.key, POOLS.c.record))
    found = (_decoded(key, record) for key, record in rows)
    return [pool for pool in found if pool is not None]


def alarmed(connection: sa.Connection, model: ModelKey) -> AuditPool | None:
    """Returns a pool of a version whose audits raised the alarm; None while none did."""
    return next((pool for pool in pools(connection) if pool.key.model == model and pool.alarmed_s is not None), None)


def locked(connection: sa.Connection, key: PoolKey) -> AuditPool | None:
    """Returns a pool, locked until this transaction ends; None if it does not exist yet, or cannot be read."""
    # A row to hold: two replicas must not both open the pool.
    insert_missing(connection, POOLS, {"key": text_of(key), "record": None})
    query = sa.select(POOLS.c.record).where(POOLS.c.key == text_of(key)).with_for_update()
    return _decoded(text_of(key), connection.execute(query).scalar_one())


def _decoded(key: str, record: str | None) -> AuditPool | None:
    """Decodes a stored pool; returns None, and logs an error, if it cannot be read."""
    if record is None:
        return None
    try:
        pool = msgspec.json.decode(record, type=AuditPool)
        audit.check(pool.state)
    except (msgspec.DecodeError, ConfigError) as error:
        log.error("audits not readable", promise=key, why=str(error))
        return None
    return pool


def contributions(connection: sa.Connection, key: PoolKey, limit: int | None = None) -> list[Contribution]:
    """Returns the contributions to a pool, those with most disagreements first; without a limit, all of them."""
    table = CONTRIBUTIONS.c
    query = (
        sa.select(*(table[name] for name in Contribution._fields))
        .where(table.pool == text_of(key))
        .order_by(table.disagreements.desc(), table.audits.desc(), table.device)
        .limit(limit)
    )
    return [Contribution(*row) for row in connection.execute(query)]


def evidence(connection: sa.Connection, key: PoolKey) -> list[Evidence]:
    """Returns a pool over time, by hour."""
    table = EVIDENCE.c
    query = (
        sa.select(table.hour, table.audits, table.e_value, table.risk)
        .where(table.pool == text_of(key))
        .order_by(table.hour)
    )
    return [Evidence(hour * HOUR_S, *numbers) for hour, *numbers in connection.execute(query)]


def devices(connection: sa.Connection) -> dict[PoolKey, int]:
    """Returns how many devices contributed to each pool. Contributions whose pool cannot be read are left out."""
    found = {}
    query = sa.select(CONTRIBUTIONS.c.pool, sa.func.count()).group_by(CONTRIBUTIONS.c.pool)
    for pool, count in connection.execute(query):
        try:
            found[msgspec.json.decode(pool, type=PoolKey)] = count
        except msgspec.DecodeError as error:
            log.error("contributions not readable", promise=pool, why=str(error))
    return found


def is_counted(connection: sa.Connection, device: str, request_id: str) -> bool:
    """Returns whether this request was counted within the last day of service."""
    query = sa.select(1).where(AUDITS.c.device == device, AUDITS.c.request_id == request_id)
    return connection.execute(query).first() is not None


def count_since(connection: sa.Connection, device: str, service_s: float) -> int:
    """Returns how many audits of a device were counted after a time of service."""
    query = sa.select(sa.func.count()).where(AUDITS.c.device == device, AUDITS.c.service_s > service_s)
    return int(connection.execute(query).scalar_one())


def add_audit(
    connection: sa.Connection,
    device: str,
    request_id: str,
    pools: Sequence[tuple[AuditPool, bool]],
    *,
    service_s: float,
) -> bool:
    """Stores an audit, and the `locked` pools after it.

    Args:
        connection: of the caller's transaction.
        device: that sent the audit.
        request_id: of the audit.
        pools: each with whether the audit has a loss there.
        service_s: the store's own time.

    Returns:
        False, without any change, if another transaction counted the request.
    """
    one = {"device": device, "request_id": request_id, "service_s": service_s}
    added = insert(connection, AUDITS).values(one).on_conflict_do_nothing().returning(AUDITS.c.device)
    if connection.execute(added).first() is None:
        return False
    for pool, lost in pools:
        replace_pool(connection, pool)
        share = Contribution(device, 1, int(lost), pool.last_s, service_s)
        row = {"pool": text_of(pool.key), **share._asdict()}
        upsert(connection, CONTRIBUTIONS, row, summed=("audits", "disagreements"))
    # Another replica may be deleting the same audits, and waits for a pool that is locked here.
    old = sa.select(AUDITS.c.device, AUDITS.c.request_id).where(AUDITS.c.service_s < service_s - DAY_S)
    ids = sa.tuple_(AUDITS.c.device, AUDITS.c.request_id)
    connection.execute(sa.delete(AUDITS).where(ids.in_(old.with_for_update(skip_locked=True))))
    return True


def replace_pool(connection: sa.Connection, pool: AuditPool) -> None:
    """Stores a pool, and replaces the previous one of its key."""
    key, hour = text_of(pool.key), int(pool.last_s // HOUR_S)
    upsert(connection, POOLS, {"key": key, "record": msgspec.json.encode(pool).decode()})
    numbers = {"audits": pool.state.audits, "e_value": audit.e_value(pool.state), "risk": pool.risk or 0.0}
    upsert(connection, EVIDENCE, {"pool": key, "hour": hour, **numbers})
    connection.execute(sa.delete(EVIDENCE).where(EVIDENCE.c.pool == key, EVIDENCE.c.hour < hour - _EVIDENCE_HOURS))


def delete_pools(connection: sa.Connection, model: ModelKey) -> int:
    """Deletes the pools of a version, and those that cannot be read; returns their number."""
    start = msgspec.json.encode(model).decode()[:-1] + ","  # how the text of each of their keys starts

    def delete(column: sa.Column[str], *which: sa.ColumnElement[bool]) -> int:
        mine = sa.func.substr(column, 1, len(start)) == start
        return connection.execute(sa.delete(column.table).where(mine, *which)).rowcount

    delete(CONTRIBUTIONS.c.pool)
    delete(EVIDENCE.c.pool)
    return delete(POOLS.c.key, POOLS.c.record.is_not(None))


def text_of(key: PoolKey) -> str:
    """Returns the key of a promise in the tables."""
    return msgspec.json.encode(key).decode()


class Skipped(StrEnum):
    """Why an audit was not counted; no reason depends on the audit's loss."""

    REPEATED = "repeated"  # this request was counted before
    DEVICE_LIMIT = "device_limit"  # this device had its share of the hour
    SPACING = "spacing"  # chance chose another audit of this source, or too many audits came within the spacing
    NOT_PROMISED = "not_promised"  # the bundle here makes no such promise
    DISK = "disk"  # the store refuses, and unstored audits do not count
    NO_ANSWER = "no_answer"  # the full model's outputs are not as declared


@dataclass(frozen=True, slots=True)
class Audit:
    """An audit that is still to be counted, of an answered request.

    Attributes:
        first: the first promise of the answer's edge variant. Replicas lock its pool before all others of the variant,
            because audits of different events have pools in common.
        losses: in [0, 1], for each promise that it tests; an event that cannot occur in it is left out.
        source: of the request; see `InferRequest`.
    """

    device: str
    request_id: str
    model: ModelKey
    note: AuditNote
    first: PoolKey
    losses: Mapping[PoolKey, float]
    source: str = ""


@dataclass(frozen=True, slots=True)
class Counted:
    """The pool after an audit; if the audit raised the alarm, the number of devices with audits in the pool."""

    pool: AuditPool
    lost: bool
    alarmed_devices: int | None


def count(
    connection: sa.Connection, one: Audit, settings: ContractsSection, *, service_s: float, now_s: float
) -> list[Counted] | Skipped:
    """Counts an audit in the pool of each promise that it tests.

    Args:
        connection: of the caller's transaction.
        one: the audit.
        settings: how many count.
        service_s: the store's own time, by which an audit is a repeat, one too many, or too soon after another.
        now_s: wall time, to be shown.
    """
    if is_counted(connection, one.device, one.request_id):
        return Skipped.REPEATED
    if count_since(connection, one.device, service_s - HOUR_S) >= settings.audits_per_device_hour:
        return Skipped.DEVICE_LIMIT
    found, left_out = [], []
    for key in sorted({one.first, *one.losses}):
        pool = locked(connection, key)
        if key not in one.losses:
            continue
        pool = new_pool(key, now_s) if pool is None else pool
        spacing_s, draw = settings.audit_spacing_s, _RNG.random()
        due, counts = with_recent(pool, one.device, one.source, spacing_s, service_s=service_s, draw=draw)
        if counts:
            loss = one.losses[key]
            found.append((pool, with_audit(due, one.note, loss, now_s=now_s, delta=settings.delta), loss > 0))
        else:
            left_out.append(due)
    if found or not left_out:
        after_audit = [(after, lost) for _, after, lost in found]
        if not add_audit(connection, one.device, one.request_id, after_audit, service_s=service_s):
            return Skipped.REPEATED
    for due in left_out:
        replace_pool(connection, due)
    if left_out and not found:
        return Skipped.SPACING
    outcome = []
    for before, after, lost in found:
        alarmed_devices = None
        if after.alarmed_s is not None and before.alarmed_s is None:
            alarmed_devices = devices(connection)[after.key]
            details = alarm_figures(after, alarmed_devices) | {"event": after.key.event}
            subject = f"bundle:{after.key.bundle}/{after.key.version}"
            audit_log.add(connection, now_s, "rule:contract", "contract.alarm", subject, **details)
        outcome.append(Counted(after, lost, alarmed_devices))
    return outcome


def alarm_figures(pool: AuditPool, devices: int) -> dict[str, Any]:
    """Returns the numbers behind the alarm of a pool, which has audits of this number of devices."""
    return {
        "finding": pool.finding,
        "model": pool.key.bundle,
        "version": pool.key.version,
        "edge_digest": pool.key.edge_digest,
        "threshold": pool.key.threshold,
        "epsilon": pool.key.epsilon,
        "audits": pool.state.audits,
        "disagreements": pool.disagreements,
        "risk": round(pool.risk or 0.0, 4),
        "e_value": round(audit.e_value(pool.state), 1),
        "devices": devices,
    }
