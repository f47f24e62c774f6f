"""The connection to the store: transactions on either database, with errors translated.

Everything here blocks, so none of it runs on the event loop (see `store/store.py`).
"""

from __future__ import annotations

import os
import sqlite3
import tempfile
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any

import msgspec
from sqlalchemy import Connection, Engine, create_engine, event, text
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError, DataError, DBAPIError, MultipleResultsFound, NoResultFound
from sqlalchemy.exc import TimeoutError as PoolTimeoutError

from firstline_core.errors import ConfigError, FirstlineError, RequestError, StoreUnavailableError
from firstline_core.storage.files import give_to_owner_of, locked_folder, naming, sync_folder, system_reason, take_lock
from firstline_core.storage.seals import DECODING_ERRORS
from firstline_core.storage.secrets import read_secret
from firstline_core.telemetry.logs import logger
from firstline_gateway.settings import settings
from firstline_gateway.store.migrate import Tables, schema_of, upgrade
from firstline_gateway.store.write_ahead_log import loses_commits

BUSY_TIMEOUT_S = 5.0
"""Longest wait for another process that writes to an SQLite file."""

_CONNECT_TIMEOUT_S = 5
_STATEMENT_TIMEOUT_S = 10
# A group that meets a locked row is undone, and its operations are retried alone: after twice this time, which is less
# than callers wait, all but the blocked one are done.
_LOCK_TIMEOUT_S = 2
# A server that disappeared without closing: after 10 s the connection is given up (tcp(7), TCP_USER_TIMEOUT).
_SILENCE_TIMEOUT_S = 10
_RETRY_AFTER_S = 5.0
# SQLite's smallest page: SQLite takes a smaller file for a new one, and would delete the log that belongs to it.
_LEAST_BYTES = 512
_LOCK_NOT_AVAILABLE = "55P03"  # PostgreSQL, appendix A
_MAGIC = b"SQLite format 3\0"
_RESTORE = (
    "Put the store and its -wal and -shm files aside, then restore a backup: `firstline-gateway restore FILE "
    "--store-only --config CONFIG`."
)
_READS = "firstline_reads"
# A transaction that writes may raise the other `DECODING_ERRORS` for other reasons than damage.
_MISSING_ROWS = (MultipleResultsFound, NoResultFound)  # of a table that has one row
_DAMAGE_TO_WRITERS = (UnicodeDecodeError, msgspec.MsgspecError, *_MISSING_ROWS)  # the first: of a damaged schema
_DAMAGE_TO_READERS = (*DECODING_ERRORS, *_MISSING_ROWS)

log = logger(__name__)


class StoreDamagedError(StoreUnavailableError):
    """Rows of the store do not decode; others may. Callers get `store_unavailable`."""


