"""Totals are correct with lost, repeated and late reports."""

from collections.abc import Iterator
from itertools import count
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.databases import sqlite_store

from firstline_core.fleet.telemetry import ModelCounts, Telemetry
from firstline_gateway.fleet import totals as fleet_totals
from firstline_gateway.store.database import Database
from firstline_gateway.tables import open_database

DEVICES = count()
STEPS = st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5), st.booleans()), min_size=1, max_size=12)
"""Rows of either version, and whether the process then ends without a word."""


def reports_of(steps: list[tuple[int, int, bool]]) -> tuple[list[Telemetry], dict[int, int]]:
    """What a device tells, and what it counted in all by version."""
    reports, totals, session, sequence, unclean = [], {1: 0, 2: 0}, 0, 0, 0
    rows = {1: 0, 2: 0}
    for one, two, crashes in steps:
        rows = {1: rows[1] + one, 2: rows[2] + two}
        totals = {1: totals[1] + one, 2: totals[2] + two}
        sequence += 1
        models = tuple(
            ModelCounts("m", version, rows=count, kept=count, latency=(count, 0)) for version, count in rows.items()
        )
        reports.append(Telemetry(f"s{session}", sequence, 10.0 * sequence, models, unclean=unclean))
        if crashes:
            rows, sequence, session, unclean = {1: 0, 2: 0}, 0, session + 1, unclean + 1
    return reports, totals


@pytest.fixture(scope="module")
def database(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Database]:
    found = open_database(sqlite_store(tmp_path_factory.mktemp("fleet")))
    yield found
    found.close()


@given(STEPS, st.data())
def test_totals_survive_restarts_repeats_and_losses(
    database: Database, steps: list[tuple[int, int, bool]], data: st.DataObject
) -> None:
    reports, rows = reports_of(steps)
    last_of_session = {report.session: index for index, report in enumerate(reports)}
    device = f"cam-{next(DEVICES)}"
    with database.begin() as connection:
        for index, report in enumerate(reports):
            needed = last_of_session[report.session] == index
            for _ in range(data.draw(st.integers(1 if needed else 0, 2))):
                fleet_totals.count(connection, device, report, 1e9, service_s=0)
        found = fleet_totals.totals_of(connection, [device, "nobody"])
    assert set(found) == {device}
    totals = found[device]
    assert {model.version: model.rows for model in totals.models} == rows
    assert fleet_totals.gained("m", fleet_totals.Totals(), totals).rows == sum(rows.values())
    assert fleet_totals.gained("m", fleet_totals.Totals(), totals).latency == (sum(rows.values()), 0)
    assert totals.unclean == reports[-1].unclean


def test_a_late_report_changes_nothing(tmp_path: Path) -> None:
    database = open_database(sqlite_store(tmp_path))
    with database.begin() as connection:
        assert fleet_totals.count(connection, "cam", Telemetry("s", 2, 20.0), 1e9, service_s=0) is not None
        assert fleet_totals.count(connection, "cam", Telemetry("s", 1, 10.0), 1e9, service_s=0) is None
        assert fleet_totals.totals_of(connection, ["cam"])["cam"].service_s == 20.0
    database.close()


def test_totals_are_stored_by_the_hour_and_deleted_later(tmp_path: Path) -> None:
    database = open_database(sqlite_store(tmp_path))
    start_s = 3600.0 * 480_000
    with database.begin() as connection:
        for hour in range(fleet_totals.KEPT_HOURS + 10):
            report = Telemetry("s", hour, 3600.0 * (hour + 1))
            fleet_totals.count(connection, "cam", report, start_s + 3600.0 * hour + 60, service_s=3600.0 * hour + 60)
        found = fleet_totals.totals_before(connection, ["cam"], start_s + 3600.0 * 20)
        assert found["cam"].service_s == 3600.0 * 20
        now_s = start_s + 3600.0 * (fleet_totals.KEPT_HOURS + 9)
        fleet_totals.forget(connection, now_s - start_s)
        assert fleet_totals.totals_before(connection, ["cam"], start_s + 3600.0 * 5) == {}
        assert fleet_totals.totals_before(connection, ["cam"], now_s) != {}
    database.close()
