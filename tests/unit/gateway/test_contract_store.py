"""What outlives the gateway's process."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from firstline_core.errors import CapacityError, ConfigError
from firstline_core.routing import audit
from firstline_gateway.contracts.pool import Pool, PoolKey, opened
from firstline_gateway.contracts.store import Store
from firstline_gateway.executors.base import ModelKey

KEY = PoolKey("digits", 3, "0" * 64, 1 / 3, 0.05)
NOW_S = 1_800_000_000.0


def pool_of(losses: int, key: PoolKey = KEY, **changes: object) -> Pool:
    state = audit.begin(key.epsilon)
    for _ in range(losses):
        state = audit.update(state, 1.0, propensity=0.3, floor=0.1)
    pool = replace(opened(key, NOW_S), state=state, disagreements=losses, weight=1 / 3, lost_weight=0.1)
    return replace(pool, **changes)  # type: ignore[arg-type]


def test_what_was_counted_comes_back_to_the_last_bit(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "contracts.db"
    store = Store(path)
    store.put(pool_of(3), "cam", "a", disagrees=True)
    store.put(pool_of(4, alarmed_s=NOW_S), "yard", "b", disagrees=False)
    store.put(pool_of(1, KEY._replace(threshold=0.5)), "cam", "c", disagrees=True)
    store.set_quota(ModelKey("digits", 3), 12.5)
    store.close()
    store = Store(path)
    assert {pool.key: pool for pool in store.pools()} == {
        KEY: pool_of(4, alarmed_s=NOW_S),
        KEY._replace(threshold=0.5): pool_of(1, KEY._replace(threshold=0.5)),
    }
    assert store.quotas() == {ModelKey("digits", 3): 12.5}
    assert [(one.device, one.audits, one.disagreements) for one in store.contributions(KEY)] == [
        ("cam", 1, 1),
        ("yard", 1, 0),
    ]
    assert store.devices(KEY) == 2
    assert store.counted("cam", "a")
    assert not store.counted("yard", "a")
    assert path.stat().st_mode & 0o777 == 0o600
    store.close()


def test_a_process_that_dies_takes_no_audit_along(tmp_path: Path) -> None:
    dies = (
        "import os, pathlib, sys; sys.path[:0] = sys.argv[2:]\n"
        "from test_contract_store import Store, pool_of\n"
        "Store(pathlib.Path(sys.argv[1])).put(pool_of(2), 'cam', 'a', disagrees=True)\n"
        "os._exit(9)\n"
    )
    path = tmp_path / "contracts.db"
    command = [sys.executable, "-c", dies, str(path), str(Path(__file__).parent), *sys.path]
    assert subprocess.run(command, check=False).returncode == 9
    store = Store(path)
    assert store.pools() == [pool_of(2)]
    assert store.counted("cam", "a")
    store.close()


def test_nothing_is_made_until_there_is_something_to_keep(tmp_path: Path) -> None:
    store = Store(tmp_path / "contracts.db")
    assert store.pools() == []
    assert store.quotas() == {}
    assert store.devices(KEY) == store.counted_between("cam", 0.0, NOW_S) == 0
    assert not store.counted("cam", "a")
    store.close()
    assert not list(tmp_path.iterdir())


def test_the_audits_of_an_hour_are_counted_and_those_of_yesterday_forgotten(tmp_path: Path) -> None:
    store = Store(tmp_path / "contracts.db")
    for hour in (0, 23, 25):
        store.put(pool_of(1, last_s=NOW_S + hour * 3600), "cam", f"at {hour}", disagrees=True)
    assert store.counted_between("cam", NOW_S + 24 * 3600, NOW_S + 26 * 3600) == 1
    assert store.counted_between("cam", 0.0, NOW_S + 26 * 3600) == 2
    assert store.counted_between("cam", 0.0, NOW_S + 24 * 3600) == 1  # the clock was set back
    assert [store.counted("cam", f"at {hour}") for hour in (0, 23, 25)] == [False, True, True]
    store.close()


def test_what_is_given_up_takes_its_contributions_along(tmp_path: Path) -> None:
    store = Store(tmp_path / "contracts.db")
    store.put(pool_of(1), "cam", "a", disagrees=True)
    store.give_up([KEY])
    assert store.pools() == []
    assert store.devices(KEY) == 0
    store.put(pool_of(1), "cam", "b", disagrees=True)
    assert store.devices(KEY) == 1
    store.close()


def test_the_same_audit_twice_changes_nothing(tmp_path: Path) -> None:
    store = Store(tmp_path / "contracts.db")
    store.put(pool_of(1), "cam", "a", disagrees=True)
    with pytest.raises(CapacityError, match="refuses"):
        store.put(pool_of(2), "cam", "a", disagrees=True)
    assert store.pools() == [pool_of(1)]
    assert store.contributions(KEY)[0].audits == 1
    store.close()


def test_two_gateways_do_not_share_a_file(tmp_path: Path) -> None:
    first = Store(tmp_path / "contracts.db")
    first.put(pool_of(1), "cam", "a", disagrees=True)
    with pytest.raises(ConfigError, match="another gateway uses it"):
        Store(tmp_path / "contracts.db")
    first.close()
    Store(tmp_path / "contracts.db").close()


def test_a_newer_format_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "contracts.db"
    store = Store(path)
    store.set_quota(ModelKey("digits", 3), 1.0)
    store.close()
    with sqlite3.connect(path) as connection:
        connection.execute("PRAGMA user_version = 99")
    connection.close()
    with pytest.raises(ConfigError, match="format 99"):
        Store(path)


def test_a_file_that_is_none_of_ours_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "contracts.db"
    path.write_bytes(b"not a database at all" * 200)
    with pytest.raises(ConfigError, match="restore it, or remove it"):
        Store(path)


def test_a_damaged_page_is_found_before_it_is_needed(tmp_path: Path) -> None:
    path = tmp_path / "contracts.db"
    store = Store(path)
    store.put(pool_of(1), "cam", "a", disagrees=True)
    store.close()
    with sqlite3.connect(path) as connection:
        (page_bytes,) = connection.execute("PRAGMA page_size").fetchone()
        (page,) = connection.execute("SELECT rootpage FROM sqlite_master WHERE name = 'audits_by_age'").fetchone()
    connection.close()
    with path.open("r+b") as file:
        file.seek((page - 1) * page_bytes)
        file.write(b"\xff" * page_bytes)
    with pytest.raises(ConfigError, match="restore it, or remove it"):
        Store(path)


def test_a_folder_that_may_not_be_written_costs_no_alarm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "contracts.db"
    store = Store(path)
    store.put(pool_of(1), "cam", "a", disagrees=True)
    store.close()
    connect = sqlite3.connect

    def read_only(path: Path, **options: Any) -> sqlite3.Connection:
        return connect(f"file:{path}?mode=ro", uri=True, **options)

    monkeypatch.setattr(sqlite3, "connect", read_only)
    with pytest.raises(ConfigError, match="let this user write it and the folder"):
        Store(path)


def test_a_state_that_no_audits_lead_to_begins_anew(tmp_path: Path) -> None:
    path = tmp_path / "contracts.db"
    store = Store(path)
    store.put(pool_of(1), "cam", "a", disagrees=True)
    store.put(pool_of(1, KEY._replace(threshold=0.5)), "cam", "b", disagrees=True)
    store.close()
    with sqlite3.connect(path) as connection:
        connection.execute(
            "UPDATE pools SET record = replace(record, '\"peak\":', '\"peak\":-') WHERE key LIKE '%0.5%'"
        )
    connection.close()
    store = Store(path)
    assert [pool.key for pool in store.pools()] == [KEY]
    store.close()


def test_a_full_disk_keeps_what_was_counted_whole(tmp_path: Path) -> None:
    store = Store(tmp_path / "contracts.db")
    store.put(pool_of(1), "cam", "first", disagrees=True)
    assert store._connection is not None
    (pages,) = store._connection.execute("PRAGMA page_count").fetchone()
    store._connection.execute(f"PRAGMA max_page_count = {pages + 2}")
    kept = 1
    with pytest.raises(CapacityError, match="Is the disk full"):
        for kept in range(1, 1000):
            store.put(pool_of(1), "cam", f"{kept:0>200}", disagrees=True)
    assert store.contributions(KEY)[0].audits == kept
    assert not store.counted("cam", f"{kept:0>200}")
    store._connection.execute(f"PRAGMA max_page_count = {pages + 100}")
    store.put(pool_of(1), "cam", f"{kept:0>200}", disagrees=True)
    assert store.contributions(KEY)[0].audits == kept + 1
    store.close()


def test_a_disk_that_refuses_says_so(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    store = Store(tmp_path / "file" / "contracts.db")
    with pytest.raises(CapacityError, match="cannot be opened"):
        store.put(pool_of(1), "cam", "a", disagrees=True)
    store.close()
    with pytest.raises(CapacityError, match="ending"):
        store.put(pool_of(1), "cam", "a", disagrees=True)
