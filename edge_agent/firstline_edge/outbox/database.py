"""The outbox's database file: opening it, its schema and migrations, and how damage to it is found.

SQLite checks the tree of pages and the indexes against the rows; what it does not check is checked here (the file's
head, the schema) or by the records' seals (what they hold). What happens to a damaged file is in `replacement.py`.
"""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
from pathlib import Path

from firstline_core.errors import CapacityError, ConfigError
from firstline_core.storage.files import make_folder

# Each step takes the database from the version before it to its own; a change of format adds a step.
_MIGRATIONS = (
    """
    CREATE TABLE items (
        sequence INTEGER PRIMARY KEY AUTOINCREMENT,
        request_id TEXT NOT NULL UNIQUE,
        principal TEXT NOT NULL,
        model TEXT NOT NULL,
        version TEXT NOT NULL,
        created_wall_s REAL NOT NULL,
        rows TEXT NOT NULL,
        request BLOB NOT NULL,
        request_header INTEGER,
        provisional BLOB NOT NULL,
        provisional_header INTEGER,
        size_bytes INTEGER NOT NULL
    );
    CREATE TABLE answers (
        sequence INTEGER PRIMARY KEY AUTOINCREMENT,
        request_id TEXT NOT NULL UNIQUE,
        principal TEXT NOT NULL,
        stored_wall_s REAL NOT NULL,
        response BLOB NOT NULL,
        response_header INTEGER,
        size_bytes INTEGER NOT NULL
    );
    CREATE INDEX answers_by_age ON answers (stored_wall_s);
    """,
    # What the first format holds was announced when it was stored, as far as that can be known.
    """
    ALTER TABLE answers ADD COLUMN announced INTEGER NOT NULL DEFAULT 1;
    CREATE INDEX answers_to_announce ON answers (sequence) WHERE announced = 0;
    """,
    # Of what waits already it is not known: it may draw on the budget for retries.
    """
    ALTER TABLE items ADD COLUMN asked INTEGER NOT NULL DEFAULT 1;
    CREATE INDEX items_not_asked ON items (sequence) WHERE asked = 0;
    """,
    # Bodies are sealed from here on; those of earlier formats are read as they are, until they have ended. Timeline are
    # taken from their columns before a seal is opened: damage to those shows in an index.
    "CREATE INDEX items_by_age ON items (created_wall_s);",
)
SCHEMA_VERSION = len(_MIGRATIONS)

PAGE_BYTES = 1024
"""A commit writes each page that it touches in full: a small promise touches many, and changes little of each."""
PAGE_SIZES_BYTES = (PAGE_BYTES, 4096)
"""Those of all outboxes that there are: earlier ones were made with the larger, and keep it."""

_BUSY_TIMEOUT_S = 5.0
_COUNT_TIMEOUT_S = 30.0
_COUNT = """
import os, pathlib, sqlite3, sys
database = sqlite3.connect(pathlib.Path(sys.argv[1]).absolute().as_uri() + "?mode=rw", uri=True)
database.execute("PRAGMA locking_mode = EXCLUSIVE")
print(*database.execute("SELECT count(*), coalesce(sum(size_bytes), 0) FROM items").fetchone(), flush=True)
os._exit(0)
"""
APPLICATION = 0x464C_0000
"""Stands in the file's head with the version, so that a damaged version is not taken for a newer one."""
_SEALED_VERSION = 4
_HEAD_BYTES = 100
LEAST_BYTES = 512
"""SQLite's smallest page: a file that is smaller it takes for a new one, and would delete the log to it."""
# What may stand in the head: page size, journal mode, reserved bytes and payload fractions, schema format, text
# encoding; the last two are 0 until there is a table.
_HEAD_FACTS = (
    (0, (b"SQLite format 3\0",)),
    (16, tuple(size_bytes.to_bytes(2, "big") for size_bytes in PAGE_SIZES_BYTES)),
    (18, (b"\x01\x01", b"\x02\x02")),
    (20, (b"\0\x40\x20\x20",)),
    (44, (b"\0\0\0\x04", b"\0\0\0\0")),
    (56, (b"\0\0\0\x01", b"\0\0\0\0")),
)


class DamagedError(Exception):
    """The file is not what was written there; the text says what of it."""


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
    """A connection that only reads; under WAL it waits for no writer."""
    connection = _connect(path)
    connection.execute("PRAGMA query_only = ON")
    return connection


