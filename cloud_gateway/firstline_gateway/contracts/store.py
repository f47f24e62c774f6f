"""What outlives the gateway's process: pools, the audits of the last day, and quotas, in one SQLite file.

The file is made when there is something to keep. Every audit is one transaction, so that a test and the ids that it
counted never part. Transactions are safe when the process dies; when the power fails the latest may be undone, whole,
which takes evidence away and invents none.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from firstline_core.errors import CapacityError, ConfigError
from firstline_core.routing import audit
from firstline_core.telemetry.logs import logger
from firstline_gateway.contracts.pool import Pool, PoolKey
from firstline_gateway.executors.base import ModelKey

log = logger(__name__)

# Each step takes the file from the version before it to its own; a change of format adds a step.
_MIGRATIONS = (
    """
    CREATE TABLE pools (
        key TEXT PRIMARY KEY,
        record TEXT NOT NULL
    ) WITHOUT ROWID;
    CREATE TABLE contributions (
        pool TEXT NOT NULL,
        device TEXT NOT NULL,
        audits INTEGER NOT NULL,
        disagreements INTEGER NOT NULL,
        last_s REAL NOT NULL,
        PRIMARY KEY (pool, device)
    ) WITHOUT ROWID;
    CREATE TABLE audits (
        device TEXT NOT NULL,
        request_id TEXT NOT NULL,
        counted_s REAL NOT NULL,
        PRIMARY KEY (device, request_id)
    ) WITHOUT ROWID;
    CREATE INDEX audits_by_age ON audits (counted_s);
    CREATE INDEX audits_by_device ON audits (device, counted_s);
    CREATE TABLE quotas (
        bundle TEXT NOT NULL,
        version INTEGER NOT NULL,
        per_hour REAL NOT NULL,
        PRIMARY KEY (bundle, version)
    );
    """,
)
_SCHEMA_VERSION = len(_MIGRATIONS)
_BUSY_TIMEOUT_S = 0.2
_DAY_S = 86_400.0


@dataclass(frozen=True, slots=True)
class Contribution:
    """One device's share of a pool; `last_s` is the wall time of its latest audit."""

    device: str
    audits: int
    disagreements: int
    last_s: float


class Store:
    """Of one gateway; another that opens the same file is refused.

    Args:
        path: of the file.

    Raises:
        ConfigError: the file is there, and another process has it, a newer version wrote it, or it is damaged.
        CapacityError: from any method: the disk refuses.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._connection = _open(path) if path.exists() else None
        self._closed = False

    def close(self) -> None:
        self._closed = True
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def pools(self) -> list[Pool]:
        """All of them. One whose state cannot be read is left out, and begins anew."""
        found = []
        for key, record in self._rows("SELECT key, record FROM pools"):
            try:
                pool = msgspec.json.decode(record, type=Pool)
                audit.check(pool.state)
                found.append(pool)
            except (msgspec.DecodeError, ConfigError) as error:
                log.error("audits not taken over", promise=key, why=str(error))
        return found

    def quotas(self) -> dict[ModelKey, float]:
        """What operators set, in escalations per hour."""
        rows = self._rows("SELECT bundle, version, per_hour FROM quotas")
        return {ModelKey(bundle, version): per_hour for bundle, version, per_hour in rows}

    def contributions(self, key: PoolKey, limit: int = -1) -> list[Contribution]:
        """By device, those with most disagreements first; all of them without a limit."""
        query = (
            "SELECT device, audits, disagreements, last_s FROM contributions WHERE pool = ? "
            "ORDER BY disagreements DESC, audits DESC, device LIMIT ?"
        )
        return [Contribution(*row) for row in self._rows(query, (_text(key), limit))]

    def devices(self, key: PoolKey) -> int:
        """How many contributed."""
        return int(self._first("SELECT count(*) FROM contributions WHERE pool = ?", (_text(key),), 0))

    def counted(self, device: str, request_id: str) -> bool:
        """Whether this request was counted within the last day."""
        query = "SELECT 1 FROM audits WHERE device = ? AND request_id = ?"
        return bool(self._first(query, (device, request_id), 0))

    def counted_between(self, device: str, since_s: float, until_s: float) -> int:
        """How many audits of a device were counted from one wall time to another."""
        query = "SELECT count(*) FROM audits WHERE device = ? AND counted_s > ? AND counted_s <= ?"
        return int(self._first(query, (device, since_s, until_s), 0))

    def put(self, pool: Pool, device: str, request_id: str, *, disagrees: bool) -> None:
        """Keeps a pool after an audit, and that audit. An alarm is on the disk when this returns."""
        key, record = _text(pool.key), msgspec.json.encode(pool).decode()
        with self._writing(synced=pool.alarmed_s == pool.last_s) as connection:
            connection.execute(
                "INSERT INTO pools VALUES (?, ?) ON CONFLICT DO UPDATE SET record = excluded.record", (key, record)
            )
            connection.execute(
                "INSERT INTO contributions VALUES (?, ?, 1, ?, ?) ON CONFLICT DO UPDATE SET audits = audits + 1, "
                "disagreements = disagreements + excluded.disagreements, last_s = excluded.last_s",
                (key, device, int(disagrees), pool.last_s),
            )
            connection.execute("INSERT INTO audits VALUES (?, ?, ?)", (device, request_id, pool.last_s))
            connection.execute("DELETE FROM audits WHERE counted_s < ?", (pool.last_s - _DAY_S,))

    def give_up(self, keys: Iterable[PoolKey]) -> None:
        """Forgets pools."""
        with self._writing() as connection:
            for key in keys:
                connection.execute("DELETE FROM contributions WHERE pool = ?", (_text(key),))
                connection.execute("DELETE FROM pools WHERE key = ?", (_text(key),))

    def set_quota(self, model: ModelKey, per_hour: float | None) -> None:
        """Keeps an operator's quota; None takes it back."""
        with self._writing() as connection:
            connection.execute("DELETE FROM quotas WHERE bundle = ? AND version = ?", model)
            if per_hour is not None:
                connection.execute("INSERT INTO quotas VALUES (?, ?, ?)", (*model, per_hour))

    def _rows(self, query: str, values: tuple[object, ...] = ()) -> list[Any]:
        if self._connection is None:  # nothing was kept yet
            return []
        with _translated(self._path):
            return self._connection.execute(query, values).fetchall()

    def _first(self, query: str, values: tuple[object, ...], otherwise: Any) -> Any:
        rows = self._rows(query, values)
        return rows[0][0] if rows else otherwise

    @contextmanager
    def _writing(self, *, synced: bool = True) -> Iterator[sqlite3.Connection]:
        """One transaction, on the disk afterwards where `synced`."""
        if self._closed:
            raise CapacityError("This gateway is ending, and keeps no more audits.")
        try:
            connection = self._connection = self._connection or _open(self._path)
        except ConfigError as error:
            raise CapacityError(error.message) from error
        with _translated(self._path):
            connection.execute("BEGIN IMMEDIATE")
            try:
                yield connection
                connection.execute("COMMIT")
            except BaseException:
                connection.rollback()
                raise
            if synced:
                connection.execute("PRAGMA wal_checkpoint(FULL)")


