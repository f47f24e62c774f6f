"""The file in which a gateway of version 0.1 kept its contracts: taken over into the store, once.

Where replicas each had one, the pools of one promise meet: the one that alarms is kept, or else the one with more
audits. Each was a valid test, and which is longer does not depend on what it showed; alarms are not lost.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from sqlalchemy import Connection, Table, delete

from firstline_core.errors import CapacityError, ConfigError
from firstline_core.telemetry.logs import logger
from firstline_gateway.contracts import store
from firstline_gateway.contracts.pool import Pool
from firstline_gateway.contracts.quota import HOUR_S
from firstline_gateway.contracts.tables import AUDITS, CONTRIBUTIONS, QUOTAS
from firstline_gateway.store import service
from firstline_gateway.store.database import Database
from firstline_gateway.store.statements import insert

log = logger(__name__)

TAKEN_OVER = ".taken-over"
"""What the file's name ends in afterwards."""
_FORMAT = 1


@dataclass(frozen=True, slots=True)
class _Kept:
    """The file's rows, as its columns are: those of contributions begin with the pool's key."""

    pools: list[Pool]
    contributions: list[tuple[str, str, int, int, float]]
    audits: list[tuple[str, str, float]]
    quotas: list[tuple[str, int, float]]


def take_over(path: Path, database: Database) -> None:
    """Takes the file over, if it is there, and renames it; a second time changes nothing.

    Raises:
        ConfigError: another gateway uses it, it is damaged, or the store or the folder refuses.
    """
    if not path.is_file():
        return
    kept = _read(path)
    try:
        with database.begin() as connection:
            _write(connection, kept)
    except CapacityError as error:
        raise ConfigError(f"contracts.state_file {path} is not taken over: {error.message}") from error
    try:
        path.rename(path.with_name(path.name + TAKEN_OVER))
    except OSError as error:
        raise ConfigError(
            f"contracts.state_file {path} is taken over into the store, but cannot be renamed: {error.strerror}. "
            "Remove it, so that it is not taken over again."
        ) from error
    log.info("contracts taken over", file=str(path), tests=len(kept.pools), audits=len(kept.audits))


def _read(path: Path) -> _Kept:
    try:
        with closing(sqlite3.connect(path, timeout=0.2, isolation_level=None)) as connection:
            # Its gateway held it for as long as it ran: nobody may count in it any more.
            connection.execute("PRAGMA locking_mode = EXCLUSIVE")
            connection.execute("BEGIN EXCLUSIVE")
            (found,) = connection.execute("PRAGMA quick_check(1)").fetchone()
            if found != "ok":
                raise sqlite3.DatabaseError(found)
            (version,) = connection.execute("PRAGMA user_version").fetchone()
            if version != _FORMAT:
                raise sqlite3.DatabaseError(f"its format is {version}, not {_FORMAT}")
            records = connection.execute("SELECT key, record FROM pools").fetchall()
            kept = _Kept(
                [pool for pool in (store.decoded(*row) for row in records) if pool is not None],
                connection.execute("SELECT pool, device, audits, disagreements, last_s FROM contributions").fetchall(),
                connection.execute("SELECT device, request_id, counted_s FROM audits").fetchall(),
                connection.execute("SELECT bundle, version, per_hour FROM quotas").fetchall(),
            )
            connection.execute("COMMIT")
            return kept
    except sqlite3.Error as error:
        remedy = "another gateway uses it; stop that" if "locked" in str(error) else "restore it, or remove it"
        raise ConfigError(f"contracts.state_file {path} cannot be taken over: {error}; {remedy}.") from error


def _write(connection: Connection, kept: _Kept) -> None:
    now_s = service.read(connection)

    def aged(times_s: Sequence[float]) -> list[float]:
        """The service times of what has these wall times: apart as they were, and none too old to be known."""
        newest_s = max(times_s, default=0.0)
        return [now_s - min(newest_s - time_s, HOUR_S) for time_s in times_s]

    for pool in kept.pools:
        known = store.locked(connection, pool.key)
        if known is not None and _rank(known) >= _rank(pool):
            continue
        store.replace_pool(connection, pool)
        key = store.text_of(pool.key)
        connection.execute(delete(CONTRIBUTIONS).where(CONTRIBUTIONS.c.pool == key))
        contributions = [row for row in kept.contributions if row[0] == key]
        ages = aged([row[-1] for row in contributions])
        _add(connection, CONTRIBUTIONS, [(*row, age) for row, age in zip(contributions, ages, strict=True)])
    ages = aged([row[-1] for row in kept.audits])
    _add(connection, AUDITS, [(*row[:-1], age) for row, age in zip(kept.audits, ages, strict=True)])
    _add(connection, QUOTAS, kept.quotas)


def _add(connection: Connection, table: Table, rows: Sequence[tuple[object, ...]]) -> None:
    if rows:
        statement = insert(connection, table).on_conflict_do_nothing()
        connection.execute(statement, [dict(zip(table.c.keys(), row, strict=True)) for row in rows])


def _rank(pool: Pool) -> tuple[bool, int]:
    return pool.alarmed_s is not None, pool.state.audits