class Database:
    """The store's database; threads may share it.

    Args:
        engine: SQLAlchemy's engine; disposed of here.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._reading = engine.execution_options(**{_READS: True})

    @property
    def dialect(self) -> str:
        """SQLAlchemy's name of the dialect: "sqlite" or "postgresql"."""
        return self._engine.dialect.name

    @property
    def shown(self) -> str:
        """The database's address for messages, without its password."""
        url = self._engine.url
        if url.database is not None:  # a file's name may hold bytes that are not UTF-8
            url = url.set(database=url.database.encode("utf-8", "backslashreplace").decode())
        return url.render_as_string(hide_password=True)

    @contextmanager
    def begin(self) -> Iterator[Connection]:
        """One transaction that writes: durable once the block has ended, undone if the block raises.

        Raises:
            StoreUnavailableError: the database is unreachable, full, or too busy; nothing was written.
        """
        with self._translated(_DAMAGE_TO_WRITERS), self._engine.begin() as connection:
            yield connection

    @contextmanager
    def reading(self) -> Iterator[Connection]:
        """One transaction that only reads, and waits for no writer.

        Any exception by which the block fails to decode a row counts as damage.

        Raises:
            StoreUnavailableError: the database is unreachable, too busy, or damaged.
        """
        with self._translated(_DAMAGE_TO_READERS), self._reading.connect() as connection:
            yield connection

    @contextmanager
    def snapshot(self) -> Iterator[Connection]:
        """As `reading`, but a consistent snapshot, without a time limit.

        Raises:
            StoreUnavailableError: the database is unreachable, too busy, or damaged.
        """
        with self._translated(_DAMAGE_TO_READERS), self._reading.connect() as connection:
            if self.dialect == "postgresql":
                connection.execution_options(isolation_level="REPEATABLE READ", postgresql_readonly=True)
                connection.execute(text("SET LOCAL statement_timeout = 0"))
                connection.execute(text("SET LOCAL lock_timeout = 0"))
            yield connection

    def close(self) -> None:
        self._engine.dispose()

    @contextmanager
    def _translated(self, damage: tuple[type[Exception], ...]) -> Iterator[None]:
        try:
            yield
        except DataError as error:
            raise RequestError(f"The store can hold no such value: {reason_of(error)}.") from error
        except (DBAPIError, PoolTimeoutError) as error:
            advice = _advice(error)
            raise StoreUnavailableError(
                f"The store {self.shown} refuses: {reason_of(error)}. {advice}",
                retry_after_s=_RETRY_AFTER_S,
                public=f"The gateway's store refuses; the gateway's log has the reason. {advice}",
            ) from error
        except damage as error:
            log.debug("store damaged", exc_info=error)
            raise StoreDamagedError(
                _damaged(f"The store {self.shown}", error),
                retry_after_s=_RETRY_AFTER_S,
                public=_damaged("The gateway's store", error),
            ) from error


def connect(found: settings.StoreSection) -> Database:
    """Connects to a store without changing its schema.

    Raises:
        ConfigError: the settings name no store.
    """
    return Database(_engine(found))


def sqlite_file(found: settings.StoreSection) -> Path | None:
    """Returns the store's file; None if the store is a server."""
    url = make_url(found.url)
    return Path(url.database or "") if url.get_backend_name() == "sqlite" else None


@contextmanager
def used_by_one_gateway(found: settings.StoreSection) -> Iterator[None]:
    """Refuses a second gateway on an SQLite file, which would run the jobs of the first; commands take no lock.

    Raises:
        ConfigError: another gateway uses the file, or the file of the lock cannot be opened.
    """
    if (file := sqlite_file(found)) is None:
        yield
        return
    _make_folders(file)
    with naming(f"store.url: {file}-lock", "written"):
        # As SQLite names its log: two links to one file are one store. A link to no file is replaced by a store.
        path = file.resolve() if file.exists() else file
        path = path.with_name(path.name + "-lock")
        lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        with suppress(OSError):  # root in a container may lack the right, or know no such user
            give_to_owner_of(path.parent, lock)
        if not take_lock(lock):
            raise ConfigError(
                f"store.url: {file} is in use by another gateway; stop it, or share a store on PostgreSQL between both."
            )
        yield
    finally:
        os.close(lock)


def open_database(found: settings.StoreSection, tables: Tables, *, must_exist: bool = False) -> Database:
    """Connects, and migrates the schema; of several replicas that start at once, one migrates.

    The pages of an SQLite file are not checked, see `check`: that takes a time in proportion to the file.

    Args:
        found: as `settings/load.py` returns it; an SQLite file is made here, for this user alone.
        tables: see `Tables`.
        must_exist: refuse a store without tables instead of creating them, because its content was lost.

    Raises:
        ConfigError: there is no such database, it is damaged, it lost its content, or a newer version wrote it.
    """
    database = _connect_undamaged(found, must_exist=must_exist)
    try:
        with _as_settings(database), database.begin() as connection:
            if must_exist and schema_of(connection) is None:
                raise ConfigError(f"store.url: {_lost(database.shown)}")
            upgrade(connection, tables, database.shown)
    except FirstlineError:
        database.close()
        raise
    return database


@contextmanager
def _as_settings(database: Database) -> Iterator[None]:
    """Translates failures into errors of the setting that names the store.

    Raises:
        ConfigError: the store is damaged, or refuses.
    """
    try:
        yield
    except StoreUnavailableError as error:
        raise ConfigError(f"store.url: {error.message}") from error
    except FirstlineError:
        raise
    except Exception as error:  # whatever a damaged file makes the driver or Alembic raise
        raise ConfigError(f"store.url: {_damaged(f'The store {database.shown}', error)}") from error


