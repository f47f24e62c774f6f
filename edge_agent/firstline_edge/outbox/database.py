"""The outbox's database file: its schema, its rows, how it is opened and written, and how damage to it is found.

A promise that has ended is an answer. An answer stays until it is too old or makes room for newer ones, so that
applications can ask for it by id. Answers that are still to be announced stay longer. Promises never make room.

SQLite checks the tree of pages and the indexes against the rows. This module checks the file's head and the schema,
and each record's seal shows whether its content was changed. `recovery.py` replaces a damaged file.
"""

from __future__ import annotations

import math
import os
import sqlite3
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import NamedTuple

import orjson

from firstline_core.errors import CapacityError, ConfigError, IntegrityError, QueueFullError
from firstline_core.storage.files import make_folder
from firstline_core.storage.group_writer import GroupWriter
from firstline_core.storage.seals import OVERHEAD_BYTES, Seal
from firstline_core.telemetry.logs import logger
from firstline_core.telemetry.wording import counted
from firstline_core.types import ModelVersion
from firstline_edge.outbox.item import ANSWER, ITEM_OVERHEAD_BYTES, PROVISIONAL, StoredItem
from firstline_edge.outbox.timeline import ClockJump
from firstline_edge.state import is_refusal

log = logger(__name__)

# `reached_gateway` is 0 for promises whose request the gateway certainly never received, and 1 if it may have. No seal
# covers the times: damage to them shows in an index.
_SCHEMA = """
    CREATE TABLE items (
        sequence INTEGER PRIMARY KEY AUTOINCREMENT,
        request_id TEXT NOT NULL UNIQUE,
        principal TEXT NOT NULL,
        model TEXT NOT NULL,
        version TEXT NOT NULL,
        created_wall_s REAL NOT NULL,
        rows TEXT NOT NULL,
        request BLOB NOT NULL,
        provisional BLOB NOT NULL,
        reached_gateway INTEGER NOT NULL
    );
    CREATE INDEX items_unsent ON items (sequence) WHERE reached_gateway = 0;
    CREATE INDEX items_by_age ON items (created_wall_s);
    CREATE TABLE answers (
        sequence INTEGER PRIMARY KEY AUTOINCREMENT,
        request_id TEXT NOT NULL UNIQUE,
        principal TEXT NOT NULL,
        stored_wall_s REAL NOT NULL,
        response BLOB NOT NULL,
        published INTEGER NOT NULL,
        reported INTEGER NOT NULL
    );
    CREATE INDEX answers_by_age ON answers (stored_wall_s);
    CREATE INDEX answers_to_publish ON answers (sequence) WHERE published = 0;
    CREATE INDEX answers_to_report ON answers (sequence) WHERE reported = 0;
    CREATE TABLE identity (id BLOB NOT NULL, damage TEXT NOT NULL);
"""
_NEW_IDENTITY = "INSERT INTO identity VALUES (randomblob(16), '');"
ITEM_BYTES = f"length(request) + length(provisional) + length(rows) + {ITEM_OVERHEAD_BYTES}"
"""Size of a promise in SQL; `StoredItem.size_bytes` is the same in Python."""
ANSWER_BYTES = "length(response)"
"""Size of an answer in SQL."""
FORMAT = 1
APPLICATION = 0x464C_0000
"""Stands in the file's head with the format, so that a damaged format is not mistaken for a newer one."""

PAGE_BYTES = 1024
"""A commit writes each page that it touches in full: a small promise touches many, and changes little of each."""
LEAST_BYTES = 512
"""SQLite's smallest page: SQLite takes a smaller file for a new one, and would delete the log that belongs to it."""

LOG_PAGES = 128
"""Pages in the log from which SQLite moves them into the database: damage to the log can cost no more."""

SHIFTED_AT_ONCE = 32
"""Rows whose times one operation corrects."""

