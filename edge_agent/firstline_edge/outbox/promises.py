"""The table of promises: operations within the caller's transaction."""

from __future__ import annotations

import math
import sqlite3
from collections.abc import Collection
from dataclasses import replace

import orjson

from firstline_core.errors import IntegrityError, QueueFullError
from firstline_core.storage.seals import Seal
from firstline_core.telemetry.wording import counted
from firstline_edge.outbox.database import Totals
from firstline_edge.outbox.item import FIXED_BYTES, RESTAMP_ROWS, StoredItem, restamp_request
from firstline_edge.outbox.timeline import ClockJump

_COLUMNS = (
    "request_id, principal, model, version, rows, request, request_header, provisional, provisional_header, asked"
)


def insert(
    connection: sqlite3.Connection,
    totals: Totals,
    stored: StoredItem,
    created_wall_s: float,
    *,
    limit_items: int,
    limit_bytes: int,
) -> bool | QueueFullError:
    """Adds a promise.

    Returns:
        False if it is known already, waiting or ended; an error if a limit is reached: then nothing is stored or
        evicted.
    """
    known = connection.execute(
        "SELECT 1 FROM items WHERE request_id = ? UNION ALL SELECT 1 FROM answers WHERE request_id = ?",
        (stored.request_id, stored.request_id),
    ).fetchone()
    if known is not None:
        return False
    if totals.items >= limit_items:
        return QueueFullError(f"The outbox holds {counted(totals.items, 'request')}, its limit.")
    if totals.item_bytes + stored.size_bytes > limit_bytes:
        return QueueFullError(
            f"The outbox holds {totals.item_bytes} of {limit_bytes} bytes; {stored.size_bytes} more do not fit."
        )
    values = (getattr(stored, name) for name in _COLUMNS.split(", "))
    inserted = connection.execute(
        f"INSERT INTO items ({_COLUMNS}, created_wall_s, size_bytes) VALUES (?,?,?,?,?,?,?,?,?,?,?,?)",  # noqa: S608
        (*values, created_wall_s, stored.size_bytes),
    )
    totals.newest = totals.newest._replace(items=inserted.lastrowid or 0)
    totals.items += 1
    totals.item_bytes += stored.size_bytes
    return True


def correct_sizes(connection: sqlite3.Connection) -> None:
    """Corrects the sizes of records: no seal covers them, and the limits count by them."""
    size = f"length(request) + length(provisional) + length(rows) + {FIXED_BYTES}"
    connection.execute(f"UPDATE items SET size_bytes = {size} WHERE size_bytes IS NOT {size}")  # noqa: S608


def delete(connection: sqlite3.Connection, totals: Totals, request_id: str) -> str | None:
    """Deletes a promise; returns its principal, None if there is no such promise."""
    found = connection.execute("SELECT principal, size_bytes FROM items WHERE request_id = ?", (request_id,)).fetchone()
    if found is None:
        return None
    connection.execute("DELETE FROM items WHERE request_id = ?", (request_id,))
    totals.items -= 1
    totals.item_bytes -= found[1]
    principal: str = found[0]
    return principal


def find_provisional(
    connection: sqlite3.Connection, request_id: str, principal: str
) -> tuple[bytes, int | None] | None:
    """Returns the provisional answer of a promise that still waits."""
    row: tuple[bytes, int | None] | None = connection.execute(
        "SELECT provisional, provisional_header FROM items WHERE request_id = ? AND principal = ?",
        (request_id, principal),
    ).fetchone()
    return row


def oldest(
    connection: sqlite3.Connection,
    limit: int,
    besides: Collection[str],
    besides_models: Collection[tuple[str, str]],
    *,
    besides_asked: bool,
) -> list[tuple[StoredItem, float]]:
    """Returns the oldest promises with the wall time of each.

    It skips the given ids and models, and, with `besides_asked`, promises whose request the gateway received before.
    """
    of_these = "asked = 0 AND" if besides_asked else ""  # as in the index, or it would not be used
    models = [f"{model}\x1f{version}" for model, version in besides_models]
    rows = connection.execute(
        f"SELECT {_COLUMNS}, created_wall_s FROM items "  # noqa: S608
        f"WHERE {of_these} request_id NOT IN (SELECT value FROM json_each(?)) "
        "AND model || char(31) || version NOT IN (SELECT value FROM json_each(?)) ORDER BY sequence LIMIT ?",
        (_json(besides), _json(models), limit),
    )
    return [(StoredItem(*columns), created_wall_s) for *columns, created_wall_s in rows]


def by_id(connection: sqlite3.Connection, request_ids: Collection[str]) -> list[tuple[StoredItem, float]]:
    """Returns these promises with the wall time of each, without those that have ended meanwhile."""
    rows = connection.execute(
        f"SELECT {_COLUMNS}, created_wall_s FROM items "  # noqa: S608
        "WHERE request_id IN (SELECT value FROM json_each(?)) ORDER BY sequence",
        (_json(request_ids),),
    )
    return [(StoredItem(*columns), created_wall_s) for *columns, created_wall_s in rows]


def restamp(connection: sqlite3.Connection, *, jump: ClockJump, seal: Seal) -> ClockJump | None:
    """Corrects the times of the latest promises after a clock jump; returns the rest of the jump, or None."""
    (least_s,) = connection.execute(
        "SELECT min(s) FROM (SELECT created_wall_s AS s FROM items WHERE s BETWEEN ? AND ? ORDER BY s DESC LIMIT ?)",
        (jump.from_s, jump.until_s, RESTAMP_ROWS),
    ).fetchone()
    if least_s is None:
        return None
    found = connection.execute(
        f"SELECT {_COLUMNS}, created_wall_s FROM items WHERE created_wall_s BETWEEN ? AND ?",  # noqa: S608
        (least_s, jump.until_s),
    ).fetchall()
    for *columns, created_wall_s in found:
        stored, new_s = StoredItem(*columns), created_wall_s + jump.by_s
        try:
            request = restamp_request(stored, seal, before_s=created_wall_s, after_s=new_s)
        except IntegrityError:  # damaged: reading it reports that
            continue
        connection.execute(
            "UPDATE items SET created_wall_s = ?, request = ? WHERE request_id = ?", (new_s, request, stored.request_id)
        )
    return replace(jump, until_s=math.nextafter(least_s, 0.0))


def _json(texts: Collection[str]) -> str:
    return orjson.dumps(list(texts)).decode()
