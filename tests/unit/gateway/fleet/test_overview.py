"""The state of the fleet at one moment."""

from __future__ import annotations

from sqlalchemy import insert

from firstline_core.fleet.rest import ExpiringCertificate, Outbox, Presence
from firstline_core.fleet.selector import parse_selector
from firstline_core.fleet.telemetry import DeviceHealth, Telemetry
from firstline_core.fleet.twin import Reported
from firstline_core.units import DAY_S
from firstline_gateway.fleet import devices, totals
from firstline_gateway.fleet.overview import overview
from firstline_gateway.identity.tables import CERTIFICATES, DEVICES
from firstline_gateway.store.database import Database

NOW_S = 1.7e9


def enrol(database: Database, name: str, *ends_s: float, revoked_s: float | None = None) -> None:
    with database.begin() as connection:
        connection.execute(insert(DEVICES).values(name=name, enrolled_s=0.0, revoked_s=revoked_s, changed=1))
        for number, end_s in enumerate(ends_s):
            connection.execute(
                insert(CERTIFICATES).values(
                    serial=f"{name}-{number}",
                    device=name,
                    issued_s=0.0,
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
            connection, "b", Telemetry("s", 1, outbox_items=7, health=DeviceHealth(outbox_oldest_s=90.0)), NOW_S - 5
        )
        totals.count(connection, "c", Telemetry("s", 1, outbox_items=9), NOW_S)
        totals.count(connection, "a", Telemetry("s", 1), NOW_S - 100)
    enrol(database, "a", NOW_S + DAY_S)
    enrol(database, "b", NOW_S + DAY_S, NOW_S + 80 * DAY_S)  # renewed
    enrol(database, "c", NOW_S + DAY_S, revoked_s=NOW_S)
    with database.reading() as connection:
        fleet = overview(connection, "site", parse_selector(""), NOW_S)
        part = overview(connection, "site", parse_selector("site=kiel"), NOW_S)
    assert fleet.devices == {Presence.ONLINE: 1, Presence.LATE: 1, Presence.REVOKED: 1} and fleet.unaccepted == 1
    assert fleet.by_tag == {
        "": {Presence.REVOKED: 1},
        "kiel": {Presence.ONLINE: 1, Presence.LATE: 1},
    }
    assert fleet.agent_versions == {"1.1": 1, "1.2": 1}
    assert fleet.outboxes == (Outbox("b", 7, 90.0, 5.0), Outbox("c", 9, 0.0, 0.0))
    assert fleet.reported_s == part.reported_s == (5.0, 100.0)  # c has no access
    assert fleet.expiring == (ExpiringCertificate("a", NOW_S + DAY_S),) and fleet.expiring_count == 1
    assert part.devices == {Presence.ONLINE: 1, Presence.LATE: 1} and part.outboxes == (Outbox("b", 7, 90.0, 5.0),)
