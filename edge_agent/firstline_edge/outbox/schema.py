"""The outbox's database file: opening it, its schema and migrations, and what happens to a damaged one."""

from __future__ import annotations

import os
import sqlite3
from pathlib import Path

from firstline_core.errors import CapacityError, ConfigError
from firstline_core.telemetry.logs import logger

log = logger(__name__)

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
)
SCHEMA_VERSION = len(_MIGRATIONS)

_BUSY_TIMEOUT_S = 5.0


def make_private(path: Path) -> None:
    """Makes the outbox's folder and file, for this user alone.

    Raises:
        CapacityError: the disk refuses.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.parent.chmod(0o700)
        # SQLite gives its journal files the mode of the database.
        os.close(os.open(path, os.O_CREAT | os.O_RDWR, 0o600))
        path.chmod(0o600)
    except OSError as error:
        raise CapacityError(f"The outbox {path} cannot be opened: {error}.") from error


def open_or_replace(path: Path, wall_s: float) -> sqlite3.Connection:
    """The database for writing. A damaged file is moved aside, so that the agent still answers.

    Args:
        path: of the database, made by `make_private`; no other process uses it.
        wall_s: names the damaged file.

    Raises:
        ConfigError: a newer version wrote it.
        CapacityError: the disk refuses.
    """
    try:
        return _open_writer(path)
    except sqlite3.OperationalError as error:  # no space, no permission: the file itself may be well
        raise CapacityError(f"The outbox {path} cannot be opened: {error}.") from error
    except sqlite3.DatabaseError as error:
        aside = path.with_name(f"{path.name}.corrupt-{int(wall_s)}")
        log.error("outbox corrupt, moved aside", path=str(path), aside=str(aside), why=str(error))
        try:
            for suffix in ("-wal", "-shm", ""):
                old = path.with_name(path.name + suffix)
                if old.exists():
                    old.rename(aside.with_name(aside.name + suffix))
            os.close(os.open(path, os.O_CREAT | os.O_RDWR, 0o600))
            return _open_writer(path)
        except (OSError, sqlite3.Error) as second:
            raise CapacityError(f"The outbox {path} is damaged, and no new one can be made: {second}.") from second


def open_reader(path: Path) -> sqlite3.Connection:
    """A connection that only reads; under WAL it waits for no writer."""
    connection = sqlite3.connect(path, timeout=_BUSY_TIMEOUT_S, isolation_level=None, check_same_thread=False)
    connection.execute("PRAGMA query_only = ON")
    return connection


def _open_writer(path: Path) -> sqlite3.Connection:
    connection = sqlite3.connect(path, timeout=_BUSY_TIMEOUT_S, isolation_level=None, check_same_thread=False)
    try:
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = FULL")  # under WAL: each commit is fsynced
        found = connection.execute("PRAGMA quick_check(1)").fetchone()[0]
        if found != "ok":
            raise sqlite3.DatabaseError(found)
        _migrate(connection, path)
    except BaseException:
        connection.close()
        raise
    return connection


def _migrate(connection: sqlite3.Connection, path: Path) -> None:
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    if version > SCHEMA_VERSION:
        raise ConfigError(
            f"The outbox {path} has format {version}; this version of Firstline reads up to {SCHEMA_VERSION}. "
            "Install the version that wrote it, or give another path."
        )
    for target in range(version + 1, SCHEMA_VERSION + 1):
        connection.executescript(f"BEGIN; {_MIGRATIONS[target - 1]} PRAGMA user_version = {target}; COMMIT;")
