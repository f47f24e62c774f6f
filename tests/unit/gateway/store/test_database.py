"""The store's database: one schema on SQLite and PostgreSQL, transactions, and refusals in sentences."""

import errno
import importlib
import os
import re
import sqlite3
import stat
import struct
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import psycopg
import pytest
from sqlalchemy import Connection, event, text
from support.broker import free_port
from support.databases import PostgreSql

import firstline_gateway
from firstline_core.errors import CapacityError, ConfigError, StoreUnavailableError
from firstline_gateway.fleet import devices
from firstline_gateway.identity.credentials import KnownCredentials, read_changes
from firstline_gateway.rollouts import records
from firstline_gateway.rollouts.rollout import LIVE
from firstline_gateway.settings.settings import StoreSection
from firstline_gateway.store import migrate, service_clock
from firstline_gateway.store.database import Database, check, connect, used_by_one_gateway
from firstline_gateway.store.schema import METADATA
from firstline_gateway.store.store import Store
from firstline_gateway.tables import open_database

_INSERT = text("INSERT INTO contract_pools (key, record) VALUES (:key, 'r')")


def _keys(database: Database) -> list[str]:
    with database.reading() as connection:
        return sorted(connection.execute(text("SELECT key FROM contract_pools")).scalars())


_OPEN = """if True:
    import sys
    from firstline_gateway.settings.settings import StoreSection
    from firstline_gateway.tables import open_database
    print("imported", flush=True)
    sys.stdin.readline()
    open_database(StoreSection(url=sys.argv[1])).close()
"""


