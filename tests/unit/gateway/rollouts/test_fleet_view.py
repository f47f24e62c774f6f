"""A rollout reads only the documents of its fleet that have changed."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from msgspec.structs import replace
from sqlalchemy import Connection, event, insert, update
from support.databases import sqlite_store

from firstline_core.fleet.twin import DesiredModel, Reported, RunningModel
from firstline_gateway.fleet import devices
from firstline_gateway.identity import enrolment
from firstline_gateway.identity.tables import DEVICES as ENROLLED
from firstline_gateway.rollouts.device_progress import DeviceView
from firstline_gateway.rollouts.fleet_view import FleetCache
from firstline_gateway.rollouts.rollout import Definition
from firstline_gateway.store.database import Database
from firstline_gateway.tables import open_database

NOW_S = 1.7e9
DEFINITION = Definition("cameras", 2, "2" * 64)


@pytest.fixture
def database(tmp_path: Path) -> Iterator[Database]:
    opened = open_database(sqlite_store(tmp_path))
    yield opened
    opened.close()


def report(connection: Connection, name: str, version: int, sequence: int, *, session: str = "s") -> None:
    reported = Reported(session, sequence, 0, (RunningModel("cameras", version),))
    devices.report(connection, name, reported, NOW_S, accept=True)


def desire(connection: Connection, name: str, version: int) -> None:
    desired = DesiredModel("cameras", version, "2" * 64, "r")
    devices.desire(connection, [name], lambda _, old: replace(old, models=(desired,)))


def read(cache: FleetCache, database: Database) -> dict[str, DeviceView]:
    """Returns the cached fleet, which must equal what a new cache reads."""
    with database.reading() as connection:
        fleet = cache.devices(connection, NOW_S + 10)
        assert fleet == FleetCache(DEFINITION).devices(connection, NOW_S + 10)
    return fleet


def test_reports_and_desired_states_are_followed(database: Database) -> None:
    cache = FleetCache(DEFINITION)
    with database.begin() as connection:
        report(connection, "a", 1, 1)
        report(connection, "b", 1, 1)
    assert {each.version for each in read(cache, database).values()} == {1}
    with database.begin() as connection:
        report(connection, "a", 2, 2)
        desire(connection, "b", 2)
        devices.tag(connection, "b", {"site": "berlin"})
    fleet = read(cache, database)
    assert (fleet["a"].version, fleet["b"].up_to_date, fleet["b"].tags) == (2, False, {"site": "berlin"})
    with database.begin() as connection:
        report(connection, "a", 3, 0, session="another")
        devices.mark_offline(connection, "b", "s")
    fleet = read(cache, database)
    assert (fleet["a"].version, fleet["b"].online) == (3, False)


def test_a_device_that_was_decommissioned_and_accepted_again_is_read_again(database: Database) -> None:
    cache = FleetCache(DEFINITION)
    with database.begin() as connection:
        report(connection, "a", 1, 1)
        desire(connection, "a", 2)
    read(cache, database)
    with database.begin() as connection:
        devices.forget(connection, "a")
        devices.accept(connection, "a", NOW_S + 5)
        devices.report(connection, "a", Reported("s", 1, 1, (RunningModel("cameras", 7),)), NOW_S + 5, accept=True)
        desired = DesiredModel("cameras", 9, "9" * 64, "another")
        devices.desire(connection, ["a"], lambda _, old: replace(old, models=(desired,)))
    assert read(cache, database)["a"].version == 7
    with database.begin() as connection:
        devices.forget(connection, "a")
    assert read(cache, database) == {}


def test_only_changed_documents_are_read(database: Database) -> None:
    cache, queries = FleetCache(DEFINITION), list[tuple[str, object]]()
    with database.begin() as connection:
        for number in range(20):
            report(connection, f"d{number}", 1, 1)
    read(cache, database)
    with database.begin() as connection:
        report(connection, "d7", 2, 2)
        for number in range(20):  # a heartbeat of each
            devices.mark_seen(connection, f"d{number}", "s", NOW_S + 5, accept=True)
    with database.reading() as connection:
        event.listen(connection, "before_cursor_execute", lambda *call: queries.append((call[2], call[3])))
        fleet = cache.devices(connection, NOW_S + 10)
    assert fleet["d7"].version == 2 and {each.age_s for each in fleet.values()} == {5.0}
    assert [parameters for statement, parameters in queries if "reported" in statement] == [("d7",)]


def test_revoked_devices_are_left_out_until_they_enrol_again(database: Database) -> None:
    cache = FleetCache(DEFINITION)
    with database.begin() as connection:
        for name in ("a", "b"):
            report(connection, name, 1, 1)
            connection.execute(insert(ENROLLED).values(name=name, enrolled_s=NOW_S, changed=1))
        enrolment.revoke(connection, "a", "ops", NOW_S)
    assert read(cache, database).keys() == {"b"}
    with database.begin() as connection:
        connection.execute(update(ENROLLED).values(revoked_s=None))
    assert read(cache, database).keys() == {"a", "b"}
