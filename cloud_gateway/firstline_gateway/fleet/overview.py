"""The state of the fleet at one moment, added up over its devices."""

from __future__ import annotations

from collections import Counter, defaultdict
from heapq import nlargest

from sqlalchemy import Connection, func, select

from firstline_core.fleet.rest import EXPIRES_SOON_S, LISTED, ExpiringCertificate, FleetOverview, Outbox, Presence
from firstline_core.fleet.selector import Selector
from firstline_gateway.fleet import devices
from firstline_gateway.fleet.totals import COUNTS
from firstline_gateway.identity.enrolment import revoked_devices
from firstline_gateway.identity.tables import CERTIFICATES

_VALUES = 100  # of the tag; further values are counted together, under "..."
_OTHERS = "..."


def overview(connection: Connection, tag: str, selector: Selector, now_s: float) -> FleetOverview:
    """Returns the state of the fleet.

    Args:
        connection: within a transaction.
        tag: by whose values devices are counted.
        selector: of the devices that count.
        now_s: wall time.
    """
    revoked = revoked_devices(connection)
    presences, versions = Counter[Presence](), Counter[str]()
    by_tag: defaultdict[str, Counter[Presence]] = defaultdict(Counter)
    names, reporting = set(), set()
    for device in devices.every(connection):
        if not selector.matches(device.tags):
            continue
        names.add(device.name)
        presence = device.presence(now_s, revoked)
        presences[presence] += 1
        value = device.tags.get(tag, "")
        by_tag[value if value in by_tag or len(by_tag) < _VALUES else _OTHERS][presence] += 1
        if presence is not Presence.REVOKED:
            reporting.add(device.name)
            versions[device.reported.agent_version if device.reported is not None else ""] += 1
    reports = connection.execute(select(COUNTS.c.device, COUNTS.c.latest, COUNTS.c.at_s)).all()
    ages_s = [max(0.0, now_s - at_s) for device, _, at_s in reports if device in reporting]
    outboxes = (
        Outbox(device, latest.outbox_items, latest.health.outbox_oldest_s, max(0.0, now_s - at_s))
        for device, latest, at_s in reports
        if device in names and latest.outbox_items
    )
    expiring = [one for one in _expiring(connection, now_s) if one.device in names]
    return FleetOverview(
        at_s=now_s,
        devices=dict(presences),
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