_BUSY_TIMEOUT_S = 5.0
_ROWS_LIMIT = 1 << 62
"""Largest row number, which no outbox reaches; near 2**63 SQLite has no number left and refuses each new row."""
_MARK = ".mark"
_MARK_SYNC_S = 1.0
_MARK_CONTENT = struct.Struct(">QQ")
_MARK_BYTES = _MARK_CONTENT.size + OVERHEAD_BYTES
_CHECKSUM = Seal()
_COUNT_TIMEOUT_S = 30.0
_COUNT = """
import os, sqlite3, sys
database = sqlite3.connect(sys.argv[1], uri=True)
database.execute("PRAGMA locking_mode = EXCLUSIVE")
print(*database.execute(f"SELECT count(*), coalesce(sum({sys.argv[2]}), 0) FROM items").fetchone(), flush=True)
os._exit(0)
"""
_HEAD_BYTES = 100
# What the head may hold: page size, journal mode, reserved bytes and payload fractions, schema format, text encoding;
# the last two are 0 until there is a table.
_HEAD_FACTS = (
    (0, (b"SQLite format 3\0",)),
    (16, (PAGE_BYTES.to_bytes(2, "big"),)),
    (18, (b"\x01\x01", b"\x02\x02")),
    (20, (b"\0\x40\x20\x20",)),
    (44, (b"\0\0\0\x04", b"\0\0\0\0")),
    (56, (b"\0\0\0\x01", b"\0\0\0\0")),
)


SQLITE_ERRORS = (sqlite3.Error, UnicodeDecodeError)
"""What SQLite's module raises; the second for a message that quotes damaged text of the schema."""


class Receiver(StrEnum):
    """A receiver of answers; the value is the column of `answers` that is 1 if this receiver does not wait for one."""

    APPLICATIONS = "published"
    FLEET = "reported"


class DamagedError(Exception):
    """The file is not what was written; the message names the difference."""


class RowNumbers(NamedTuple):
    """The highest row number that each table has ever given; SQLite never gives one again."""

    items: int
    answers: int


@dataclass(slots=True)
class StoredTotals:
    """The content of the database, counted here so that a limit costs no query."""

    items: int
    item_bytes: int
    answers: int
    answer_bytes: int
    newest: RowNumbers


@dataclass(frozen=True, slots=True)
class Transaction:
    """One group of operations that are committed together.

    Args:
        connection: in a transaction.
        totals: as of the operations so far; each operation may change them.
    """

    connection: sqlite3.Connection
    totals: StoredTotals


