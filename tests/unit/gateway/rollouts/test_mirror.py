"""What a rollout reads anew of its fleet: whatever was said since, and nothing else."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from msgspec.structs import replace
from sqlalchemy import Connection, event
from support.databases import sqlite_store

from firstline_core.fleet.twin import Desired, DesiredModel, Reported, RunningModel
from firstline_gateway.fleet import devices
from firstline_gateway.rollouts import records
from firstline_gateway.rollouts.definition import Assignment, Definition, DeviceState
from firstline_gateway.rollouts.device_progress import Seen
from firstline_gateway.rollouts.mirror import Mirror
from firstline_gateway.store.database import Database, open_database

NOW_S = 1.7e9
DEFINITION = Definition("cameras", 2, "2" * 64)


@pytest.fixture
def database(tmp_path: Path) -> Iterator[Database]:
    opened = open_database(sqlite_store(tmp_path))
    yield opened
    opened.close()


def report(connection: Connection, name: str, version: int, sequence: int, *, session: str = "s") -> None:
    said = Reported(session, sequence, 0, (RunningModel("cameras", version),))
    devices.report(connection, name, said, NOW_S, accept=True)


def desire(connection: Connection, name: str, version: int) -> None:
    word = DesiredModel("cameras", version, "2" * 64, "r")
    devices.desire(connection, [name], lambda _, said: replace(said, models=(word,)), NOW_S)


def seen(mirror: Mirror, database: Database) -> dict[str, Seen]:
    """What the mirror shows, which has to be what one shows that has read nothing before."""
    with database.reading() as connection:
        found = mirror.devices(connection, NOW_S + 10)
        assert found == Mirror(DEFINITION).devices(connection, NOW_S + 10)
    return found


def test_it_follows_whatever_a_device_says_and_is_told(database: Database) -> None:
    mirror = Mirror(DEFINITION)
    with database.begin() as connection:
        report(connection, "a", 1, 1)
        report(connection, "b", 1, 1)
    assert {each.version for each in seen(mirror, database).values()} == {1}
    with database.begin() as connection:
        report(connection, "a", 2, 2)
        desire(connection, "b", 2)
        devices.tag(connection, "b", {"site": "berlin"})
    found = seen(mirror, database)
    assert (found["a"].version, found["b"].heard, found["b"].tags) == (2, False, {"site": "berlin"})
    with database.begin() as connection:
        report(connection, "a", 3, 0, session="another")
        devices.left(connection, "b", "s")
    found = seen(mirror, database)
    assert (found["a"].version, found["b"].online) == (3, False)


def test_a_device_that_was_sent_away_and_let_in_again_is_another_one(database: Database) -> None:
    mirror = Mirror(DEFINITION)
    with database.begin() as connection:
        report(connection, "a", 1, 1)
        desire(connection, "a", 2)
    seen(mirror, database)
    with database.begin() as connection:
        devices.forget(connection, "a")
        devices.desire(connection, ["a"], lambda _, said: Desired(0, ()), NOW_S + 5)
        devices.report(connection, "a", Reported("s", 1, 1, (RunningModel("cameras", 7),)), NOW_S + 5, accept=True)
        word = DesiredModel("cameras", 9, "9" * 64, "another")
        devices.desire(connection, ["a"], lambda _, said: replace(said, models=(word,)), NOW_S + 5)
    assert seen(mirror, database)["a"].version == 7
    with database.begin() as connection:
        devices.forget(connection, "a")
    assert seen(mirror, database) == {}


def test_documents_are_read_of_those_alone_that_have_another_one(database: Database) -> None:
    mirror, asked = Mirror(DEFINITION), list[tuple[str, object]]()
    with database.begin() as connection:
        for number in range(20):
            report(connection, f"d{number}", 1, 1)
    seen(mirror, database)
    with database.begin() as connection:
        report(connection, "d7", 2, 2)
        for number in range(20):  # a heartbeat of each
            devices.seen(connection, f"d{number}", "s", NOW_S + 5, accept=True)
    with database.reading() as connection:
        event.listen(connection, "before_cursor_execute", lambda *said: asked.append((said[2], said[3])))
        found = mirror.devices(connection, NOW_S + 10)
    assert found["d7"].version == 2 and {each.age_s for each in found.values()} == {5.0}
    assert [parameters for statement, parameters in asked if "reported" in statement] == [("d7",)]


def test_assignments_are_those_in_the_store(database: Database) -> None:
    mirror = Mirror(DEFINITION)
    one = Assignment("a", 0, True, True, 0, DeviceState.WAITING)
    with database.begin() as connection:
        records.assign(connection, "r", [one, replace(one, device="b")])
        records.assign(connection, "another", [replace(one, device="c")])
    with database.reading() as connection:
        before = mirror.assignments(connection, "r")
        assert before == records.assignments(connection, "r")
    with database.begin() as connection:
        records.assign(connection, "r", [replace(one, state=DeviceState.DONE)])
    with database.reading() as connection:
        after = mirror.assignments(connection, "r")
    assert after["a"].state is DeviceState.DONE and after["b"] is before["b"]
