"""The table of answers: operations within the caller's transaction.

An answer stays until it is too old or makes room for newer ones, so that applications can ask for it by id. Answers
that are still to be announced stay longer. Promises never make room.
"""

from __future__ import annotations

import math
import sqlite3
from collections.abc import Collection
from dataclasses import replace

import orjson

from firstline_core.errors import IntegrityError
from firstline_core.protocol.oip import Encoded
from firstline_core.storage.seals import Seal
from firstline_edge.outbox.database import Totals
from firstline_edge.outbox.item import RESTAMP_ROWS, restamp_answer
from firstline_edge.outbox.timeline import ClockJump


def keep(
    connection: sqlite3.Connection,
    totals: Totals,
    encoded: Encoded,
    *,
    request_id: str,
    principal: str,
    wall_s: float,
    announced: bool,
) -> None:
    """Adds an answer; `announced` is true if it need not be announced."""
    size_bytes = len(encoded.body)
    inserted = connection.execute(
        "INSERT INTO answers (request_id, principal, stored_wall_s, response, response_header, size_bytes, announced) "
        "VALUES (?,?,?,?,?,?,?)",
        (request_id, principal, wall_s, encoded.body, encoded.header_length, size_bytes, announced),
    )
    totals.newest = totals.newest._replace(answers=inserted.lastrowid or 0)
    totals.answers += 1
    totals.answer_bytes += size_bytes


def correct_sizes(connection: sqlite3.Connection) -> None:
    """Corrects the sizes of records: no seal covers them, and the limits count by them."""
    connection.execute("UPDATE answers SET size_bytes = length(response) WHERE size_bytes IS NOT length(response)")


def forget_old(connection: sqlite3.Connection, totals: Totals, oldest_wall_s: float, *, also_unannounced: bool) -> None:
    """Deletes the answers from before `oldest_wall_s`."""
    old = "stored_wall_s < ?" if also_unannounced else "stored_wall_s < ? AND announced = 1"
    count, size_bytes = connection.execute(
        f"SELECT count(*), coalesce(sum(size_bytes), 0) FROM answers WHERE {old}",  # noqa: S608
        (oldest_wall_s,),
    ).fetchone()
    if count:
        connection.execute(f"DELETE FROM answers WHERE {old}", (oldest_wall_s,))  # noqa: S608
        totals.answers -= count
        totals.answer_bytes -= size_bytes


def make_room(connection: sqlite3.Connection, totals: Totals, limit_bytes: int) -> None:
    """Deletes the oldest answers until the rest fits, announced ones first."""
    # The newest answer always stays: it was stored just now.
    while totals.answer_bytes > limit_bytes and totals.answers > 1:
        sequence, size_bytes = _oldest(connection, "WHERE announced = 1") or _oldest(connection)
        connection.execute("DELETE FROM answers WHERE sequence = ?", (sequence,))
        totals.answers -= 1
        totals.answer_bytes -= size_bytes


def _oldest(connection: sqlite3.Connection, of_these: str = "") -> tuple[int, int]:
    found: tuple[int, int] = connection.execute(
        f"SELECT sequence, size_bytes FROM answers {of_these} ORDER BY sequence LIMIT 1"  # noqa: S608
    ).fetchone()
    return found


def find(connection: sqlite3.Connection, request_id: str, principal: str) -> tuple[Encoded, float] | None:
    """Returns the final or expired answer under this id, and when it was stored."""
    row = connection.execute(
        "SELECT response, response_header, stored_wall_s FROM answers WHERE request_id = ? AND principal = ?",
        (request_id, principal),
    ).fetchone()
    return None if row is None else (Encoded(row[0], row[1]), row[2])


def unannounced(connection: sqlite3.Connection, limit: int) -> list[tuple[str, str, Encoded, float]]:
    """Returns ids, principals, bytes and times of the oldest answers that are still to be announced."""
    rows = connection.execute(
        "SELECT request_id, principal, response, response_header, stored_wall_s FROM answers WHERE announced = 0 "
        "ORDER BY sequence LIMIT ?",
        (limit,),
    )
    return [
        (request_id, principal, Encoded(body, header), wall_s) for request_id, principal, body, header, wall_s in rows
    ]


def note_announced(connection: sqlite3.Connection, request_ids: Collection[str]) -> None:
    """Marks these answers as announced."""
    connection.execute(
        "UPDATE answers SET announced = 1 WHERE request_id IN (SELECT value FROM json_each(?))",
        (orjson.dumps(list(request_ids)).decode(),),
    )


def restamp(connection: sqlite3.Connection, *, jump: ClockJump, seal: Seal) -> ClockJump | None:
    """Corrects the times of the latest answers after a clock jump; returns the rest of the jump, or None."""
    (least_s,) = connection.execute(
        "SELECT min(s) FROM (SELECT stored_wall_s AS s FROM answers WHERE s BETWEEN ? AND ? ORDER BY s DESC LIMIT ?)",
        (jump.from_s, jump.until_s, RESTAMP_ROWS),
    ).fetchone()
    if least_s is None:
        return None
    found = connection.execute(
        "SELECT request_id, principal, response, response_header, stored_wall_s FROM answers "
        "WHERE stored_wall_s BETWEEN ? AND ?",
        (least_s, jump.until_s),
    ).fetchall()
    for request_id, principal, body, header, wall_s in found:
        new_s = wall_s + jump.by_s
        try:
            encoded = restamp_answer(Encoded(body, header), request_id, principal, seal, before_s=wall_s, after_s=new_s)
        except IntegrityError:  # damaged: reading it reports that
            continue
        connection.execute(
            "UPDATE answers SET stored_wall_s = ?, response = ? WHERE request_id = ?", (new_s, encoded.body, request_id)
        )
    return replace(jump, until_s=math.nextafter(least_s, 0.0))