class HighWaterMark:
    """The row numbers of the latest acknowledged commit, in a file next to the database.

    SQLite ends a damaged log at the damage, as after a power cut, and reports nothing: all later commits are gone. A
    database whose row numbers are below the mark has lost such commits. The mark is written after each commit. It is
    synced once a second at most, so that acknowledgements need not wait for a second fsync: after a power cut, the
    mark may be older than the database, and never newer.

    Args:
        path: of the database.
        connection: to the database; its identity tells the mark of this database from the mark of another one that
            had the same path before.

    Raises:
        sqlite3.Error: the disk refuses the database. A mark that cannot be opened is only logged.
    """

    def __init__(self, path: Path, connection: sqlite3.Connection) -> None:
        found = connection.execute("SELECT CAST(id AS BLOB) FROM identity").fetchone()
        self._identity: bytes = found[0] if found is not None else b""
        self._file = -1
        self._refused = False
        self._sync_at_s = 0.0
        try:
            self._file = os.open(path.with_name(path.name + _MARK), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:  # the outbox itself may be whole
            self._refused = True
            log.warning("outbox mark not opened", error=str(error))

    def read(self) -> RowNumbers:
        """Returns the row numbers; zeros if the file is new, damaged, unreadable or of another database."""
        try:
            return RowNumbers(
                *_MARK_CONTENT.unpack(_CHECKSUM.open(os.pread(self._file, _MARK_BYTES, 0), self._identity))
            )
        except (IntegrityError, OSError, struct.error):
            return RowNumbers(0, 0)

    def write(self, newest: RowNumbers) -> None:
        """Writes the row numbers of a durable commit; without effect if the disk refuses or refused to open it."""
        try:
            os.pwrite(self._file, _CHECKSUM.close(_MARK_CONTENT.pack(*newest), self._identity), 0)
            if (now_s := time.monotonic()) >= self._sync_at_s:
                self._sync_at_s = now_s + _MARK_SYNC_S
                os.fdatasync(self._file)
        except (OSError, OverflowError, struct.error) as error:
            if not self._refused:
                log.warning("outbox mark not written", error=str(error))
            self._refused = True

    def close(self) -> None:
        """Closes the file; calling it twice is harmless."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1


class Database:
    """The outbox's connection for writing; used by one thread at a time.

    Args:
        connection: from `open_writer`.
        totals: of the database now.
        mark: of this database.

    Attributes:
        totals: as of the last commit.
    """

    def __init__(self, connection: sqlite3.Connection, totals: StoredTotals, mark: HighWaterMark) -> None:
        self.connection = connection
        self.totals = totals
        self._mark = mark
        mark.write(totals.newest)

    @contextmanager
    def begin(self) -> Iterator[Transaction]:
        """One transaction: durable once the block has ended, undone if the block raises.

        Raises:
            CapacityError: the disk or the database refuses; nothing was written.
        """
        transaction = Transaction(self.connection, replace(self.totals))
        try:
            self.connection.execute("BEGIN IMMEDIATE")
            yield transaction
            self.connection.execute("COMMIT")
        except BaseException as error:
            self._roll_back()
            if isinstance(error, SQLITE_ERRORS):
                raise CapacityError(
                    f"The outbox could not be written: {error}. Is the disk full or failing?"
                ) from error
            raise
        if transaction.totals.newest != self.totals.newest:
            self._mark.write(transaction.totals.newest)
        self.totals = transaction.totals

    def close(self) -> None:
        """Closes the connection; calling it twice is harmless."""
        self.connection.close()
        self._mark.close()

    def _roll_back(self) -> None:
        if self.connection.in_transaction:
            try:
                self.connection.execute("ROLLBACK")
            except sqlite3.Error:
                log.exception("outbox rollback failed")


Writer = GroupWriter[Transaction]
MakeWriter = Callable[[Database], Writer]


def make_writer(database: Database) -> Writer:
    """Returns the thread that writes to an outbox."""
    return GroupWriter(database.begin, name="outbox", refusal=CapacityError, log=log)


def make_private(path: Path) -> None:
    """Makes the outbox's folder and file, for this user alone.

    Raises:
        CapacityError: the disk refuses.
    """
    try:
        make_folder(path.parent)
        # SQLite gives its journal files the mode of the database.
        os.close(os.open(path, os.O_CREAT | os.O_RDWR, 0o600))
        path.chmod(0o600)
    except OSError as error:
        raise CapacityError(f"The outbox {path} cannot be opened: {error}.") from error


def open_reader(path: Path) -> sqlite3.Connection:
    """Opens a connection that only reads; under WAL it waits for no writer."""
    connection = _connect(path)
    connection.execute("PRAGMA query_only = ON")
    return connection


def open_writer(path: Path, *, alone: bool = False) -> sqlite3.Connection:
    """Opens the database for writing, and makes its tables if it is new.

    Args:
        path: of the database, made by `make_private`; no other process uses it.
        alone: there is no reader, so no room is needed for the file by which connections share the log's index.

    Raises:
        DamagedError: it is not whole. Anything unexpected that SQLite raises counts as damage.
        ConfigError: a newer version wrote it.
        CapacityError: the disk refuses.
    """
    try:
        connection = _connect(path)
    except (OSError, sqlite3.OperationalError) as error:
        raise CapacityError(f"The outbox {path} cannot be opened: {error}.") from error
    try:
        connection.execute(f"PRAGMA page_size = {PAGE_BYTES}")
        if alone:
            connection.execute("PRAGMA locking_mode = EXCLUSIVE")
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute(f"PRAGMA wal_autocheckpoint = {LOG_PAGES}")
        connection.execute("PRAGMA synchronous = FULL")  # under WAL: each commit is fsynced
        connection.execute("PRAGMA secure_delete = FAST")  # zeros over what is deleted, where that costs no write
        result = connection.execute("PRAGMA integrity_check(1)").fetchone()[0]
        if result != "ok":
            raise DamagedError(result.splitlines()[-1])
        _check_head(path)
        _create_or_check(connection, path)
    except (ConfigError, DamagedError):
        connection.close()
        raise
    except Exception as error:
        connection.close()
        raise _open_error(error, path) from error
    return connection


def newest_rows(connection: sqlite3.Connection) -> RowNumbers:
    """Returns the highest row number that each table has ever given.

    Raises:
        DamagedError: a stored number cannot be the highest one.
    """
    return RowNumbers(*(_newest_row(connection, table) for table in RowNumbers._fields))


def _newest_row(connection: sqlite3.Connection, table: str) -> int:
    stored = "SELECT CASE typeof(seq) WHEN 'integer' THEN seq END FROM sqlite_sequence WHERE name = ?"
    (newest,) = connection.execute(stored, (table,)).fetchone() or (0,)
    (highest,) = connection.execute(f"SELECT coalesce(max(sequence), 0) FROM {table}").fetchone()  # noqa: S608
    # With a number that is too low, intact records would count as lost.
    if not isinstance(newest, int) or not max(0, highest) <= newest < _ROWS_LIMIT:
        raise DamagedError(f"its newest row number of the table {table} is invalid")
    return newest


def skip_rows(connection: sqlite3.Connection, newest: RowNumbers) -> None:
    """Lets the row numbers of both tables continue after `newest`."""
    connection.execute("BEGIN IMMEDIATE")
    connection.execute("DELETE FROM sqlite_sequence")
    connection.executemany("INSERT INTO sqlite_sequence VALUES (?, ?)", newest._asdict().items())
    connection.execute("COMMIT")


def unreported_damage(connection: sqlite3.Connection) -> str:
    """Returns the description of damage that this outbox replaced, until a start has reported it; "" if there is none.

    Raises:
        sqlite3.Error: the disk refuses.
    """
    found = connection.execute("SELECT damage FROM identity").fetchone()
    return str(found[0]) if found is not None else ""


def store_damage(connection: sqlite3.Connection, damage: str) -> None:
    """Stores a description of damage for the start that succeeds; "" once it has reported the damage."""
    connection.execute("UPDATE identity SET damage = ?", (damage,))


def count_promises(path: Path) -> tuple[int, int]:
    """Counts the promises of an outbox that cannot be opened, and their bytes; zeros if they cannot be read.

    A full disk has no room for the file by which connections share the log's index; a process that has the database
    alone keeps the index in memory (https://www.sqlite.org/wal.html#noshm). A process of its own reads, and ends
    without closing: closing would move the log, which may be damaged, into the database.
    """
    try:
        existing = f"{path.absolute().as_uri()}?mode=rw"  # here, because `pathlib` doubles the time of that process
        looking = [sys.executable, "-I", "-S", "-c", _COUNT, existing, ITEM_BYTES]
        done = subprocess.run(looking, capture_output=True, timeout=_COUNT_TIMEOUT_S, check=True)  # noqa: S603 (ours)
        items, size_bytes = map(int, done.stdout.split())
    except (OSError, ValueError, subprocess.SubprocessError):
        return 0, 0
    return items, size_bytes


def empty_log(connection: sqlite3.Connection) -> None:
    """Returns once the database holds all that its log did. Closing does so too, but does not say if it cannot.

    Raises:
        sqlite3.Error: the disk refuses, or another connection reads.
    """
    if connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()[0]:
        raise sqlite3.OperationalError("another connection reads it, so its log cannot be emptied")


def _connect(path: Path) -> sqlite3.Connection:
    connection = sqlite3.connect(path, timeout=_BUSY_TIMEOUT_S, isolation_level=None, check_same_thread=False)
    # Damaged text must not stop a query over many rows: the seal of its record refuses it.
    connection.text_factory = lambda text: text.decode(errors="replace")
    return connection


def _open_error(error: Exception, path: Path) -> CapacityError | DamagedError:
    """Whether the disk refuses, or the file is damaged: one that must not be read or written may be both."""
    if is_refusal(error):
        try:
            _check_head(path)
        except DamagedError as damage:
            return damage
        except OSError:
            pass
        return CapacityError(f"The outbox {path} cannot be opened: {error}.")
    return DamagedError(str(error))


def _check_head(path: Path) -> None:
    """Checks what SQLite would accept as a request: another page size, a read-only file."""
    with path.open("rb") as file:
        head = file.read(_HEAD_BYTES)
    if head and any(head[at : at + len(facts[0])] not in facts for at, facts in _HEAD_FACTS):
        raise DamagedError("its first page is not as it was written")


def _create_or_check(connection: sqlite3.Connection, path: Path) -> None:
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    (application,) = connection.execute("PRAGMA application_id").fetchone()
    if not version and not application and not _statements(connection):
        numbers = f"PRAGMA user_version = {FORMAT}; PRAGMA application_id = {APPLICATION | FORMAT};"
        connection.executescript(f"BEGIN; {_SCHEMA} {_NEW_IDENTITY} {numbers} COMMIT;")
        return
    if application != APPLICATION | version:
        raise DamagedError(f"its format is {version} in one place and {application & 0xFFFF} in another")
    if version > FORMAT:
        raise ConfigError(
            f"The outbox {path} has format {version}; this version of Firstline reads format {FORMAT}. "
            "Install the version that wrote it, or give another path."
        )
    fresh = sqlite3.connect(":memory:", isolation_level=None)
    try:
        fresh.executescript(_SCHEMA)
        if _statements(connection) != _statements(fresh):
            raise DamagedError("its tables are not as they were made")
    finally:
        fresh.close()
    newest_rows(connection)


def _statements(connection: sqlite3.Connection) -> list[tuple[str, ...]]:
    found = connection.execute("SELECT type, name, tbl_name, coalesce(sql, '') FROM sqlite_schema ORDER BY name")
    return [(*names, " ".join(sql.split())) for *names, sql in found]


ITEM_COLUMNS = tuple(StoredItem.__dataclass_fields__)
_COLUMNS = ", ".join(ITEM_COLUMNS)


def insert_promise(
    transaction: Transaction, stored: StoredItem, *, limit_items: int, limit_bytes: int
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
    inserted = connection.execute(
        f"INSERT INTO items ({_COLUMNS}) VALUES (?,?,?,?,?,?,?,?,?)",  # noqa: S608
        tuple(getattr(stored, name) for name in ITEM_COLUMNS),
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
    skip_models: Collection[ModelVersion],
    *,
    skip_reached_gateway: bool,
) -> list[StoredItem]:
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


def promises_by_id(connection: sqlite3.Connection, request_ids: Collection[str]) -> list[StoredItem]:
    """Returns these promises, without those that have ended meanwhile."""
    condition = "request_id IN (SELECT value FROM json_each(?)) ORDER BY sequence"
    return _promises(connection, condition, (_json(request_ids),))


def insert_answer(
    transaction: Transaction,
    sealed: bytes,
    *,
    request_id: str,
    principal: str,
    wall_s: float,
    receivers: Collection[Receiver],
) -> None:
    """Adds an answer, which is still to be announced to the given receivers."""
    totals = transaction.totals
    inserted = transaction.connection.execute(
        f"INSERT INTO answers (request_id, principal, stored_wall_s, response, {', '.join(Receiver)}) "  # noqa: S608
        "VALUES (?,?,?,?,?,?)",
        (request_id, principal, wall_s, sealed, *(receiver not in receivers for receiver in Receiver)),
    )
    totals.newest = totals.newest._replace(answers=inserted.lastrowid or 0)
    totals.answers += 1
    totals.answer_bytes += len(sealed)


def delete_old_answers(transaction: Transaction, oldest_wall_s: float, receivers: Collection[Receiver]) -> None:
    """Deletes the answers from before `oldest_wall_s` that need not be announced to any of these receivers."""
    condition = "stored_wall_s < ?" + _announced_to(receivers)
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
        oldest = connection.execute(select.format("WHERE true" + _announced_to(Receiver))).fetchone()
        sequence, size_bytes = oldest or connection.execute(select.format("")).fetchone()
        connection.execute("DELETE FROM answers WHERE sequence = ?", (sequence,))
        totals.answers -= 1
        totals.answer_bytes -= size_bytes


def _announced_to(receivers: Iterable[Receiver]) -> str:
    return "".join(f" AND {receiver} = 1" for receiver in receivers)


def find_answer(connection: sqlite3.Connection, request_id: str, principal: str) -> tuple[bytes, str] | None:
    """Returns the sealed answer under this id, and its kind: it is provisional while its promise waits."""
    whose = (request_id, principal)
    found: tuple[bytes, str] | None = connection.execute(
        "SELECT provisional, ? FROM items WHERE request_id = ? AND principal = ? "
        "UNION ALL SELECT response, ? FROM answers WHERE request_id = ? AND principal = ?",
        (PROVISIONAL, *whose, ANSWER, *whose),
    ).fetchone()
    return found


def unannounced_answers(connection: sqlite3.Connection, receiver: Receiver, limit: int) -> list[tuple[str, str, bytes]]:
    """Returns ids, principals and bytes of the oldest answers that are still to be announced to a receiver."""
    return connection.execute(
        f"SELECT request_id, principal, response FROM answers WHERE {receiver} = 0 ORDER BY sequence LIMIT ?",  # noqa: S608
        (limit,),
    ).fetchall()


def shift_times(transaction: Transaction, jump: ClockJump) -> ClockJump | None:
    """Corrects the newest times that were stored before the wall clock was set ahead.

    A commit of few rows delays other writes little, and damage to the log can undo little.

    Returns:
        The jump for the older times; None if all are corrected.
    """
    connection = transaction.connection
    columns = (("items", "created_wall_s"), ("answers", "stored_wall_s"))
    times = " UNION ALL ".join(
        f"SELECT {column} AS s FROM {table} WHERE {column} BETWEEN :from_s AND :until_s"  # noqa: S608
        for table, column in columns
    )
    span = {"from_s": jump.from_s, "until_s": jump.until_s, "limit": SHIFTED_AT_ONCE}
    newest = connection.execute(f"{times} ORDER BY s DESC LIMIT :limit", span).fetchall()
    if not newest:
        return None
    (oldest_s,) = newest[-1]
    for table, column in columns:
        connection.execute(
            f"UPDATE {table} SET {column} = {column} + ? WHERE {column} BETWEEN ? AND ?",  # noqa: S608
            (jump.by_s, oldest_s, jump.until_s),
        )
    return replace(jump, until_s=math.nextafter(oldest_s, -math.inf))  # so that no time is corrected twice


def mark_announced(transaction: Transaction, receiver: Receiver, request_ids: Collection[str]) -> None:
    """Marks these answers as announced to a receiver."""
    transaction.connection.execute(
        f"UPDATE answers SET {receiver} = 1 WHERE request_id IN (SELECT value FROM json_each(?))",  # noqa: S608
        (_json(request_ids),),
    )


def read_totals(connection: sqlite3.Connection, newest: RowNumbers) -> StoredTotals:
    """Counts the content; new rows will continue after `newest`."""
    count = "SELECT count(*), coalesce(sum({}), 0) FROM {}"
    items, item_bytes = connection.execute(count.format(ITEM_BYTES, "items")).fetchone()
    answers, answer_bytes = connection.execute(count.format(ANSWER_BYTES, "answers")).fetchone()
    return StoredTotals(items, item_bytes, answers, answer_bytes, newest)


def read_times(connection: sqlite3.Connection) -> tuple[float, list[tuple[str, float]]]:
    """Returns the newest stored time, and the ids of all promises with their times, oldest first."""
    newest = "SELECT max(created_wall_s) AS s FROM items UNION ALL SELECT max(stored_wall_s) FROM answers"
    (newest_wall_s,) = connection.execute(f"SELECT max(s) FROM ({newest})").fetchone()  # noqa: S608
    created = connection.execute("SELECT request_id, created_wall_s FROM items ORDER BY created_wall_s, sequence")
    return float(newest_wall_s or 0.0), created.fetchall()


def _promises(connection: sqlite3.Connection, condition: str, values: tuple[object, ...]) -> list[StoredItem]:
    rows = connection.execute(f"SELECT {_COLUMNS} FROM items WHERE {condition}", values)  # noqa: S608
    return [StoredItem(*columns) for columns in rows]


def _json(texts: Collection[str]) -> str:
    return orjson.dumps(list(texts)).decode()