def is_writable(path: Path) -> bool:
    """Whether the file can be made, or written where it is there."""
    existing = next(found for found in (path, *path.absolute().parents) if found.exists())
    return os.access(existing, os.W_OK)


def _text(key: PoolKey) -> str:
    return msgspec.json.encode(key).decode()


@contextmanager
def _translated(path: Path) -> Iterator[None]:
    try:
        yield
    except sqlite3.Error as error:
        raise CapacityError(f"contracts.state_file {path} refuses: {error}. Is the disk full or failing?") from error


def _open(path: Path) -> sqlite3.Connection:
    try:
        # For this user alone; SQLite gives its journal the mode of the file.
        path.parent.mkdir(parents=True, exist_ok=True)
        os.close(os.open(path, os.O_CREAT | os.O_RDWR, 0o600))
        connection = sqlite3.connect(path, timeout=_BUSY_TIMEOUT_S, isolation_level=None, check_same_thread=False)
    except (OSError, sqlite3.Error) as error:
        raise ConfigError(f"contracts.state_file {path} cannot be opened: {error}.") from error
    try:
        # Held until it is closed: two gateways on one file would undo each other's audits.
        connection.execute("PRAGMA locking_mode = EXCLUSIVE")
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = NORMAL")
        (found,) = connection.execute("PRAGMA quick_check(1)").fetchone()
        if found != "ok":
            raise sqlite3.DatabaseError(found)
        _migrate(connection, path)
    except sqlite3.Error as error:
        connection.close()
        raise ConfigError(f"contracts.state_file {path} cannot be used: {error}; {_remedy(error)}.") from error
    except BaseException:
        connection.close()
        raise
    return connection


def _remedy(error: sqlite3.Error) -> str:
    if "locked" in str(error):
        return "another gateway uses it; give each its own"
    if isinstance(error, sqlite3.OperationalError):
        return "let this user write it and the folder that it is in, on a disk with room"
    return "restore it, or remove it, and the audits begin anew"


def _migrate(connection: sqlite3.Connection, path: Path) -> None:
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    if version > _SCHEMA_VERSION:
        raise ConfigError(
            f"contracts.state_file {path} has format {version}; this version of Firstline reads up to "
            f"{_SCHEMA_VERSION}. Install the version that wrote it, or give another path."
        )
    connection.execute("BEGIN EXCLUSIVE")  # takes the lock, where there is nothing to migrate too
    connection.execute("COMMIT")
    for target in range(version + 1, _SCHEMA_VERSION + 1):
        connection.executescript(f"BEGIN; {_MIGRATIONS[target - 1]} PRAGMA user_version = {target}; COMMIT;")
