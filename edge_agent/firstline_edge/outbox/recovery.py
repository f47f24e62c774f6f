"""A damaged outbox: what can still be read of it goes into a fresh one, and the damaged file is set aside.

Promises and answers count where their seals open, and a promise that has an answer has ended. The fresh outbox is
written in full beside the damaged one before it takes its place, so that a power cut on the way costs nothing.
"""

from __future__ import annotations

import contextlib
import math
import sqlite3
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from firstline_core.errors import CapacityError, ConfigError, FirstlineError
from firstline_core.protocol.oip import Encoded
from firstline_core.storage.files import DAMAGED, set_aside, sync_folder
from firstline_core.storage.seals import HEAD_BYTES, Seal
from firstline_core.telemetry.logs import logger
from firstline_core.telemetry.wording import counted
from firstline_edge.outbox import salvage
from firstline_edge.outbox.database import (
    LEAST_BYTES,
    DamagedError,
    accepted_frames,
    empty_log,
    make_private,
    open_writer,
)
from firstline_edge.outbox.item import StoredItem, unpack, unpack_answer, unpack_provisional
from firstline_edge.outbox.salvage import Row

log = logger(__name__)

_FRESH, _BEGUN = ".fresh", ".begun"
_JOURNALS = ("-wal", "-shm", "-journal")
# By how many columns a row has, in the order in which the formats made them; the earlier formats lack the last one.
_ITEM_COLUMNS = (12, 13)
_ANSWER_COLUMNS = (7, 8)
_SEALED = (("items", "request"), ("items", "provisional"), ("answers", "response"))


@dataclass(frozen=True, slots=True)
class Opened:
    """An outbox that can be written.

    Args:
        connection: for writing.
        damage: what had happened to the one before, in sentences; "" where nothing had.
    """

    connection: sqlite3.Connection
    damage: str = ""


def open_or_recover(path: Path, seal: Seal) -> Opened:
    """The outbox for writing, a fresh one where it is damaged or written with a key that is not here.

    Args:
        path: of the database; no other process uses it.
        seal: opens its records.

    Raises:
        ConfigError: a newer version wrote it.
        CapacityError: the disk refuses.
    """
    try:
        _finish(path)
        if not path.exists():
            _begin(path)
        make_private(path)
        if path.stat().st_size < LEAST_BYTES:
            return _replaced(path, seal, "It was damaged (it was cut off)")
        try:
            connection = open_writer(path)
        except DamagedError as error:
            return _replaced(path, seal, f"It was damaged ({error})")
        with contextlib.ExitStack() as undo:
            undo.callback(connection.close)
            damage = _take_up_log(connection, path, seal)
            if _knows_keys(connection, seal):
                undo.pop_all()
                return Opened(connection, damage)
        why = "Some of it was encrypted with a key that encryption.key_file does not hold"
        # Whoever puts the right key back after a wrong one must not lose by that what the right one opens.
        if (aside := path.with_name(path.name + DAMAGED)).exists():
            raise CapacityError(
                f"The outbox {path} cannot be used. {why}, and {aside.name} was set aside before, maybe for the same "
                f"reason. Put that file or that key back, or move {aside.name} elsewhere."
            ) from ConfigError(f"{why}.")
        return _replaced(path, seal, why)
    except (OSError, sqlite3.Error, DamagedError) as error:  # the last of what was written just now
        raise CapacityError(f"The outbox {path} cannot be opened: {error}.") from error


def _begin(path: Path) -> None:
    """The first outbox, made beside its place: what is empty there was cut off, and is no new one."""
    begun = path.with_name(path.name + _BEGUN)
    for suffix in ("", *_JOURNALS):
        begun.with_name(begun.name + suffix).unlink(missing_ok=True)
    make_private(begun)
    with contextlib.closing(open_writer(begun, alone=True)) as connection:
        empty_log(connection)
    begun.replace(path)
    sync_folder(path.parent)


def _replaced(path: Path, seal: Seal, why: str) -> Opened:
    fresh = path.with_name(path.name + _FRESH)
    make_private(fresh)
    with contextlib.closing(open_writer(fresh)) as connection:
        promises, answers = _take_over(connection, salvage.rows(path), seal, whole=False)
        empty_log(connection)  # which does not go with the file into its place
    aside = set_aside(path)
    _finish(path)
    damage = (
        f"{why}, and was set aside as {aside.name}; what could still be read was kept: "
        f"{counted(promises, 'promised correction')} and {counted(answers, 'answer')}."
    )
    log.error("outbox replaced", path=str(path), said=damage)
    return Opened(open_writer(path), damage)


