"""The tables of promises (`items`) and of answers: operations within the caller's transaction.

A promise that has ended is an answer. An answer stays until it is too old or makes room for newer ones, so that
applications can ask for it by id. Answers that are still to be announced stay longer. Promises never make room.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Collection

import orjson

from firstline_core.errors import QueueFullError
from firstline_core.telemetry.wording import counted
from firstline_edge.outbox.database import ANSWER_BYTES, ITEM_BYTES, Transaction
from firstline_edge.outbox.item import StoredItem
from firstline_edge.outbox.timeline import ClockJump

ITEM_COLUMNS = "request_id, principal, model, version, rows, request, provisional, reached_gateway"

StoredPromise = tuple[StoredItem, float]
"""A promise, and the wall time at which it was made."""


def insert_promise(
    transaction: Transaction, stored: StoredItem, created_wall_s: float, *, limit_items: int, limit_bytes: int
) -> bool | QueueFullError:
    """Adds a promise.

    Returns:
        False if there is one with this id, waiting or ended; an error if a limit is reached: then nothing is stored or
        evicted.
    """
    connection, totals = transaction.connection, transaction.totals
    existing = connection.execute(
        "SELECT 1 FROM items WHERE request_id = ? UNION ALL SELECT 1 FROM answers WHERE request_id = ?",
        (stored.request_id, stored.request_id),
    ).fetchone()
    if existing is not None:
        return False
    if totals.items >= limit_items:
        return QueueFullError(f"The outbox holds {counted(totals.items, 'request')}, its limit.")
    if totals.item_bytes + stored.size_bytes > limit_bytes:
        return QueueFullError(
            f"The outbox holds {totals.item_bytes} of {limit_bytes} bytes; {stored.size_bytes} more do not fit."
        )
    values = (getattr(stored, name) for name in ITEM_COLUMNS.split(", "))
    inserted = connection.execute(
        f"INSERT INTO items ({ITEM_COLUMNS}, created_wall_s) VALUES (?,?,?,?,?,?,?,?,?)",  # noqa: S608
        (*values, created_wall_s),
    )
    totals.newest = totals.newest._replace(items=inserted.lastrowid or 0)
    totals.items += 1
    totals.item_bytes += stored.size_bytes
    return True


def delete_promise(transaction: Transaction, request_id: str) -> str | None:
    """Deletes a promise; returns its principal, None if there is no such promise."""
    deleted = transaction.connection.execute(
        f"DELETE FROM items WHERE request_id = ? RETURNING principal, {ITEM_BYTES}",  # noqa: S608
        (request_id,),
    ).fetchall()
    if not deleted:
        return None
    ((principal, size_bytes),) = deleted
    transaction.totals.items -= 1
    transaction.totals.item_bytes -= size_bytes
    return str(principal)


def oldest_promises(
    connection: sqlite3.Connection,
    limit: int,
    skip_ids: Collection[str],
    skip_models: Collection[tuple[str, str]],
    *,
    skip_reached_gateway: bool,
) -> list[StoredPromise]:
    """Returns the oldest promises.

    It skips the given ids and models, and, if asked, promises whose request the gateway received before.
    """
    condition = "reached_gateway = 0 AND" if skip_reached_gateway else ""  # as in the index, or it would not be used
    models = [f"{model}\x1f{version}" for model, version in skip_models]
    return _promises(
        connection,
        f"{condition} request_id NOT IN (SELECT value FROM json_each(?)) "  # noqa: S608
        "AND model || char(31) || version NOT IN (SELECT value FROM json_each(?)) ORDER BY sequence LIMIT ?",
        (_json(skip_ids), _json(models), limit),
    )


def promises_by_id(connection: sqlite3.Connection, request_ids: Collection[str]) -> list[StoredPromise]:
    """Returns these promises, without those that have ended meanwhile."""
    condition = "request_id IN (SELECT value FROM json_each(?)) ORDER BY sequence"
    return _promises(connection, condition, (_json(request_ids),))


def insert_answer(
    transaction: Transaction, sealed: bytes, *, request_id: str, principal: str, wall_s: float, announced: bool
) -> None:
    """Adds an answer; `announced` is true if it need not be announced."""
    totals = transaction.totals
    inserted = transaction.connection.execute(
        "INSERT INTO answers (request_id, principal, stored_wall_s, response, announced) VALUES (?,?,?,?,?)",
        (request_id, principal, wall_s, sealed, announced),
    )
    totals.newest = totals.newest._replace(answers=inserted.lastrowid or 0)
    totals.answers += 1
    totals.answer_bytes += len(sealed)


def delete_old_answers(transaction: Transaction, oldest_wall_s: float, *, also_unannounced: bool) -> None:
    """Deletes the answers from before `oldest_wall_s`."""
    condition = "stored_wall_s < ?" if also_unannounced else "stored_wall_s < ? AND announced = 1"
    deleted = transaction.connection.execute(
        f"DELETE FROM answers WHERE {condition} RETURNING {ANSWER_BYTES}",  # noqa: S608
        (oldest_wall_s,),
    ).fetchall()
    transaction.totals.answers -= len(deleted)
    transaction.totals.answer_bytes -= sum(size_bytes for (size_bytes,) in deleted)


def make_room_for_answers(transaction: Transaction, limit_bytes: int) -> None:
    """Deletes the oldest answers until the rest fits, announced ones first."""
    connection, totals = transaction.connection, transaction.totals
    select = f"SELECT sequence, {ANSWER_BYTES} FROM answers {{}} ORDER BY sequence LIMIT 1"  # noqa: S608
    # The newest answer always stays: it was stored just now.
    while totals.answer_bytes > limit_bytes and totals.answers > 1:
        oldest = connection.execute(select.format("WHERE announced = 1")).fetchone()
        sequence, size_bytes = oldest or connection.execute(select.format("")).fetchone()
        connection.execute("DELETE FROM answers WHERE sequence = ?", (sequence,))
        totals.answers -= 1
        totals.answer_bytes -= size_bytes


def find_provisional(connection: sqlite3.Connection, request_id: str, principal: str) -> bytes | None:
    """Returns the sealed provisional answer of a promise that still waits."""
    row = connection.execute(
        "SELECT provisional FROM items WHERE request_id = ? AND principal = ?", (request_id, principal)
    ).fetchone()
    return None if row is None else row[0]


def find_answer(connection: sqlite3.Connection, request_id: str, principal: str) -> bytes | None:
    """Returns the sealed final or expired answer under this id."""
    row = connection.execute(
        "SELECT response FROM answers WHERE request_id = ? AND principal = ?", (request_id, principal)
    ).fetchone()
    return None if row is None else row[0]


def unannounced_answers(connection: sqlite3.Connection, limit: int) -> list[tuple[str, str, bytes]]:
    """Returns ids, principals and bytes of the oldest answers that are still to be announced."""
    return connection.execute(
        "SELECT request_id, principal, response FROM answers WHERE announced = 0 ORDER BY sequence LIMIT ?", (limit,)
    ).fetchall()


def shift_times(transaction: Transaction, jump: ClockJump) -> None:
    """Corrects the times that were stored before the wall clock was set ahead."""
    for table, column in (("items", "created_wall_s"), ("answers", "stored_wall_s")):
        transaction.connection.execute(
            f"UPDATE {table} SET {column} = {column} + ? WHERE {column} BETWEEN ? AND ?",  # noqa: S608
            (jump.by_s, jump.from_s, jump.until_s),
        )


def mark_announced(transaction: Transaction, request_ids: Collection[str]) -> None:
    """Marks these answers as announced."""
    transaction.connection.execute(
        "UPDATE answers SET announced = 1 WHERE request_id IN (SELECT value FROM json_each(?))", (_json(request_ids),)
    )


def delete_all(transaction: Transaction) -> list[str]:
    """Deletes all promises and answers, and writes zeros over them; returns the ids of the promises."""
    connection, totals = transaction.connection, transaction.totals
    connection.execute("PRAGMA secure_delete = ON")
    ended = [request_id for (request_id,) in connection.execute("DELETE FROM items RETURNING request_id")]
    connection.execute("DELETE FROM answers")
    connection.execute("PRAGMA secure_delete = FAST")
    totals.items = totals.item_bytes = totals.answers = totals.answer_bytes = 0
    return ended


def count_records(connection: sqlite3.Connection) -> tuple[int, int, int, int]:
    """Returns the number of promises, their bytes, the number of answers and their bytes."""
    count = "SELECT count(*), coalesce(sum({}), 0) FROM {}"
    items, item_bytes = connection.execute(count.format(ITEM_BYTES, "items")).fetchone()
    answers, answer_bytes = connection.execute(count.format(ANSWER_BYTES, "answers")).fetchone()
    return items, item_bytes, answers, answer_bytes


def read_times(connection: sqlite3.Connection) -> tuple[float, list[tuple[str, float]]]:
    """Returns the newest stored time, and the ids of all promises with their times, oldest first."""
    newest = "SELECT max(created_wall_s) AS s FROM items UNION ALL SELECT max(stored_wall_s) FROM answers"
    (newest_wall_s,) = connection.execute(f"SELECT max(s) FROM ({newest})").fetchone()  # noqa: S608
    created = connection.execute("SELECT request_id, created_wall_s FROM items ORDER BY created_wall_s, sequence")
    return float(newest_wall_s or 0.0), created.fetchall()


def _promises(connection: sqlite3.Connection, condition: str, values: tuple[object, ...]) -> list[StoredPromise]:
    rows = connection.execute(f"SELECT {ITEM_COLUMNS}, created_wall_s FROM items WHERE {condition}", values)  # noqa: S608
    return [(StoredItem(*columns), created_wall_s) for *columns, created_wall_s in rows]


def _json(texts: Collection[str]) -> str:
    return orjson.dumps(list(texts)).decode()
