"""The audit log in the store: one chain for all writers, in the transaction of the recorded change."""

import stat
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import msgspec
import pytest
import sqlalchemy as sa
from support.databases import sqlite_store

from firstline_core.errors import ConfigError, StoreUnavailableError
from firstline_core.fleet.audit_log import FIRST, verify_log
from firstline_gateway import audit_log
from firstline_gateway.identity import audit_head
from firstline_gateway.store.database import Database
from firstline_gateway.tables import open_database


def add(database: Database, subject: str, **details: object) -> None:
    with database.begin() as connection:
        audit_log.add(connection, 1e9, "application:ops", "test", subject, **details)


def test_entries_form_a_chain(database: Database) -> None:
    for number in range(5):
        add(database, "odd" if number % 2 else "even", number=number)
    with database.reading() as connection:
        entries = audit_log.page(connection, audit_log.EntryFilter(0), 100)
        assert verify_log(entries) == audit_log.last(connection) == (5, entries[-1].sha256)
        assert [entry.number for entry in audit_log.page(connection, audit_log.EntryFilter(1), 2)] == [2, 3]
        assert [
            msgspec.json.decode(entry.details)["number"]
            for entry in audit_log.page(connection, audit_log.EntryFilter(0, "odd"), 9)
        ] == [1, 3]


def test_an_export_begins_by_number_though_the_clock_stepped_back(database: Database) -> None:
    with database.begin() as connection:
        for at_s in (1.0, 9.0, 3.0, 8.0, 2.0):
            audit_log.add(connection, at_s, "a", "b", "c")
        assert [audit_log.first_since(connection, since_s) for since_s in (0, 2, 8.5, 10)] == [1, 2, 2, 6]


def test_an_empty_log_has_a_head_too(database: Database, tmp_path: Path) -> None:
    with database.reading() as connection:
        last = audit_log.last(connection)
    signed = audit_head.sign(last, audit_head.open_key(tmp_path), 5.0)
    assert last == (0, FIRST) == verify_log([], [signed])


def test_a_failed_action_leaves_no_entry(database: Database) -> None:
    def refused() -> None:
        with database.begin() as connection:
            audit_log.add(connection, 1e9, "a", "b", "c")
            raise RuntimeError("the transaction fails")

    with pytest.raises(RuntimeError):
        refused()
    add(database, "kept")
    with database.reading() as connection:
        assert [entry.subject for entry in audit_log.page(connection, audit_log.EntryFilter(0), 9)] == ["kept"]


def test_a_damaged_head_is_damage_of_the_store(tmp_path: Path) -> None:
    with closing(open_database(sqlite_store(tmp_path))) as database:
        with database.begin() as connection:
            connection.execute(sa.update(audit_log.HEAD).values(number=sa.literal_column("'x'")))
        with pytest.raises(StoreUnavailableError, match="is damaged"):
            add(database, "refused")


def test_a_lost_head_is_damage_of_the_store(database: Database) -> None:
    with database.begin() as connection:
        connection.execute(sa.delete(audit_log.HEAD))
    with pytest.raises(StoreUnavailableError, match="is damaged"):
        add(database, "refused")
    with pytest.raises(StoreUnavailableError, match="is damaged"), database.begin() as connection:
        audit_log.last(connection)


def test_concurrent_entries_form_one_chain(database: Database) -> None:
    with ThreadPoolExecutor(4) as pool:
        for done in [pool.submit(add, database, f"s{number}") for number in range(24)]:
            done.result()
    with database.reading() as connection:
        assert verify_log(audit_log.page(connection, audit_log.EntryFilter(0), 100))[0] == 24


def test_the_limit_of_details_counts_bytes(database: Database) -> None:
    add(database, "much", text="é" * 40_000)
    with database.reading() as connection:
        assert audit_log.page(connection, audit_log.EntryFilter(0), 1)[0].details == '{"left_out_bytes":80011}'


def test_the_key_is_private_and_stays(tmp_path: Path) -> None:
    key = audit_head.open_key(tmp_path / "identity")
    path = tmp_path / "identity" / audit_head.KEY_FILE
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert audit_head.open_key(tmp_path / "identity").private_bytes_raw() == key.private_bytes_raw()
    path.write_text("no key")
    with pytest.raises(ConfigError, match="cannot be used to sign"):
        audit_head.open_key(tmp_path / "identity")
