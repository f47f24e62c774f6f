"""The file in which a gateway of version 0.1 kept its contracts: taken over once, and never counted in again."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec
import pytest
from support.pools import KEY, NOW_S, OTHER, pool_of

from firstline_core.errors import ConfigError
from firstline_gateway.contracts import store
from firstline_gateway.contracts.pool import Pool
from firstline_gateway.contracts.takeover import TAKEN_OVER, take_over
from firstline_gateway.executors.base import ModelKey
from firstline_gateway.settings.settings import Store
from firstline_gateway.store.database import Database, open_database

# As that version made it.
_SCHEMA = """
    CREATE TABLE pools (key TEXT PRIMARY KEY, record TEXT NOT NULL) WITHOUT ROWID;
    CREATE TABLE contributions (
        pool TEXT NOT NULL, device TEXT NOT NULL, audits INTEGER NOT NULL, disagreements INTEGER NOT NULL,
        last_s REAL NOT NULL, PRIMARY KEY (pool, device)
    ) WITHOUT ROWID;
    CREATE TABLE audits (
        device TEXT NOT NULL, request_id TEXT NOT NULL, counted_s REAL NOT NULL, PRIMARY KEY (device, request_id)
    ) WITHOUT ROWID;
    CREATE TABLE quotas (
        bundle TEXT NOT NULL, version INTEGER NOT NULL, per_hour REAL NOT NULL, PRIMARY KEY (bundle, version)
    );
    PRAGMA user_version = 1;
"""


def older(path: Path, pools: Sequence[Pool], device: str = "cam") -> Path:
    """A file with these pools, each of one device's audits."""
    connection = sqlite3.connect(path)
    connection.executescript(_SCHEMA)
    for pool in pools:
        key = store.text_of(pool.key)
        audits = pool.state.audits
        connection.execute("INSERT INTO pools VALUES (?, ?)", (key, msgspec.json.encode(pool).decode()))
        connection.execute("INSERT INTO contributions VALUES (?, ?, ?, ?, ?)", (key, device, audits, audits, NOW_S))
    connection.execute("INSERT INTO audits VALUES (?, 'r', ?)", (device, NOW_S))
    connection.execute("INSERT INTO quotas VALUES ('digits', 3, 12.5)")
    connection.commit()
    connection.close()
    return path


@pytest.fixture
def database(store_settings: Store) -> Iterator[Database]:
    found = open_database(store_settings)
    yield found
    found.close()


def kept(database: Database) -> tuple[list[Pool], dict[str, int], bool, dict[ModelKey, float]]:
    with database.reading() as connection:
        devices = {one.device: one.audits for one in store.contributions(connection, KEY)}
        return (
            sorted(store.pools(connection), key=lambda pool: pool.key),
            devices,
            store.counted(connection, "cam", "r"),
            store.quotas(connection),
        )


def test_all_of_it_is_taken_over_and_the_file_put_aside(database: Database, tmp_path: Path) -> None:
    path = older(tmp_path / "contracts.db", [pool_of(3, alarmed_s=NOW_S), pool_of(1, OTHER)])
    take_over(path, database)
    expected = ([pool_of(3, alarmed_s=NOW_S), pool_of(1, OTHER)], {"cam": 3}, True, {ModelKey("digits", 3): 12.5})
    assert kept(database) == expected
    assert not path.exists()
    aside = path.with_name(path.name + TAKEN_OVER)
    assert aside.exists()
    take_over(path, database)  # there is none any more
    aside.rename(path)  # as where the process died before it could put the file aside
    take_over(path, database)
    assert kept(database) == expected


@pytest.mark.parametrize("first", [0, 1])
def test_of_two_replicas_tests_the_one_that_alarms_is_kept(database: Database, tmp_path: Path, first: int) -> None:
    files = [
        older(tmp_path / "a.db", [pool_of(2, alarmed_s=NOW_S), pool_of(5, OTHER)], "cam"),
        older(tmp_path / "b.db", [pool_of(9), pool_of(4, OTHER)], "yard"),
    ]
    take_over(files[first], database)
    take_over(files[1 - first], database)
    pools, devices, _, _ = kept(database)
    assert pools == [pool_of(2, alarmed_s=NOW_S), pool_of(5, OTHER)]
    assert devices == {"cam": 2}


def test_a_gateway_that_still_counts_in_it_is_not_robbed(database: Database, tmp_path: Path) -> None:
    path = older(tmp_path / "contracts.db", [pool_of(1)])
    running = sqlite3.connect(path, isolation_level=None)
    running.execute("PRAGMA locking_mode = EXCLUSIVE")
    running.execute("PRAGMA journal_mode = WAL")
    running.execute("BEGIN EXCLUSIVE")
    running.execute("COMMIT")
    with pytest.raises(ConfigError, match="another gateway uses it"):
        take_over(path, database)
    running.close()
    take_over(path, database)


@pytest.mark.parametrize("content", [b"not a database at all" * 200, b""])
def test_a_file_that_is_none_of_ours_is_refused(database: Database, tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "contracts.db"
    path.write_bytes(content)
    with pytest.raises(ConfigError, match="restore it, or remove it"):
        take_over(path, database)
    assert path.exists()


def test_a_damaged_page_is_found(database: Database, tmp_path: Path) -> None:
    path = older(tmp_path / "contracts.db", [pool_of(1)])
    connection = sqlite3.connect(path)
    (page_bytes,) = connection.execute("PRAGMA page_size").fetchone()
    (page,) = connection.execute("SELECT rootpage FROM sqlite_master WHERE name = 'audits'").fetchone()
    connection.close()
    with path.open("r+b") as file:
        file.seek((page - 1) * page_bytes)
        file.write(b"\xff" * page_bytes)
    with pytest.raises(ConfigError, match="restore it, or remove it"):
        take_over(path, database)
