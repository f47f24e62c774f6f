"""Promises that have ended on devices, for webhooks: each once, numbered in the order of their reports.

Devices report at least once, and every replica hears what they publish over MQTT, so a promise is stored under its
device and request id. The newest stays, so that numbers only grow.
"""

from __future__ import annotations

from collections.abc import Sequence

import sqlalchemy as sa
from msgspec.structs import asdict

from firstline_core.fleet.telemetry import EndedPromise
from firstline_gateway.store.schema import METADATA, SEQUENCE, insert_missing

KEPT_S = 7 * 86_400.0
"""Seconds in service after which they are deleted: a clock that is set ahead deletes none that waits for a webhook."""
OF_A_DEVICE = 10_000
"""The newest of one device that are kept, so that a device cannot fill the store."""

ANSWERS = sa.Table(
    "fleet_answers",
    METADATA,
    sa.Column("number", SEQUENCE, primary_key=True, autoincrement=True),
    sa.Column("device", sa.String(64), nullable=False),
    sa.Column("request_id", sa.String(64), nullable=False),
    sa.Column("model", sa.String(64), nullable=False),
    sa.Column("version", sa.String(64), nullable=False),
    sa.Column("expired", sa.Boolean, nullable=False),
    sa.Column("changed", sa.Boolean),
    sa.Column("at_s", sa.Double, nullable=False),
    sa.Column("service_s", sa.Double, nullable=False, index=True),
    sa.UniqueConstraint("device", "request_id"),
    sa.Index(None, "device", "number"),
)
_C = ANSWERS.c


class StoredEnd(EndedPromise, frozen=True, kw_only=True):
    """A promise that has ended, with its number, its device, and the gateway's wall time of its report."""

    number: int
    device: str
    at_s: float


_COLUMNS = tuple(_C[name] for name in StoredEnd.__struct_fields__)


def add(
    connection: sa.Connection, device: str, promises: Sequence[EndedPromise], *, now_s: float, service_s: float
) -> None:
    """Stores the promises that are not stored yet.

    On PostgreSQL it locks the table until the transaction ends, which must therefore lock nothing else.
    """
    if connection.dialect.name == "postgresql":  # numbers become visible in their order, or a reader would miss one
        connection.execute(sa.text("LOCK TABLE fleet_answers IN SHARE ROW EXCLUSIVE MODE"))
    row = {"device": device, "at_s": now_s, "service_s": service_s}
    insert_missing(connection, ANSWERS, *(row | asdict(each) for each in promises))
    mine = sa.select(_C.number).where(_C.device == device).order_by(_C.number.desc())
    oldest = connection.execute(mine.offset(OF_A_DEVICE).limit(1)).scalar_one_or_none()
    if oldest is not None:
        connection.execute(sa.delete(ANSWERS).where(_C.device == device, _C.number <= oldest))


def last(connection: sa.Connection) -> int:
    """Returns the number of the newest; 0 if there is none."""
    return connection.execute(sa.select(sa.func.max(_C.number))).scalar_one() or 0


def page(connection: sa.Connection, after: int, limit: int) -> list[StoredEnd]:
    """Returns the oldest after a number."""
    query = sa.select(*_COLUMNS).where(_C.number > after).order_by(_C.number).limit(limit)
    return [StoredEnd(**row._mapping) for row in connection.execute(query)]


def forget(connection: sa.Connection, service_s: float) -> None:
    """Deletes old ones."""
    connection.execute(sa.delete(ANSWERS).where(_C.service_s < service_s - KEPT_S, _C.number < last(connection)))
