"""Replaces a damaged outbox by a fresh one with every record that SQLite can still read; sets the old file aside.

Rows are read one by one through SQLite. A promise or an answer counts if its seal opens, and a promise that has an
answer has ended. If SQLite cannot open the file, all of it is lost, and `damage` says so. The fresh outbox is
complete before it takes the place of the damaged one, so a power cut on the way costs nothing. A damaged log is
noticed by the high-water mark (`database.py`), and the lost records are reported.
"""

from __future__ import annotations

import contextlib
import sqlite3
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from firstline_core.clock import EARLIEST_PLAUSIBLE_WALL_S
from firstline_core.errors import CapacityError, ConfigError, FirstlineError
from firstline_core.storage.files import DAMAGED, set_aside, sync_folder
from firstline_core.storage.seals import HEAD_BYTES, Seal
from firstline_core.telemetry.logs import logger
from firstline_core.telemetry.wording import counted
from firstline_edge.outbox import database
from firstline_edge.outbox.database import SQLITE_ERRORS, DamagedError, HighWaterMark, Receiver, RowNumbers
from firstline_edge.outbox.item import ANSWER, PROVISIONAL, open_answer
from firstline_edge.state import is_refusal

log = logger(__name__)

Row = tuple[Any, ...]

_FRESH, _BEGUN = ".fresh", ".begun"
_JOURNALS = ("-wal", "-shm", "-journal")
_SEALED = (("items", "request"), ("items", "provisional"), ("answers", "response"))
# The last column of each is the time, which an index holds too.
_COLUMNS = {
    "items": ("sequence", *database.ITEM_COLUMNS),
    "answers": ("sequence", "request_id", "principal", "response", *Receiver, "stored_wall_s"),
}
_UNKNOWN_TIME = -1.0
_LATEST_PLAUSIBLE_WALL_S = 4_102_444_800.0  # 2100-01-01


@dataclass(frozen=True, slots=True)
class OpenedOutbox:
    """An outbox that can be written.

    Args:
        connection: for writing.
        mark: of the database.
        newest: row numbers after which new rows continue; above those of the database if records are missing.
        damage: describes the damage to the previous file; "" if there was none.
    """

    connection: sqlite3.Connection
    mark: HighWaterMark
    newest: RowNumbers
    damage: str = ""


def open_or_recover(path: Path, seal: Seal, now_wall_s: float) -> OpenedOutbox:
    """Opens the outbox for writing; replaces it if it is damaged or was written with a key that is missing.

    Args:
        path: of the database; no other process uses it.
        seal: opens its records.
        now_wall_s: the wall clock; no seal covers times, so a damaged time that an index does not confirm must be
            earlier.

    Raises:
        ConfigError: a newer version wrote it.
        CapacityError: the disk refuses.
    """
    try:
        _finish(path)
        if not path.exists():
            _begin(path)
        database.make_private(path)
        if path.stat().st_size < database.LEAST_BYTES:
            return _replace(path, seal, now_wall_s, "It was damaged (it was cut off)")
        try:
            connection = database.open_writer(path)
        except DamagedError as error:
            return _replace(path, seal, now_wall_s, f"It was damaged ({error})")
        with contextlib.ExitStack() as undo:
            undo.callback(connection.close)
            if _can_decrypt_all(connection, seal):
                mark = HighWaterMark(path, connection)
                undo.callback(mark.close)
                acknowledged, stored = mark.read(), database.newest_rows(connection)
                newest = RowNumbers(*map(max, acknowledged, stored))
                damages = (database.unreported_damage(connection), _missing_records(acknowledged, stored))
                damage = " ".join(filter(None, damages))
                undo.pop_all()
                return OpenedOutbox(connection, mark, newest, damage)
        why = "Some of it was encrypted with a key that encryption.key_file does not hold"
        # An operator who restores the right key after a wrong one must not lose the items that it decrypts.
        if (aside := path.with_name(path.name + DAMAGED)).exists():
            raise CapacityError(
                f"The outbox {path} cannot be used. {why}, and {aside.name} was set aside before, maybe for the same "
                f"reason. Put that file or that key back, or move {aside.name} elsewhere."
            ) from ConfigError(f"{why}.")
        return _replace(path, seal, now_wall_s, why)
    except (OSError, *SQLITE_ERRORS, DamagedError) as error:  # the last of what was written just now
        raise CapacityError(f"The outbox {path} cannot be opened: {error}.") from error


