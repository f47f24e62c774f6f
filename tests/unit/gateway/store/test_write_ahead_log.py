"""Damage to the store's log: found if acknowledged commits are behind it, and not mistaken for a power cut."""

import os
import shutil
import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from firstline_core.errors import ConfigError
from firstline_gateway.settings.settings import StoreSection
from firstline_gateway.store.write_ahead_log import loses_commits
from firstline_gateway.tables import open_database

COMMITS = 5
FRAME_BYTES = 4096 + 24


@pytest.fixture
def log(tmp_path: Path) -> Iterator[Path]:
    """The log of a database whose process was killed; each commit is one frame."""
    path = tmp_path / "a.db"
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("CREATE TABLE t (x)")
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        for number in range(COMMITS):
            connection.execute("INSERT INTO t VALUES (?)", (number,))
        copy = shutil.copy(f"{path}-wal", tmp_path / "copy-wal")
    return Path(copy)


def flip(log: Path, at: int) -> None:
    content = bytearray(log.read_bytes())
    content[at] ^= 4
    log.write_bytes(content)


def test_a_whole_log_loses_nothing(log: Path) -> None:
    assert log.stat().st_size == 32 + COMMITS * FRAME_BYTES
    assert not loses_commits(log)
    assert not loses_commits(log.with_name("none"))
    log.write_bytes(b"")
    assert not loses_commits(log)


def test_a_start_after_a_crash_does_not_wait_for_the_check(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA wal_autocheckpoint = 0")
        connection.execute("CREATE TABLE t (x)")
        for _ in range(2):
            connection.execute("INSERT INTO t VALUES (randomblob(8000000))")
        log, started_s = Path(f"{path}-wal"), time.process_time()
        assert not loses_commits(log)
        assert time.process_time() - started_s < 0.5
        flip(log, 1_000_000)
        assert loses_commits(log)


LAST_BUT_ONE = 32 + (COMMITS - 2) * FRAME_BYTES


@pytest.mark.parametrize(
    "at", [0, 9, 17, 30, 32 + 3, 32 + 12, 32 + 20, 32 + 1000, *(LAST_BUT_ONE + at for at in (3, 8, 12, 16, 50))]
)
def test_damage_before_a_later_commit_is_found(log: Path, at: int) -> None:
    flip(log, at)
    assert loses_commits(log)


@pytest.mark.parametrize("cut", [1, 4000, FRAME_BYTES - 1, FRAME_BYTES])
def test_a_last_commit_that_a_power_cut_tore_is_no_damage(log: Path, cut: int) -> None:
    os.truncate(log, log.stat().st_size - cut)
    assert not loses_commits(log)
    with log.open("ab") as file:
        file.write(bytes(cut))
    assert not loses_commits(log)


def test_frames_before_the_last_reset_of_the_log_do_not_count(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("CREATE TABLE t (x)")
        for _ in range(COMMITS):
            connection.execute("INSERT INTO t VALUES (1)")
        connection.execute("PRAGMA wal_checkpoint(RESTART)")
        connection.execute("INSERT INTO t VALUES (2)")  # over the first frame
        assert not loses_commits(Path(f"{path}-wal"))


def test_a_store_with_a_damaged_log_is_refused_and_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "gateway.db"
    with closing(open_database(StoreSection(url=f"sqlite:///{path}"))):
        for file in tmp_path.glob("gateway.db*"):
            shutil.copy(file, tmp_path / file.name.replace("gateway", "killed"))
    killed, log = StoreSection(url=f"sqlite:///{tmp_path / 'killed.db'}"), tmp_path / "killed.db-wal"
    with closing(open_database(killed)), closing(sqlite3.connect(tmp_path / "killed.db")) as connection:
        for number in range(3):
            connection.execute("UPDATE service_clock SET seconds = ?", (number,))
            connection.commit()
        shutil.copy(log, tmp_path / "copy")
    shutil.copy(tmp_path / "copy", log)
    flip(log, 100)
    before = log.read_bytes()
    with pytest.raises(ConfigError, match=r"killed.db-wal cannot be read to its end.* restore FILE --store-only"):
        open_database(killed)
    assert log.read_bytes() == before