def _finish(path: Path) -> None:
    """Puts a fresh outbox into its place, or forgets it: it is whole once the damaged one was set aside."""
    fresh, aside = path.with_name(path.name + _FRESH), path.with_name(path.name + DAMAGED)
    if fresh.exists() and not path.exists():
        for suffix in _JOURNALS:  # the damaged one's: the fresh one must never meet them
            aside.with_name(aside.name + suffix).unlink(missing_ok=True)
            if (journal := path.with_name(path.name + suffix)).exists():
                journal.replace(aside.with_name(aside.name + suffix))
        fresh.replace(path)
        sync_folder(path.parent)
    for suffix in ("", *_JOURNALS):
        fresh.with_name(fresh.name + suffix).unlink(missing_ok=True)


def _knows_keys(connection: sqlite3.Connection, seal: Seal) -> bool:
    for table, column in _SEALED:
        heads = connection.execute(f"SELECT DISTINCT substr({column}, 1, {HEAD_BYTES}) FROM {table}")  # noqa: S608
        if not all(seal.knows(head) for (head,) in heads):
            return False
    return True


def _take_up_log(connection: sqlite3.Connection, path: Path, seal: Seal) -> str:
    """Saves what stands in the log after a frame that is damaged, where SQLite stops to read; says so if it was.

    After a power cut that may be one group of promises that was never acknowledged; it is no harm to keep those. What
    the database has counted already is not taken from there: it may have ended since.
    """
    frames = accepted_frames(connection)
    if frames < 0 or not (transactions := salvage.transactions_beyond(path, frames)):
        return ""
    counts = {"items": 0, "answers": 0} | dict(connection.execute("SELECT name, seq FROM sqlite_sequence").fetchall())
    known = dict.fromkeys(_ITEM_COLUMNS, counts["items"]) | dict.fromkeys(_ANSWER_COLUMNS, counts["answers"])
    new = [row for row in salvage.rows_beyond(path, frames) if row[0] > known.get(len(row), math.inf)]
    promises, answers = _take_over(connection, new, seal, whole=True) if new else (0, 0)
    if transactions < 2:  # as after any power cut
        return ""
    kept = f"{counted(promises, 'promised correction')} and {counted(answers, 'answer')}"
    damage = f"Its log was damaged; what stood behind was kept: {kept}."
    log.error("outbox log damaged", path=str(path), said=damage)
    return damage


def _take_over(connection: sqlite3.Connection, rows: Iterable[Row], seal: Seal, *, whole: bool) -> tuple[int, int]:
    """Adds what can be read; returns how many promises and answers that were.

    Args:
        connection: of the outbox that gains them.
        rows: of any table.
        seal: opens them.
        whole: passes over promises whose request cannot be read: these may never have been acknowledged. Others are
            taken, to end as expired, with the answer that was given.
    """
    count = "SELECT (SELECT count(*) FROM items), (SELECT count(*) FROM answers)"
    before = connection.execute(count).fetchone()
    connection.execute("BEGIN IMMEDIATE")
    try:
        for row in rows:
            if len(row) in _ITEM_COLUMNS:
                _take_item(connection, row, seal, whole=whole)
            elif len(row) in _ANSWER_COLUMNS:
                _take_answer(connection, row, seal)
        connection.execute("DELETE FROM items WHERE request_id IN (SELECT request_id FROM answers)")
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise
    after = connection.execute(count).fetchone()
    return after[0] - before[0], after[1] - before[1]


def _take_item(connection: sqlite3.Connection, row: Row, seal: Seal, *, whole: bool) -> None:
    sequence, request_id, principal, model, version, created_wall_s, positions, request, header, *rest = row
    provisional, provisional_header, _size_bytes, *asked = rest
    try:
        stored = StoredItem(
            *(request_id, principal, model, version, positions, request, header, provisional, provisional_header),
            asked=asked != [0],
        )
        created_s = _genuine_time(stored, float(created_wall_s), seal)
        if whole and created_s is None:
            return
        unpack_provisional(provisional, provisional_header, request_id, principal, seal)
        values = (sequence, request_id, principal, model, version, created_s or 0.0, positions, request, header)
        more = (provisional, provisional_header, stored.size_bytes, stored.asked)
    except (FirstlineError, TypeError, ValueError):
        return
    connection.execute("INSERT OR IGNORE INTO items VALUES (?,?,?,?,?,?,?,?,?,?,?,?,?)", (*values, *more))


def _genuine_time(stored: StoredItem, created_wall_s: float, seal: Seal) -> float | None:
    """When a promise was made; None where its request cannot be read, to whose seal the time belongs: it is to end."""
    try:
        return unpack(stored, created_wall_s, seal).created_wall_s
    except FirstlineError:
        return None


def _take_answer(connection: sqlite3.Connection, row: Row, seal: Seal) -> None:
    sequence, request_id, principal, stored_wall_s, response, header, _size_bytes, *announced = row
    try:
        unpack_answer(Encoded(response, header), stored_wall_s, request_id, principal, seal)
        values = (sequence, request_id, principal, stored_wall_s, response, header, len(response))
    except (FirstlineError, TypeError, ValueError):
        return
    connection.execute("INSERT OR IGNORE INTO answers VALUES (?,?,?,?,?,?,?,?)", (*values, announced != [0]))
