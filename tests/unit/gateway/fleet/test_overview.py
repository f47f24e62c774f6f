"""The state of the fleet at one moment."""

from itertools import product

from sqlalchemy import insert, text

from firstline_core.fleet.rest import (
    ASLEEP_AFTER_S,
    LATE_AFTER_S,
    LISTED,
    ExpiringCertificate,
    Outbox,
    Presence,
    presence,
)
from firstline_core.fleet.selector import parse_selector
from firstline_core.fleet.telemetry import DeviceHealth, Telemetry
from firstline_core.fleet.twin import Reported
from firstline_core.units import DAY_S
from firstline_gateway.fleet import devices, totals
from firstline_gateway.fleet.overview import overview
from firstline_gateway.identity.tables import API_KEYS, CERTIFICATES, DEVICES
from firstline_gateway.store.database import Database

NOW_S = 1.7e9


def enrol(database: Database, name: str, *ends_s: float, issued_s: float = 0.0, revoked_s: float | None = None) -> None:
    with database.begin() as connection:
        connection.execute(insert(DEVICES).values(name=name, enrolled_s=0.0, revoked_s=revoked_s, changed=1))
        for number, end_s in enumerate(ends_s):
            connection.execute(
                insert(CERTIFICATES).values(
                    serial=f"{name}-{number}",
                    device=name,
                    issued_s=issued_s,
                    not_after_s=end_s,
                    revoked_s=revoked_s,
                    changed=1,
                    retained_until_service_s=0.0,
                )
            )


def test_devices_are_counted_by_presence_and_tag(database: Database) -> None:
    with database.begin() as connection:
        assert overview(connection, "site", parse_selector(""), NOW_S).reported_s is None
        for number, name in enumerate(("a", "b", "c", "d")):
            report = Reported("s", 1, agent_version="1.2" if number else "1.1")
            devices.report(connection, name, report, NOW_S - 1000 * number, accept=name != "d")
            devices.tag(connection, name, {"site": "kiel"} if name in "ab" else {})
        totals.count(
            connection,
            "b",
            Telemetry("s", 1, outbox_items=7, health=DeviceHealth(outbox_oldest_s=90.0)),
            NOW_S - 5,
            service_s=0,
        )
        totals.count(connection, "c", Telemetry("s", 1, outbox_items=9), NOW_S, service_s=0)
        totals.count(connection, "a", Telemetry("s", 1), NOW_S - 100, service_s=0)
    enrol(database, "a", NOW_S + DAY_S)
    enrol(database, "b", NOW_S + DAY_S, NOW_S + 80 * DAY_S)  # renewed
    enrol(database, "c", NOW_S + DAY_S, revoked_s=NOW_S)
    with database.reading() as connection:
        fleet = overview(connection, "site", parse_selector(""), NOW_S)
        part = overview(connection, "site", parse_selector("site=kiel"), NOW_S)
    assert fleet.devices == {Presence.ONLINE: 1, Presence.LATE: 1, Presence.REVOKED: 1} and fleet.unaccepted == 1
    assert fleet.by_tag == {"": {Presence.REVOKED: 1}, "kiel": {Presence.ONLINE: 1, Presence.LATE: 1}}
    assert fleet.agent_versions == {"1.1": 1, "1.2": 1}
    assert fleet.outboxes == (Outbox("b", 7, 90.0, 5.0), Outbox("c", 9, 0.0, 0.0))
    assert fleet.reported_s == part.reported_s == (5.0, 100.0)  # c has no access
    assert fleet.expiring == (ExpiringCertificate("a", NOW_S + DAY_S),) and fleet.expiring_count == 1
    assert part.devices == {Presence.ONLINE: 1, Presence.LATE: 1} and part.outboxes == (Outbox("b", 7, 90.0, 5.0),)