def _begin(path: Path) -> None:
    """Creates the first outbox under another name, and renames it once it is complete.

    So if the file of the outbox is empty, it was cut off: no interrupted start leaves one behind.
    """
    begun = path.with_name(path.name + _BEGUN)
    for suffix in ("", *_JOURNALS):
        begun.with_name(begun.name + suffix).unlink(missing_ok=True)
    database.make_private(begun)
    with contextlib.closing(database.open_writer(begun, alone=True)) as connection:
        database.empty_log(connection)
    begun.replace(path)
    sync_folder(path.parent)


def _replace(path: Path, seal: Seal, now_wall_s: float, why: str) -> OpenedOutbox:
    fresh = path.with_name(path.name + _FRESH)
    database.make_private(fresh)
    with contextlib.closing(database.open_writer(fresh)) as connection:
        recovered = _recover(connection, path, seal, now_wall_s)
        if recovered is None:
            became = "SQLite cannot open it, so every promised correction and every answer in it is lost"
        else:
            promises, answers = recovered
            became = (
                "what could still be read was kept: "
                f"{counted(promises, 'promised correction')} and {counted(answers, 'answer')}"
            )
        damage = f"{why}, and was set aside as {path.name}{DAMAGED}; {became}."
        database.store_damage(connection, damage)  # for the next start, if this one fails
        database.empty_log(connection)  # which is not renamed with the file
    set_aside(path)
    _finish(path)
    log.error("outbox replaced", path=str(path), damage=damage)
    connection = database.open_writer(path)
    try:
        return OpenedOutbox(connection, HighWaterMark(path, connection), database.newest_rows(connection), damage)
    except BaseException:
        connection.close()
        raise


def _missing_records(acknowledged: RowNumbers, stored: RowNumbers) -> str:
    """Describes the acknowledged records whose commits were lost with a damaged log; "" if none are missing."""
    items, answers = max(0, acknowledged.items - stored.items), max(0, acknowledged.answers - stored.answers)
    if not items and not answers:
        return ""
    lost = " and ".join(counted(*what) for what in ((items, "promised correction"), (answers, "answer")) if what[0])
    damage = f"Its log was damaged, and the end of it could not be read: {lost} that were acknowledged are lost."
    log.error("outbox records lost", damage=damage)
    return damage


def _finish(path: Path) -> None:
    """Puts a fresh outbox into its place, or deletes it: it is whole once the damaged one was set aside."""
    fresh, aside = path.with_name(path.name + _FRESH), path.with_name(path.name + DAMAGED)
    if fresh.exists() and not path.exists():
        for suffix in _JOURNALS:  # of the damaged file, which must not be applied to the fresh one
            aside.with_name(aside.name + suffix).unlink(missing_ok=True)
            if (journal := path.with_name(path.name + suffix)).exists():
                journal.replace(aside.with_name(aside.name + suffix))
        fresh.replace(path)
        sync_folder(path.parent)
    for suffix in ("", *_JOURNALS):
        fresh.with_name(fresh.name + suffix).unlink(missing_ok=True)


def _can_decrypt_all(connection: sqlite3.Connection, seal: Seal) -> bool:
    for table, column in _SEALED:
        heads = connection.execute(f"SELECT DISTINCT substr({column}, 1, {HEAD_BYTES}) FROM {table}")  # noqa: S608
        if not all(seal.has_key_of(head) for (head,) in heads):
            return False
    return True