def open_writer(path: Path, *, alone: bool = False) -> sqlite3.Connection:
    """The database for writing, in the present format.

    Args:
        path: of the database, made by `make_private`; no other process uses it.
        alone: there is to be no reader, so no room is taken for the file by which connections share the log's index.

    Raises:
        DamagedError: it is not whole.
        ConfigError: a newer version wrote it.
        CapacityError: the disk refuses.
    """
    try:
        connection = _connect(path)
    except (OSError, sqlite3.OperationalError) as error:
        raise CapacityError(f"The outbox {path} cannot be opened: {error}.") from error
    try:
        connection.execute(f"PRAGMA page_size = {PAGE_BYTES}")  # of a file that is made now; another keeps its own
        if alone:
            connection.execute("PRAGMA locking_mode = EXCLUSIVE")
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = FULL")  # under WAL: each commit is fsynced
        connection.execute("PRAGMA secure_delete = FAST")  # zeros over what is deleted, where that costs no write
        found = connection.execute("PRAGMA integrity_check(1)").fetchone()[0]
        if found != "ok":
            raise DamagedError(found.splitlines()[-1])
        _check_head(path)
        _migrate(connection, path)
        _check_schema(connection)
    except sqlite3.DatabaseError as error:
        connection.close()
        raise _judged(error, path) from error
    except BaseException:
        connection.close()
        raise
    return connection


def count_promises(path: Path) -> tuple[int, int]:
    """How many promises an outbox holds that cannot be opened, and their bytes; zeros where that cannot be read.

    A full disk has no room for the file by which connections share the log's index; who has the database alone keeps
    the index in memory (https://www.sqlite.org/wal.html#noshm). A process of its own looks, and ends without closing:
    to close is to take over and remove the log, which may be damaged.
    """
    try:
        looking = [sys.executable, "-I", "-c", _COUNT, str(path)]
        done = subprocess.run(looking, capture_output=True, timeout=_COUNT_TIMEOUT_S, check=True)  # noqa: S603 (ours)
        items, size_bytes = map(int, done.stdout.split())
    except (OSError, ValueError, subprocess.SubprocessError):
        return 0, 0
    return items, size_bytes


def accepted_frames(connection: sqlite3.Connection) -> int:
    """How much of the log SQLite takes for good; -1 without a log. To be asked before anything is written."""
    frames: int = connection.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchone()[1]
    return frames


def empty_log(connection: sqlite3.Connection) -> None:
    """Returns once the database holds all that its log did. Closing it does so too, and says nothing where it cannot.

    Raises:
        sqlite3.Error: the disk refuses, or somebody reads.
    """
    if connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()[0]:
        raise sqlite3.OperationalError("somebody reads it, so that its log cannot be emptied")


def _connect(path: Path) -> sqlite3.Connection:
    return sqlite3.connect(path, timeout=_BUSY_TIMEOUT_S, isolation_level=None, check_same_thread=False)


def _judged(error: sqlite3.DatabaseError, path: Path) -> CapacityError | DamagedError:
    """Whether the disk refuses, or the file is damaged: one that must not be read or written may be both."""
    code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR) & 0xFF
    if isinstance(error, sqlite3.OperationalError) and code != sqlite3.SQLITE_ERROR:
        try:
            _check_head(path)
        except DamagedError as damage:
            return damage
        return CapacityError(f"The outbox {path} cannot be opened: {error}.")
    return DamagedError(str(error))


def _check_head(path: Path) -> None:
    """What SQLite takes for a wish: another page size, a file that may only be read."""
    with path.open("rb") as file:
        head = file.read(_HEAD_BYTES)
    if head and any(head[at : at + len(facts[0])] not in facts for at, facts in _HEAD_FACTS):
        raise DamagedError("its first page is not as it was written")


def _migrate(connection: sqlite3.Connection, path: Path) -> None:
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    (application,) = connection.execute("PRAGMA application_id").fetchone()
    if (application or version >= _SEALED_VERSION) and application != APPLICATION | version:
        raise DamagedError(f"its format is {version} in one place and {application & 0xFFFF} in another")
    if version > SCHEMA_VERSION:
        raise ConfigError(
            f"The outbox {path} has format {version}; this version of Firstline reads up to {SCHEMA_VERSION}. "
            "Install the version that wrote it, or give another path."
        )
    for target in range(version + 1, SCHEMA_VERSION + 1):
        application = APPLICATION | target if target >= _SEALED_VERSION else 0
        numbers = f"PRAGMA user_version = {target}; PRAGMA application_id = {application};"
        connection.executescript(f"BEGIN; {_MIGRATIONS[target - 1]} {numbers} COMMIT;")


def _check_schema(connection: sqlite3.Connection) -> None:
    fresh = sqlite3.connect(":memory:", isolation_level=None)
    try:
        fresh.executescript("".join(_MIGRATIONS))
        if _statements(connection) != _statements(fresh):
            raise DamagedError("its tables are not as they were made")
    finally:
        fresh.close()


def _statements(connection: sqlite3.Connection) -> list[tuple[str, ...]]:
    found = connection.execute("SELECT type, name, tbl_name, coalesce(sql, '') FROM sqlite_schema ORDER BY name")
    return [(*names, " ".join(sql.split())) for *names, sql in found]