def _connect_undamaged(found: settings.StoreSection, *, must_exist: bool) -> Database:
    """Connects, after a check of the log of an SQLite file: SQLite moves into the file as much as it can read.

    Raises:
        ConfigError: the file must exist and does not, or the log is damaged, and acknowledged changes would be lost.
    """
    if (file := sqlite_file(found)) is not None:
        if must_exist and not file.exists():
            raise ConfigError(f"store.url: {_lost(str(file))}")
        log = file.with_name(file.name + "-wal")
        try:
            loses = loses_commits(log)
        except OSError as error:
            raise ConfigError(f"store.url: {log} cannot be read: {system_reason(error)}.") from error
        if loses:
            raise ConfigError(
                f"store.url: The store {file} is damaged: its log {log.name} cannot be read to its end, so "
                f"acknowledged changes would be lost. {_RESTORE}"
            )
    return connect(found)


def _damaged(store: str, error: Exception) -> str:
    return f"{store} is damaged: {type(error).__name__}, {reason_of(error)}. {_RESTORE}"


def _lost(shown: str) -> str:
    return (
        f"The store {shown} is missing or empty, but the authority in identity.directory was used with a store. Check "
        f"store.url. If the store is lost: {_RESTORE} Without a backup, put identity.directory aside, too; then all "
        "devices have to enrol again."
    )


def check(found: settings.StoreSection, *, must_exist: bool = False) -> None:
    """Checks that the store answers, and all pages of an SQLite file, for a start; no writer waits for it.

    Creates nothing: a file that does not exist yet is accepted.

    Args:
        found: as `settings/load.py` returns it.
        must_exist: refuse a store without tables.

    Raises:
        ConfigError: there is no such database, it is damaged, it lost its content, or it refuses.
    """
    existing = sqlite_file(found)
    if existing is not None and not existing.exists() and not must_exist:
        return
    undamaged = _connect_undamaged(found, must_exist=must_exist)
    with closing(undamaged) as database, _as_settings(database), database.reading() as connection:
        if existing is not None:  # SQLite itself reads pages and indexes without a check
            result = str(connection.execute(text("PRAGMA integrity_check(1)")).scalar())
            if result != "ok":
                damage = result.splitlines()[-1]
                raise ConfigError(f"store.url: The store {database.shown} is damaged: {damage}. {_RESTORE}")
        if schema_of(connection) is None and must_exist:
            raise ConfigError(f"store.url: {_lost(database.shown)}")


def reason_of(error: Exception) -> str:
    """Returns the driver's message, in one line."""
    cause = getattr(error, "orig", None) or error
    return (str(cause).strip().splitlines() or [type(cause).__name__])[0].rstrip(".")


def _advice(error: Exception) -> str:
    cause = getattr(error, "orig", None)
    # sqlite3 itself, which gives no code, refuses text that is not UTF-8; SQLITE_ERROR: a table or column is missing.
    code = getattr(cause, "sqlite_errorcode", sqlite3.SQLITE_ERROR) & 0xFF
    damage = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_ERROR)
    if isinstance(cause, sqlite3.DatabaseError) and code in damage:
        return f"It is damaged. {_RESTORE}"
    if getattr(cause, "sqlstate", None) == _LOCK_NOT_AVAILABLE:
        return "Another session locks what it needs: try again when its transaction has ended, or end it."
    return "Is it away, full or read-only?"


def _engine(found: settings.StoreSection) -> Engine:
    try:
        url = make_url(found.url)
    except (ArgumentError, ValueError) as error:
        raise ConfigError(f"store.url is not an address of a database: {error}.") from error
    if url.get_backend_name() == "sqlite":
        return _sqlite(url)
    return _postgresql(url, read_secret(found.password_file, "store.password_file", "the password"))


