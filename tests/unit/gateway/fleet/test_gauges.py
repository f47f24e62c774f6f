"""Metrics of all devices together: presence, problems and extremes, with a bounded number of series."""

import pytest
from sqlalchemy import event

from firstline_core.clock import SimulatedClock
from firstline_core.fleet.rest import ASLEEP_AFTER_S, LATE_AFTER_S
from firstline_core.fleet.telemetry import DeviceHealth, ModelCounts, Telemetry
from firstline_core.fleet.twin import Reported
from firstline_core.telemetry.metrics import RequestMetrics
from firstline_core.units import DAY_S
from firstline_gateway.fleet import devices, gauges, totals
from firstline_gateway.fleet.fleet import Fleet
from firstline_gateway.fleet.gauges import FleetGauges, FleetState, fleet_state
from firstline_gateway.identity import enrolment
from firstline_gateway.settings import settings
from firstline_gateway.store.database import Database
from firstline_gateway.store.service_clock import ServiceClock
from firstline_gateway.store.store import Store

NOW_S = 1.7e9


def add(
    database: Database, name: str, *, age_s: float = 0.0, site: str = "", health: DeviceHealth | None = None
) -> None:
    """A device that reported this long ago."""
    with database.begin() as connection:
        at_s = NOW_S - age_s
        devices.report(connection, name, Reported("s", 1, agent_version="1.2"), at_s, accept=True)
        if site:
            devices.tag(connection, name, {"site": site})
        if health is not None:
            totals.count(connection, name, Telemetry("s", 2, outbox_items=2, health=health), at_s, service_s=0)


def state_of(database: Database, tag: str = "") -> FleetState:
    with database.reading() as connection:
        return fleet_state(connection, NOW_S, tag=tag, expiring_s=15 * DAY_S)


def test_devices_are_counted_by_presence_and_tag(database: Database) -> None:
    add(database, "a", site="berlin")
    add(database, "b", site="berlin", age_s=LATE_AFTER_S + 1)
    add(database, "c", site="paris", age_s=ASLEEP_AFTER_S + 1)
    add(database, "d")
    with database.begin() as connection:
        devices.mark_offline(connection, "a", "s")
        enrolment.invite(connection, [("d", "0" * 64)], by="ops", now_s=NOW_S, expires_s=NOW_S + 60)
        issue = enrolment.Issued("1", "pem", NOW_S + DAY_S)
        enrolment.redeem(connection, "0" * 64, "key", lambda _: issue, NOW_S, address="")
        enrolment.revoke(connection, "d", "ops", NOW_S)
        devices.report(connection, "e", Reported("s", 1), NOW_S, accept=False)  # it waits to be accepted
    found = state_of(database, "site")
    counts = {labels: count for labels, count in found.devices.items() if count}
    assert counts == {("late", "berlin"): 2, ("asleep", "paris"): 1, ("revoked", "untagged"): 1}
    assert found.devices["online", "berlin"] == 0  # a series that exists before its first device
    assert found.agents == {"1.2": 3}
    assert state_of(database).devices["late", "all"] == 2


def test_problems_and_extremes_are_those_of_devices_in_service(database: Database) -> None:
    healthy = DeviceHealth(disk_free_share=0.5, hottest_c=40.0, certificate_ends_s=NOW_S + 60 * DAY_S)
    ill = DeviceHealth(
        outbox_oldest_s=7200.0,
        links_down=1,
        disk_free_share=0.01,
        hottest_c=91.0,
        throttled=True,
        certificate_ends_s=NOW_S + DAY_S,
    )
    add(database, "well", health=healthy)
    add(database, "silent", health=None)
    add(database, "asleep", age_s=ASLEEP_AFTER_S + 1, health=ill)
    found = state_of(database)
    assert not any(found.problems.values()) and set(found.problems) == {"certificate", "disk", "heat", "link"}
    assert found.extremes["disk_free_ratio"] == 0.5 and found.extremes["outbox_oldest_seconds"] == 0
    add(database, "ill", health=ill)
    found = state_of(database)
    assert found.problems == {"certificate": 1, "disk": 1, "heat": 1, "link": 1}
    assert found.extremes == {
        "outbox_oldest_seconds": 7200.0,
        "outbox_items": 4.0,
        "disk_free_ratio": 0.01,
        "temperature_celsius": 91.0,
        "certificate_seconds": DAY_S,
    }


def test_a_device_that_is_silent_for_days_still_counts_with_its_problems(database: Database) -> None:
    expired = DeviceHealth(certificate_ends_s=NOW_S - 2 * DAY_S)
    add(database, "cam", age_s=3 * DAY_S, health=expired)
    found = state_of(database)
    assert found.devices["late", "all"] == 1 and found.problems["certificate"] == 1
    assert found.extremes["certificate_seconds"] == -2 * DAY_S


def test_a_decommissioned_device_stops_counting_at_once(database: Database) -> None:
    add(database, "gone", age_s=LATE_AFTER_S + 1, health=DeviceHealth(links_down=1))
    assert state_of(database).devices["late", "all"] == state_of(database).problems["link"] == 1
    with database.begin() as connection:
        devices.forget(connection, "gone")
    found = state_of(database)
    assert found.devices["late", "all"] == found.problems["link"] == 0


def test_an_empty_fleet_has_series(database: Database) -> None:
    found = state_of(database)
    assert set(found.devices.values()) == {0} and len(found.devices) == 4
    assert found.extremes == {"outbox_oldest_seconds": 0, "outbox_items": 0}


def test_tag_values_are_bounded_and_read_with_one_statement(database: Database) -> None:
    for number in range(30):
        for device in range(2 if number < gauges.VALUES_LIMIT else 1):
            add(database, f"d-{number}-{device}", site=f"s{number}")
    statements: list[str] = []
    event.listen(database._engine, "before_cursor_execute", lambda *args: statements.append(args[2]))
    found = state_of(database, "site")
    groups = {group for _, group in found.devices}
    assert len(groups) == gauges.VALUES_LIMIT + 1 and found.devices["online", gauges.OTHER] == 10
    assert sum(found.devices.values()) == 50
    assert sum("fleet_devices" in each for each in statements) == 1 and len(statements) <= 8


@pytest.mark.parametrize("store_settings", ["sqlite"], indirect=True)
async def test_metrics_name_no_device_and_activity_only_grows(database: Database) -> None:
    store, metrics, clock = Store(database), RequestMetrics("gateway"), SimulatedClock(wall_start_s=NOW_S)
    service = ServiceClock(database, clock)
    fleet = Fleet(store, settings.FleetSection(), clock=clock, service=service, on_desired=lambda: None)
    gauges = FleetGauges(
        store, metrics, settings.FleetSection(), certificate_days=90, clock=clock, activity=fleet.activity
    )
    for sequence, rows in ((1, 4), (2, 6)):
        counts = ModelCounts("digits", 1, rows=rows, kept=rows, objects={"car": 2 * rows})
        await fleet.take_telemetry("camera-7", Telemetry("s", sequence, models=(counts,), payload_bytes=100 * rows))
    await gauges.refresh()
    text = metrics.render()[0].decode()
    store.close()
    assert 'firstline_gateway_fleet_devices{group="all",presence="online"} 1.0' in text
    assert 'firstline_gateway_fleet_answers_total{outcome="kept"} 6.0' in text
    assert "firstline_gateway_fleet_objects_total 12.0" in text
    assert "firstline_gateway_fleet_payload_bytes_total 600.0" in text
    assert "camera-7" not in text