def test_the_database_finds_the_presence_that_a_device_shows(database: Database) -> None:
    shown: dict[str, Presence] = {}
    ages_s = (None, -1.0, 0.0, LATE_AFTER_S, LATE_AFTER_S + 0.01, ASLEEP_AFTER_S, ASLEEP_AFTER_S + 0.01)
    for number, (age_s, online, revoked) in enumerate(product(ages_s, (False, True), (False, True))):
        name = f"d{number}"
        with database.begin() as connection:
            devices.accept(connection, name, NOW_S)
            devices.tag(connection, name, {"name": name})
            if age_s is not None:
                devices.mark_seen(connection, name, "s", NOW_S - age_s, accept=True)
                if not online:
                    devices.mark_offline(connection, name, "s")
        if revoked:
            enrol(database, name, revoked_s=NOW_S)
        shown[name] = presence(age_s, online=online, revoked=revoked)
    with database.reading() as connection:
        found = overview(connection, "name", parse_selector(""), NOW_S).by_tag
    assert found == {name: {each: 1} for name, each in shown.items()}
    assert set(shown.values()) == set(Presence)


def test_device_with_a_revoked_key_stays_revoked_until_readmitted(database: Database) -> None:
    def add_key(name: str, number: int, revoked_s: float | None, kind: str = "device") -> None:
        values = {"sha256": f"{name}{number}", "name": name, "kind": kind, "scopes": "", "created_s": 0.0, "person": ""}
        with database.begin() as connection:
            connection.execute(insert(API_KEYS).values(**values, revoked_s=revoked_s, changed=1))

    for name in ("lost", "another-key", "enrolled", "application"):
        with database.begin() as connection:
            devices.accept(connection, name, NOW_S)
            devices.tag(connection, name, {"name": name})
        add_key(name, 1, NOW_S, "application" if name == "application" else "device")
    add_key("another-key", 2, None)
    enrol(database, "enrolled")
    with database.reading() as connection:
        found = overview(connection, "name", parse_selector(""), NOW_S)
    assert found.devices == {Presence.REVOKED: 1, Presence.ASLEEP: 3}
    assert found.by_tag["lost"] == {Presence.REVOKED: 1}


def test_young_certificate_of_a_short_life_is_not_overdue(database: Database) -> None:
    with database.begin() as connection:
        for name in ("young", "overdue"):
            devices.accept(connection, name, NOW_S)
    enrol(database, "young", NOW_S + 6 * DAY_S, issued_s=NOW_S - DAY_S)
    enrol(database, "overdue", NOW_S + DAY_S, issued_s=NOW_S - 6 * DAY_S)
    with database.reading() as connection:
        found = overview(connection, "name", parse_selector(""), NOW_S)
    assert [one.device for one in found.expiring] == ["overdue"] and found.expiring_count == 1


def test_values_of_the_tag_beyond_a_hundred_are_counted_together(database: Database) -> None:
    with database.begin() as connection:
        for number in range(103):
            devices.accept(connection, f"d{number}", NOW_S)
            devices.tag(connection, f"d{number}", {"site": f"s{number:03}"})
    with database.reading() as connection:
        found = overview(connection, "site", parse_selector(""), NOW_S).by_tag
    assert len(found) == 101 and found["..."] == {Presence.ASLEEP: 3} and "s099" in found and "s100" not in found


def test_only_the_oldest_outboxes_are_listed_and_their_cursor_is_closed(database: Database) -> None:
    """A cursor that stays open is a warning, and warnings fail tests."""
    with database.begin() as connection:
        for number in range(LISTED + 1):
            name, health = f"d{number:02}", DeviceHealth(outbox_oldest_s=float(number))
            devices.report(connection, name, Reported("s", 1), NOW_S, accept=True)
            totals.count(connection, name, Telemetry("s", 1, outbox_items=1, health=health), NOW_S, service_s=0)
    with database.reading() as connection:
        found = overview(connection, "site", parse_selector(""), NOW_S).outboxes
    assert [one.device for one in found] == [f"d{number:02}" for number in range(LISTED, 0, -1)]


def test_sums_are_read_without_the_documents_of_devices(database: Database) -> None:
    """A fleet of 100,000 devices has hundreds of megabytes of them."""
    with database.begin() as connection:
        devices.report(connection, "a", Reported("s", 1, agent_version="1.2"), NOW_S, accept=True)
        totals.count(connection, "a", Telemetry("s", 1, outbox_items=7), NOW_S, service_s=0)
        connection.execute(text("UPDATE fleet_devices SET reported = '{', desired = '{'"))
        connection.execute(text("UPDATE fleet_counts SET latest = '{', totals = '{'"))
    with database.reading() as connection:
        found = overview(connection, "site", parse_selector(""), NOW_S)
    assert found.agent_versions == {"1.2": 1} and found.outboxes == (Outbox("a", 7, 0.0, 0.0),)