def _sqlite(url: URL) -> Engine:
    path = Path(url.database or "")
    _make_folders(path)
    try:
        if not path.exists():
            _begin(path)
        with path.open("r+b") as file:
            begin, size_bytes = file.read(len(_MAGIC)), os.fstat(file.fileno()).st_size
    except OSError as error:
        raise ConfigError(f"store.url: {path} cannot be opened: {system_reason(error)}.") from error
    if not _MAGIC.startswith(begin):
        raise ConfigError(
            f"store.url: {path} is not an SQLite database; name the store's file, or one that does not exist yet. If "
            f"it was the store, it is damaged. {_RESTORE}"
        )
    if size_bytes < _LEAST_BYTES:
        raise ConfigError(f"store.url: The store {path} is damaged: it was cut off at {size_bytes} bytes. {_RESTORE}")
    engine = create_engine(url, connect_args={"timeout": BUSY_TIMEOUT_S})
    event.listen(engine, "connect", _prepare_sqlite)
    event.listen(engine, "begin", _begin_sqlite)
    return engine


def _make_folders(path: Path) -> None:
    """Makes the folders of an SQLite file, with their names on the disk: SQLite syncs those in its own folder alone."""
    try:
        missing = [folder for folder in path.absolute().parents if not folder.exists()]
        path.parent.mkdir(parents=True, exist_ok=True)
        for folder in missing:
            sync_folder(folder.parent)
    except OSError as error:
        raise ConfigError(f"store.url: {path} cannot be opened: {system_reason(error)}.") from error


def _begin(path: Path) -> None:
    """Makes an SQLite file under another name, then renames it: so a shorter file in its place was cut off.

    SQLite gives its journal the file's mode and owner.
    """
    descriptor, begun = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")  # of mode 0600
    try:
        give_to_owner_of(path.parent, descriptor)
        os.close(descriptor)
        with closing(sqlite3.connect(begun)) as connection:
            connection.execute("PRAGMA journal_mode = WAL")  # writes the first page
        with locked_folder(path.parent):
            if not path.exists():  # otherwise another process was faster
                Path(begun).replace(path)
        sync_folder(path.parent)
    except sqlite3.Error as error:
        raise ConfigError(f"store.url: {path} cannot be made: {error}.") from error
    finally:
        Path(begun).unlink(missing_ok=True)


def _prepare_sqlite(connection: Any, _record: object) -> None:
    connection.isolation_level = None  # transactions begin where we say so, not where the driver guesses
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("PRAGMA synchronous = FULL")
    connection.execute("PRAGMA foreign_keys = ON")


def _begin_sqlite(connection: Connection) -> None:
    # A transaction that will write takes the lock at once: one that starts by reading could not wait for the lock.
    reads = connection.get_execution_options().get(_READS, False)
    connection.exec_driver_sql("BEGIN" if reads else "BEGIN IMMEDIATE")


def _postgresql(url: URL, password: str) -> Engine:
    try:
        engine = create_engine(
            url.set(password=password) if password else url,
            pool_pre_ping=True,
            # The store's own, whatever a database or its roles have as defaults.
            isolation_level="READ COMMITTED",
            connect_args={
                "client_encoding": "utf8",
                "connect_timeout": _CONNECT_TIMEOUT_S,
                "tcp_user_timeout": _SILENCE_TIMEOUT_S * 1000,
                "application_name": "firstline-gateway",
            },
        )
    except ImportError as error:
        raise ConfigError(
            "store.url names PostgreSQL, and its driver is missing: pip install 'firstline[postgres]'."
        ) from error
    event.listen(engine, "connect", _prepare_postgresql)
    return engine


def _prepare_postgresql(connection: Any, _record: object) -> None:
    with connection.cursor() as cursor:
        cursor.execute(f"SET statement_timeout = {_STATEMENT_TIMEOUT_S * 1000}")
        cursor.execute(f"SET lock_timeout = {_LOCK_TIMEOUT_S * 1000:.0f}")
        # What a commit promises must outlive the server; a server whose default is weaker is overruled here.
        cursor.execute(
            "SELECT set_config('synchronous_commit', 'on', false) "
            "WHERE current_setting('synchronous_commit') IN ('off', 'local')"
        )
    connection.commit()