def _recover(fresh: sqlite3.Connection, damaged: Path, seal: Seal, now_wall_s: float) -> tuple[int, int] | None:
    """Copies what can be read; returns the numbers of promises and answers, None if SQLite cannot open the file.

    Raises:
        sqlite3.Error: the disk refuses, so the damaged file may hold more than could be read now.
    """
    if damaged.stat().st_size < database.LEAST_BYTES:  # SQLite would take it for a new one
        return None
    with contextlib.closing(database.open_reader(damaged)) as old:
        old.execute("PRAGMA writable_schema = ON")  # or SQLite reads nothing of a file that was cut off
        if not _scan(old, "SELECT name FROM sqlite_schema", both_ways=False):
            return None
        fresh.execute("BEGIN IMMEDIATE")
        for table in _COLUMNS:
            _copy(old, fresh, table, seal, now_wall_s)
        fresh.execute("DELETE FROM items WHERE request_id IN (SELECT request_id FROM answers)")
        fresh.execute("COMMIT")
    count = "SELECT (SELECT count(*) FROM items), (SELECT count(*) FROM answers)"
    found: tuple[int, int] = fresh.execute(count).fetchone()
    return found


def _copy(old: sqlite3.Connection, fresh: sqlite3.Connection, table: str, seal: Seal, now_wall_s: float) -> None:
    """Copies the genuine records of a table, oldest first.

    A time is unknown if the index has another one, or has none and the time is implausible. The record then counts as
    one of the newest, or as stored now if no time is known.
    """
    columns = _COLUMNS[table]
    names, time = ", ".join(columns), columns[-1]
    one = f"SELECT {names} FROM {table} WHERE sequence = ?"  # noqa: S608
    insert = f"INSERT OR IGNORE INTO {table} ({names}) VALUES ({', '.join('?' * len(columns))})"  # noqa: S608
    by_age = f"SELECT sequence, {time} FROM {table} INDEXED BY {table}_by_age ORDER BY {time}"  # noqa: S608
    times: dict[int, float] = dict(_scan(old, by_age))
    # A damaged page stops a scan, so rows are looked for in the table and in the indexes that cover it.
    found = set(times)
    for column in ("sequence", "request_id"):
        found.update(number for (number,) in _scan(old, f"SELECT sequence FROM {table} ORDER BY {column}"))  # noqa: S608
    for sequence in sorted(found):
        for row in _scan(old, one, (sequence,), both_ways=False):
            if _is_genuine(table, row, seal):
                has_known_time = _is_known(row[-1], times.get(sequence), now_wall_s)
                fresh.execute(insert, row if has_known_time else (*row[:-1], _UNKNOWN_TIME))
    (newest,) = fresh.execute(f"SELECT max({time}) FROM {table}").fetchone()  # noqa: S608
    unknown_as = max(EARLIEST_PLAUSIBLE_WALL_S, now_wall_s) if newest == _UNKNOWN_TIME else newest
    fresh.execute(f"UPDATE {table} SET {time} = ? WHERE {time} = ?", (unknown_as, _UNKNOWN_TIME))  # noqa: S608


def _is_known(time: object, indexed: object, now_wall_s: float) -> bool:
    if not isinstance(time, int | float) or not EARLIEST_PLAUSIBLE_WALL_S <= time < _LATEST_PLAUSIBLE_WALL_S:
        return False
    is_clock_set = now_wall_s >= EARLIEST_PLAUSIBLE_WALL_S
    return (time <= now_wall_s or not is_clock_set) if indexed is None else time == indexed


def _scan(connection: sqlite3.Connection, query: str, values: Row = (), *, both_ways: bool = True) -> list[Row]:
    """Returns the rows that a query reaches from either end, before damage stops it."""
    found: list[Row] = []
    for end in (query, f"{query} DESC") if both_ways else (query,):
        try:
            for row in connection.execute(end, values):
                found.append(row)
        except Exception as error:  # whatever a damaged file makes SQLite raise
            if is_refusal(error):
                raise
            log.warning("damaged outbox not read to the end", query=end, values=values, error=str(error))
    return found


def _is_genuine(table: str, row: Row, seal: Seal) -> bool:
    """Whether an answer, or the answer that was given with a promise, is what was written.

    A promise whose request cannot be read will end as expired.
    """
    record = dict(zip(_COLUMNS[table], row, strict=True))
    sealed, kind = (record["provisional"], PROVISIONAL) if table == "items" else (record["response"], ANSWER)
    try:
        open_answer(sealed, kind, record["request_id"], record["principal"], seal)
    except FirstlineError:
        return False
    return True
