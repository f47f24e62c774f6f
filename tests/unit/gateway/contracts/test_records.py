"""What outlives the gateway's process of contracts."""

import pytest
from sqlalchemy import text
from support.pools import KEY, NOW_S, OTHER, pool_of

from firstline_core.types import ModelKey
from firstline_gateway.contracts import records
from firstline_gateway.contracts.pool import AuditPool
from firstline_gateway.store.database import Database

MODEL = ModelKey(KEY.bundle, KEY.version)


def put(
    database: Database, pool: AuditPool, device: str, request_id: str, *, disagrees: bool = True, at_s: float = 0.0
) -> bool:
    with database.begin() as connection:
        return records.add_audit(connection, device, request_id, [(pool, disagrees)], service_s=at_s)


def test_pools_are_read_back_exactly(database: Database) -> None:
    put(database, pool_of(3), "cam", "a")
    put(database, pool_of(4, alarmed_s=NOW_S), "yard", "b", disagrees=False)
    put(database, pool_of(1, OTHER), "cam", "c")
    with database.reading() as connection:
        pools = {pool.key: pool for pool in records.pools(connection)}
        assert pools == {KEY: pool_of(4, alarmed_s=NOW_S), OTHER: pool_of(1, OTHER)}
        shares = [(one.device, one.audits, one.disagreements) for one in records.contributions(connection, KEY)]
        assert shares == [("cam", 1, 1), ("yard", 1, 0)]
        assert records.devices(connection) == {KEY: 2, OTHER: 1}
        assert records.is_counted(connection, "cam", "a")
        assert not records.is_counted(connection, "yard", "a")


def test_a_pool_that_is_locked_may_be_new(database: Database) -> None:
    with database.begin() as connection:
        assert records.locked(connection, KEY) is None
        assert records.pools(connection) == []
        records.replace_pool(connection, pool_of(1))
        assert records.locked(connection, KEY) == pool_of(1)


def test_the_audits_of_an_hour_are_counted_and_those_of_yesterday_forgotten(database: Database) -> None:
    for hour, wall_s in ((0, NOW_S), (23, 0.0), (25, 3e9)):  # whatever the wall clock says
        put(database, pool_of(1, last_s=wall_s), "cam", f"at {hour}", at_s=hour * 3600)
    with database.reading() as connection:
        assert records.count_since(connection, "cam", 24 * 3600) == 1
        assert records.count_since(connection, "cam", 0.0) == 2
        counted = [records.is_counted(connection, "cam", f"at {hour}") for hour in (0, 23, 25)]
    assert counted == [False, True, True]


def test_the_evidence_is_kept_by_hour(database: Database) -> None:
    for count, hour in ((1, 0), (2, 0), (3, 1)):
        put(database, pool_of(count, last_s=3600.0 * hour + 60), "cam", f"{count}")
    with database.begin() as connection:
        assert [(one.at_s, one.audits) for one in records.evidence(connection, KEY)] == [(0.0, 2), (3600.0, 3)]
        records.replace_pool(connection, pool_of(4, last_s=3600.0 * 24 * 60 + 3600))
        assert [one.audits for one in records.evidence(connection, KEY)] == [3, 4]
        assert records.delete_pools(connection, MODEL) == 1
        assert records.evidence(connection, KEY) == []


def test_deleting_a_pool_deletes_its_contributions(database: Database) -> None:
    put(database, pool_of(1), "cam", "a")
    with database.begin() as connection:
        assert records.delete_pools(connection, MODEL) == 1
        assert records.pools(connection) == []
        assert records.devices(connection) == {}
    put(database, pool_of(1), "cam", "b")
    with database.reading() as connection:
        assert records.devices(connection) == {KEY: 1}


def test_the_same_audit_twice_changes_nothing(database: Database) -> None:
    assert put(database, pool_of(1), "cam", "a")
    assert not put(database, pool_of(2), "cam", "a")
    with database.reading() as connection:
        assert records.pools(connection) == [pool_of(1)]
        assert records.contributions(connection, KEY)[0].audits == 1


@pytest.mark.parametrize("version", [1, 31])
def test_pools_of_other_versions_are_not_deleted(database: Database, version: int) -> None:
    other = KEY._replace(version=version)
    put(database, pool_of(1), "cam", "a")
    put(database, pool_of(1, other), "cam", "b")
    with database.begin() as connection:
        assert records.delete_pools(connection, MODEL) == 1
        assert records.pools(connection) == [pool_of(1, other)]
        assert records.delete_pools(connection, MODEL) == 0


@pytest.mark.parametrize(
    "damaged",
    ["replace(record, '\"peak\"', '\"peek\"')", "replace(record, '\"peak\":', '\"peak\":-')", "substr(record, 1, 99)"],
)
def test_pool_with_a_damaged_state_starts_again(database: Database, damaged: str) -> None:
    put(database, pool_of(9), "cam", "a")
    put(database, pool_of(9, OTHER), "cam", "b")
    with database.begin() as connection:
        connection.execute(text(f"UPDATE contract_pools SET record = {damaged} WHERE key LIKE '%0.5%'"))
    with database.begin() as connection:
        assert [pool.key for pool in records.pools(connection)] == [KEY]
        assert records.alarmed(connection, MODEL) is None
        assert records.locked(connection, OTHER) is None
        assert records.delete_pools(connection, MODEL) == 2
        assert records.devices(connection) == {}


def test_contributions_to_a_damaged_key_do_not_hide_those_to_others(database: Database) -> None:
    put(database, pool_of(9), "cam", "a")
    put(database, pool_of(9, OTHER), "cam", "b")
    with database.begin() as connection:
        connection.execute(text("UPDATE contract_contributions SET pool = substr(pool, 2) WHERE pool LIKE '%0.5%'"))
        assert records.devices(connection) == {KEY: 1}