def opening(store: StoreSection) -> subprocess.Popen[str]:
    """A process that has imported nothing else, and opens a store once it gets a line."""
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-c", _OPEN, store.url]
    return subprocess.Popen(command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def test_the_migrations_create_the_declared_tables(empty_store: StoreSection) -> None:
    from alembic.autogenerate import compare_metadata  # only here, because these imports take a tenth of a second
    from alembic.runtime.migration import MigrationContext

    with opening(empty_store) as process:
        process.communicate("go\n")
    assert process.returncode == 0
    root = Path(firstline_gateway.__file__).parent
    for source in root.rglob("*.py"):
        if "    METADATA,\n" in source.read_text():  # it declares a table
            importlib.import_module(".".join(source.relative_to(root.parent).with_suffix("").parts))
    database = open_database(empty_store)
    with database.reading() as connection:
        assert compare_metadata(MigrationContext.configure(connection), METADATA) == []
    database.close()


def test_committed_rows_survive_reopening(empty_store: StoreSection) -> None:
    database = open_database(empty_store)
    with database.begin() as connection:
        connection.execute(_INSERT, {"key": "a"})
    with pytest.raises(ZeroDivisionError), database.begin() as connection:
        connection.execute(_INSERT, {"key": "b"})
        raise ZeroDivisionError
    database.close()
    again = open_database(empty_store)
    assert _keys(again) == ["a"]
    again.close()


def test_processes_that_start_at_once_upgrade_once(empty_store: StoreSection) -> None:
    with opening(empty_store) as other:
        assert other.stdout.readline() == "imported\n"
        other.stdin.write("go\n")
        other.stdin.flush()
        open_database(empty_store).close()
    assert other.returncode == 0


def test_a_start_waits_for_another_that_migrates(postgresql: PostgreSql, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("firstline_gateway.store.database._LOCK_TIMEOUT_S", 0.2)
    found = postgresql.new_store()
    with psycopg.connect(found.url.replace("+psycopg", "")) as other:
        other.execute("SELECT pg_advisory_xact_lock(%s)", [migrate._LOCK])
        threading.Timer(0.6, other.rollback).start()
        open_database(found).close()


def test_a_newer_schema_is_refused(empty_store: StoreSection) -> None:
    database = open_database(empty_store)
    with database.begin() as connection:
        connection.execute(text("UPDATE alembic_version SET version_num = '9999'"))
    database.close()
    with pytest.raises(ConfigError, match=r"schema is 9999; this version of Firstline knows up to \d+"):
        open_database(empty_store)


def test_a_reader_waits_for_no_writer(empty_store: StoreSection) -> None:
    database = open_database(empty_store)
    with database.begin() as connection:
        connection.execute(_INSERT, {"key": "a"})
        assert _keys(database) == []
    assert _keys(database) == ["a"]
    database.close()


def test_the_file_is_for_its_user_alone(tmp_path: Path) -> None:
    database = open_database(StoreSection(url=f"sqlite:///{tmp_path / 'new' / 'gateway.db'}"))
    with database.begin() as connection:
        connection.execute(_INSERT, {"key": "a"})
        modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in (tmp_path / "new").iterdir()}
    assert modes == dict.fromkeys(("gateway.db", "gateway.db-wal", "gateway.db-shm"), 0o600)
    database.close()


def test_a_commit_is_synced(tmp_path: Path) -> None:
    database = open_database(StoreSection(url=f"sqlite:///{tmp_path / 'gateway.db'}"))
    with database.reading() as connection:
        assert connection.execute(text("PRAGMA synchronous")).scalar() == 2  # FULL
        assert connection.execute(text("PRAGMA journal_mode")).scalar() == "wal"
    database.close()


def test_a_file_that_is_not_a_database_is_refused(tmp_path: Path) -> None:
    (tmp_path / "gateway.db").write_bytes(b"not a database at all" * 100)
    with pytest.raises(ConfigError, match=r"gateway\.db is not an SQLite database; name the store's file"):
        open_database(StoreSection(url=f"sqlite:///{tmp_path / 'gateway.db'}"))


def test_a_database_with_a_damaged_header_is_refused(tmp_path: Path) -> None:
    (tmp_path / "gateway.db").write_bytes(b"SQLite format 3\0" + b"\xff" * 2000)
    message = (
        r"file is not a database\. It is damaged\. Put the store and its -wal and -shm files aside, then restore a "
        r"backup: `firstline-gateway restore FILE --store-only --config CONFIG`"
    )
    with pytest.raises(ConfigError, match=message):
        open_database(StoreSection(url=f"sqlite:///{tmp_path / 'gateway.db'}"))


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """The closed file of a store."""
    path = tmp_path / "gateway.db"
    open_database(StoreSection(url=f"sqlite:///{path}")).close()
    return path


@pytest.mark.parametrize("size_bytes", [0, 100, 511, 512, 4096, 40_960])
def test_a_file_that_was_cut_off_is_refused(file: Path, size_bytes: int) -> None:
    os.truncate(file, size_bytes)
    with pytest.raises(ConfigError, match=r"damaged.* `firstline-gateway restore FILE --store-only --config CONFIG`"):
        open_database(StoreSection(url=f"sqlite:///{file}"))
    assert file.stat().st_size == size_bytes


@pytest.mark.parametrize("byte", [b"CREATE TABLE", b"alembic_version"])
@pytest.mark.parametrize("bit", [0, 3, 6, 7])
def test_a_flipped_bit_in_the_schema_is_refused(file: Path, byte: bytes, bit: int) -> None:
    content = bytearray(file.read_bytes())
    for found in re.finditer(re.escape(byte), bytes(content)):  # a page may still hold a copy that it does not use
        content[found.start()] ^= 1 << bit
    file.write_bytes(content)
    with pytest.raises(ConfigError, match=r"damaged.* `firstline-gateway restore FILE --store-only --config CONFIG`"):
        open_database(StoreSection(url=f"sqlite:///{file}"))


def test_flipped_bits_of_rows_are_damage(file: Path) -> None:
    """A flipped bit of a row may give a column another type, which SQLite does not notice."""
    with closing(sqlite3.connect(file)) as connection:
        connection.execute("UPDATE service_clock SET seconds = 1234.5678")
        connection.execute(
            "INSERT INTO api_keys VALUES ('0123456789abcdef', 'shop', '', '', 1, NULL, NULL, '', NULL, 1)"
        )
        connection.commit()
    intact, raised = file.read_bytes(), set[str]()
    for row in (struct.pack(">d", 1234.5678), b"0123456789abcdef"):
        at = intact.rindex(row)
        for bit in range(8 * (at - 12), 8 * (at + 1)):
            content = bytearray(intact)
            content[bit // 8] ^= 1 << bit % 8
            file.write_bytes(content)
            try:
                with closing(connect(StoreSection(url=f"sqlite:///{file}"))) as database, database.reading() as opened:
                    service_clock.read(opened)
                    KnownCredentials().apply(read_changes(opened, 0))
            except StoreUnavailableError as error:
                assert "damaged" in error.message and str(file) not in error.public
                raised.add(type(error.__cause__).__name__)
    assert "TypeError" in raised


@pytest.mark.parametrize("look", [open_database, check])
def test_a_store_without_tables_is_refused(empty_store: StoreSection, look: Callable[..., Database | None]) -> None:
    with pytest.raises(ConfigError, match=r"missing or empty, but the authority.* restore FILE --store-only"):
        look(empty_store, must_exist=True)
    open_database(empty_store).close()
    if (found := look(empty_store, must_exist=True)) is not None:
        found.close()


def test_only_a_start_checks_every_page_and_blocks_no_writer(file: Path) -> None:
    with closing(sqlite3.connect(file)) as connection:
        connection.executescript("CREATE TABLE lost (x); PRAGMA writable_schema = ON;")
        connection.execute("DELETE FROM sqlite_schema WHERE name = 'lost'")  # its page belongs to nothing now
        connection.commit()
    store = StoreSection(url=f"sqlite:///{file}")
    refused = pytest.raises(ConfigError, match=r"damaged: .*[Pp]age \d+.* never used")
    with closing(open_database(store)) as database, database.begin(), refused:
        check(store)


def test_a_file_that_cannot_be_made_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match="cannot be opened"):
        open_database(StoreSection(url=f"sqlite:///{tmp_path / 'file' / 'gateway.db'}"))


@pytest.mark.parametrize("target", ["store.db", "missing/store.db"], ids=["itself", "no folder"])
def test_dangling_link_is_locked_as_the_store_replacing_it(tmp_path: Path, target: str) -> None:
    found = StoreSection(url=f"sqlite:///{tmp_path}/store.db")
    (tmp_path / "store.db").symlink_to(target)
    for _ in range(2):
        with used_by_one_gateway(found):
            open_database(found).close()
            with pytest.raises(ConfigError, match="in use by another gateway"), used_by_one_gateway(found):
                pass
    assert not (tmp_path / "store.db").is_symlink()


def test_a_store_of_an_unknown_owner_is_locked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.EINVAL, "Invalid argument")

    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(os, "chown", refuse)
    with used_by_one_gateway(StoreSection(url=f"sqlite:///{tmp_path}/store.db")):
        pass


