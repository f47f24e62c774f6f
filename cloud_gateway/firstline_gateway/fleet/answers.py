"""Promises that have ended on devices, for webhooks: each once, numbered in the order of their reports.

Devices report at least once, and every replica hears what they publish over MQTT, so a promise is stored under its
device and request id. The newest stays, so that numbers only grow.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct
from sqlalchemy import Boolean, Column, Connection, Double, Index, String, Table, UniqueConstraint, delete, func, select
from sqlalchemy import text as sql

from firstline_core.fleet.telemetry import EndedPromise
from firstline_gateway.store import schema
from firstline_gateway.store.schema import METADATA, SEQUENCE

KEPT_S = 7 * 86_400.0
"""Time after which they are deleted."""
OF_A_DEVICE = 10_000
"""The newest of one device that are kept, so that a device cannot fill the store."""

ANSWERS = Table(
    "fleet_answers",
    METADATA,
    Column("number", SEQUENCE, primary_key=True, autoincrement=True),
    Column("device", String(64), nullable=False),
    Column("request_id", String(64), nullable=False),
    Column("model", String(64), nullable=False),
    Column("version", String(64), nullable=False),
    Column("expired", Boolean, nullable=False),
    Column("changed", Boolean),
    Column("at_s", Double, nullable=False, index=True),
    UniqueConstraint("device", "request_id"),
    Index(None, "device", "number"),
)
_C = ANSWERS.c


class Ended(Struct, frozen=True):
    """A promise that has ended; the wall time is the gateway's. See `EndedPromise` for the other fields."""

    number: int
    device: str
    request_id: str
    model: str
    version: str
    expired: bool
    changed: bool | None
    at_s: float


def add(connection: Connection, device: str, promises: Sequence[EndedPromise], now_s: float) -> None:
    """Stores the promises that are not stored yet."""
    if connection.dialect.name == "postgresql":  # numbers become visible in their order, or a reader would miss one
        connection.execute(sql("LOCK TABLE fleet_answers IN SHARE ROW EXCLUSIVE MODE"))
    rows = [
        {
            "device": device,
            "request_id": each.request_id,
            "model": each.model,
            "version": each.version,
            "expired": each.expired,
            "changed": each.changed,
            "at_s": now_s,
        }
        for each in promises
    ]
    connection.execute(schema.insert(connection, ANSWERS).on_conflict_do_nothing(), rows)
    mine = select(_C.number).where(_C.device == device).order_by(_C.number.desc())
    oldest = connection.execute(mine.offset(OF_A_DEVICE).limit(1)).scalar_one_or_none()
    if oldest is not None:
        connection.execute(delete(ANSWERS).where(_C.device == device, _C.number <= oldest))


def last(connection: Connection) -> int:
    """Returns the number of the newest; 0 if there is none."""
    return connection.execute(select(func.max(_C.number))).scalar_one() or 0


def page(connection: Connection, after: int, limit: int) -> list[Ended]:
    """Returns the oldest after a number."""
    query = select(ANSWERS).where(_C.number > after).order_by(_C.number).limit(limit)
    return [Ended(**row._mapping) for row in connection.execute(query)]


def forget(connection: Connection, now_s: float) -> None:
    """Deletes old ones."""
    connection.execute(delete(ANSWERS).where(_C.at_s < now_s - KEPT_S, _C.number < last(connection)))
