"""The state of all devices at one moment: the fields that are read of each, and the sums that the API shows."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from heapq import nlargest
from typing import NamedTuple

from msgspec import Struct
from sqlalchemy import Connection, func, select, type_coerce

from firstline_core.fleet.rest import (
    EXPIRES_SOON_S,
    LISTED,
    ExpiringCertificate,
    FleetOverview,
    Outbox,
    Presence,
    presence,
)
from firstline_core.fleet.selector import Selector
from firstline_core.fleet.telemetry import DeviceHealth
from firstline_gateway.fleet.devices import DEVICES
from firstline_gateway.fleet.totals import COUNTS
from firstline_gateway.identity.enrolment import revoked_devices
from firstline_gateway.identity.tables import CERTIFICATES
from firstline_gateway.store.schema import JsonColumn

_VALUES = 100  # of the tag; further values are counted together, under "..."
_OTHERS = "..."
_D, _C = DEVICES.c, COUNTS.c


class _Reported(Struct):
    """The part of `Reported` that is counted."""

    agent_version: str = ""


class Readings(Struct):
    """The part of `Telemetry` that is counted."""

    outbox_items: int = 0
    health: DeviceHealth = DeviceHealth()


class DeviceSummary(NamedTuple):
    """A device as sums see it; `readings`, of which `age_s` (seconds) is the age, are None without telemetry."""

    name: str
    tags: Mapping[str, str]
    accepted: bool
    presence: Presence
    agent_version: str
    readings: Readings | None
    age_s: float


def summaries(connection: Connection, now_s: float) -> Iterator[DeviceSummary]:
    """Yields all devices at a wall time."""
    revoked = revoked_devices(connection)
    query = select(
        _D.name,
        _D.tags,
        _D.accepted_s,
        _D.online,
        _D.last_seen_s,
        type_coerce(_D.reported, JsonColumn(_Reported)).label("reported"),
        type_coerce(_C.latest, JsonColumn(Readings)).label("readings"),
        _C.at_s,
    ).outerjoin(COUNTS, _C.device == _D.name)
    for row in connection.execute(query):
        age_s = None if row.last_seen_s is None else max(0.0, now_s - row.last_seen_s)
        found = presence(age_s, online=row.online, revoked=row.name in revoked)
        version = row.reported.agent_version if row.reported is not None else ""
        reported_age_s = max(0.0, now_s - (row.at_s or 0.0))
        yield DeviceSummary(
            row.name, row.tags, row.accepted_s is not None, found, version, row.readings, reported_age_s
        )


def overview(connection: Connection, tag: str, selector: Selector, now_s: float) -> FleetOverview:
    """Returns the state of the fleet.

    Args:
        connection: within a transaction.
        tag: by whose values devices are counted.
        selector: of the devices that count.
        now_s: wall time.
    """
    presences, versions = Counter[Presence](), Counter[str]()
    by_tag: defaultdict[str, Counter[Presence]] = defaultdict(Counter)
    found = [one for one in summaries(connection, now_s) if selector.matches(one.tags)]
    accepted = [one for one in found if one.accepted]
    for one in accepted:
        presences[one.presence] += 1
        value = one.tags.get(tag, "")
        by_tag[value if value in by_tag or len(by_tag) < _VALUES else _OTHERS][one.presence] += 1
        if one.presence is not Presence.REVOKED:
            versions[one.agent_version] += 1
    names = {one.name for one in found}
    ages_s = [one.age_s for one in accepted if one.readings is not None and one.presence is not Presence.REVOKED]
    outboxes = (
        Outbox(one.name, one.readings.outbox_items, one.readings.health.outbox_oldest_s, one.age_s)
        for one in found
        if one.readings is not None and one.readings.outbox_items
    )
    expiring = [one for one in _expiring(connection, now_s) if one.device in names]
    return FleetOverview(
        at_s=now_s,
        devices=dict(presences),
        unaccepted=len(found) - len(accepted),
        tag=tag,
        by_tag={value: dict(counts) for value, counts in sorted(by_tag.items())},
        agent_versions=dict(versions),
        outboxes=tuple(nlargest(LISTED, outboxes, key=lambda one: (one.oldest_s, one.items))),
        expiring=tuple(expiring[:LISTED]),
        expiring_count=len(expiring),
        reported_s=(min(ages_s), max(ages_s)) if ages_s else None,
    )


def _expiring(connection: Connection, now_s: float) -> list[ExpiringCertificate]:
    """Returns the devices with access whose last certificate ends soon, the first to end first."""
    ends_s = func.max(CERTIFICATES.c.not_after_s)
    query = (
        select(CERTIFICATES.c.device, ends_s)
        .where(CERTIFICATES.c.revoked_s.is_(None))
        .group_by(CERTIFICATES.c.device)
        .having(ends_s < now_s + EXPIRES_SOON_S)
        .order_by(ends_s, CERTIFICATES.c.device)
    )
    return [ExpiringCertificate(*row) for row in connection.execute(query)]