def test_a_server_that_is_away_is_named() -> None:
    with pytest.raises(ConfigError, match=r"firstline@127.0.0.1.* refuses: .*\. Is it away"):
        open_database(StoreSection(url=f"postgresql+psycopg://firstline@127.0.0.1:{free_port()}/none"))


def test_defaults_of_a_postgresql_database_change_nothing(postgresql: PostgreSql) -> None:
    with psycopg.connect(postgresql.conninfo, autocommit=True) as administrator:
        administrator.execute("CREATE DATABASE odd ENCODING 'SQL_ASCII' LOCALE 'C' TEMPLATE template0")
        administrator.execute("ALTER DATABASE odd SET default_transaction_isolation = 'serializable'")
    with closing(open_database(StoreSection(url=postgresql.url("odd")))) as database:
        with database.begin() as connection:
            assert connection.execute(text("SHOW transaction_isolation")).scalar() == "read committed"
            connection.execute(_INSERT, {"key": "größer"})
        assert _keys(database) == ["größer"]


class TestWriter:
    def test_many_callers_share_a_group(self, empty_store: StoreSection) -> None:
        database = open_database(empty_store)
        writer = Store(database)
        done = [
            writer.submit(lambda connection, key=key: connection.execute(_INSERT, {"key": f"{key:02}"}).rowcount)
            for key in range(40)
        ]
        assert [one.result() for one in done] == [1] * 40
        writer.close()
        assert len(_keys(database)) == 40
        database.close()

    def test_what_fails_fails_alone(self, empty_store: StoreSection) -> None:
        database = open_database(empty_store)
        writer = Store(database)
        gate = threading.Event()
        blocker = writer.submit(lambda _: gate.wait())  # what comes now makes one group
        first = writer.submit(lambda connection: connection.execute(_INSERT, {"key": "a"}))
        twice = writer.submit(lambda connection: connection.execute(_INSERT, {"key": "a"}))
        other = writer.submit(lambda connection: connection.execute(_INSERT, {"key": "b"}))
        gate.set()
        assert blocker.result()
        first.result()
        with pytest.raises(CapacityError, match="refuses"):
            twice.result()
        other.result()
        writer.close()
        assert _keys(database) == ["a", "b"]
        with pytest.raises(CapacityError, match="is closed"):
            writer.submit(lambda _: None)
        database.close()

    def test_locked_row_delays_others_briefly(self, postgresql: PostgreSql, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("firstline_gateway.store.database._LOCK_TIMEOUT_S", 0.2)
        found = postgresql.new_store()
        database = open_database(found)
        writer = Store(database)
        writer.submit(lambda connection: connection.execute(_INSERT, {"key": "a"})).result()
        gate = threading.Event()
        with psycopg.connect(found.url.replace("+psycopg", "")) as operator:
            operator.execute("UPDATE contract_pools SET record = 'operator'")
            blocker = writer.submit(lambda _: gate.wait())  # what comes now makes one group
            locked = writer.submit(lambda connection: connection.execute(text("DELETE FROM contract_pools")))
            other = writer.submit(lambda connection: connection.execute(_INSERT, {"key": "b"}))
            gate.set()
            assert blocker.result()
            with pytest.raises(StoreUnavailableError, match="Another session locks what it needs"):
                locked.result(5)
            other.result(5)
        writer.close()
        assert _keys(database) == ["a", "b"]
        database.close()

    def test_another_process_that_writes_is_waited_for(self, tmp_path: Path) -> None:
        database = open_database(StoreSection(url=f"sqlite:///{tmp_path / 'gateway.db'}"))
        writer = Store(database)
        other = sqlite3.connect(tmp_path / "gateway.db", isolation_level=None)
        other.execute("BEGIN IMMEDIATE")
        waiting = writer.submit(lambda connection: connection.execute(_INSERT, {"key": "a"}))
        assert not waiting.done()
        other.execute("COMMIT")
        waiting.result()
        other.close()
        writer.close()
        database.close()


# Queries that run every few seconds, or for each page of the console, use an index.


@pytest.mark.parametrize(
    ("read", "index"),
    [
        (lambda on: devices.unpublished(on, 10), "ix_fleet_devices_lead"),
        (lambda on: devices.unpublished(on, 10, "cam"), "ix_fleet_devices_lead"),
        (lambda on: records.waiting(on, bool, 10), "ix_rollouts_state_id"),
        (lambda on: records.in_states(on, *LIVE), "ix_rollouts_state_id"),
        (records.by_state, "ix_rollouts_state_id"),
    ],
)
def test_frequent_queries_use_an_index(database: Database, read: Callable[[Connection], object], index: str) -> None:
    queries: list[tuple[str, Any]] = []
    event.listen(database._engine, "before_cursor_execute", lambda *arguments: queries.append(arguments[2:4]))
    with database.reading() as connection:
        if database.dialect == "postgresql":
            connection.execute(text("SET LOCAL enable_seqscan = off"))  # which is faster for an empty table
        queries.clear()
        read(connection)
        statement, parameters = queries[-1]
        explain = "EXPLAIN" if database.dialect == "postgresql" else "EXPLAIN QUERY PLAN"
        plan = connection.exec_driver_sql(f"{explain} {statement}", parameters).all()
    assert index in str(plan)
