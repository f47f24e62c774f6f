"""The state of all devices at one moment: the sums that the API shows, which the database adds up."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator
from itertools import islice
from typing import Any

from sqlalchemy import ColumnElement, Connection, CursorResult, Label, case, func, select

from firstline_core.fleet.rest import (
    ASLEEP_AFTER_S,
    EXPIRES_SOON_S,
    EXPIRING_SHARE,
    LATE_AFTER_S,
    LISTED,
    ExpiringCertificate,
    FleetOverview,
    Outbox,
    Presence,
)
from firstline_core.fleet.selector import Selector
from firstline_gateway.fleet.devices import DEVICES
from firstline_gateway.fleet.totals import COUNTS
from firstline_gateway.identity.enrolment import REVOKED
from firstline_gateway.identity.tables import CERTIFICATES

_VALUES = 100  # of the tag; further values are counted together, under "..."
_OTHERS = "..."
_AT_ONCE = 100  # outboxes that are read together, of which most may not match
_D, _C = DEVICES.c, COUNTS.c


def groups(connection: Connection, now_s: float, **sums: ColumnElement[Any]) -> CursorResult[Any]:
    """Returns the number of devices with equal tags, acceptance, presence and agent version, as `devices`.

    Args:
        connection: within a transaction.
        now_s: wall time.
        **sums: further columns, each an aggregate over the devices of a group.
    """
    group = (_D.tags, _D.accepted_s.is_not(None).label("accepted"), _presence(now_s), _D.agent_version)
    named = [value.label(name) for name, value in sums.items()]
    query = select(*group, func.count().label("devices"), *named).outerjoin(COUNTS, _C.device == _D.name)
    return connection.execute(query.group_by(_D.tags, "accepted", "presence", _D.agent_version))


def _presence(now_s: float) -> Label[str]:
    """Returns a device's presence in the words of the database; `rest.presence` has the rules."""
    age_s = now_s - _D.last_seen_s
    return case(
        (_D.name.in_(REVOKED), Presence.REVOKED.value),
        (_D.last_seen_s.is_(None) | (age_s > ASLEEP_AFTER_S), Presence.ASLEEP.value),
        (_D.online & (age_s <= LATE_AFTER_S), Presence.ONLINE.value),
        else_=Presence.LATE.value,
    ).label("presence")


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
    unaccepted, ages_s = 0, list[float]()
    for group in groups(connection, now_s, first_s=func.min(_C.at_s), last_s=func.max(_C.at_s)):
        if not selector.matches(group.tags):
            continue
        if not group.accepted:
            unaccepted += group.devices
            continue
        found = Presence(group.presence)
        presences[found] += group.devices
        by_tag[group.tags.get(tag, "")][found] += group.devices
        if found is Presence.REVOKED:
            continue
        versions[group.agent_version] += group.devices
        ages_s += [max(0.0, now_s - at_s) for at_s in (group.first_s, group.last_s) if at_s is not None]
    others = [by_tag.pop(value) for value in sorted(by_tag)[_VALUES:]]
    for counts in others:
        by_tag[_OTHERS] += counts
    expiring = _expiring(connection, selector, now_s)
    return FleetOverview(
        at_s=now_s,
        devices=dict(presences),
        unaccepted=unaccepted,
        tag=tag,
        by_tag={value: dict(counts) for value, counts in sorted(by_tag.items())},
        agent_versions=dict(versions),
        outboxes=tuple(islice(_outboxes(connection, selector, now_s), LISTED)),
        expiring=tuple(expiring[:LISTED]),
        expiring_count=len(expiring),
        reported_s=(min(ages_s), max(ages_s)) if ages_s else None,
    )


def _outboxes(connection: Connection, selector: Selector, now_s: float) -> Iterator[Outbox]:
    """Yields the outboxes with items, those with the oldest items first."""
    query = (
        select(_D.name, _D.tags, _C.outbox_items, _C.outbox_oldest_s, _C.at_s)
        .join(COUNTS, _C.device == _D.name)
        .where(_C.outbox_items > 0)
        .order_by(_C.outbox_oldest_s.desc(), _C.outbox_items.desc())
        .execution_options(yield_per=_AT_ONCE)
    )
    with connection.execute(query) as rows:  # closed also if not all rows are read
        for row in rows:
            if selector.matches(row.tags):
                yield Outbox(row.name, row.outbox_items, row.outbox_oldest_s, max(0.0, now_s - row.at_s))


def _expiring(connection: Connection, selector: Selector, now_s: float) -> list[ExpiringCertificate]:
    """Returns the devices with access whose last certificate was not renewed, the first to end first."""
    ends_s, issued_s = func.max(CERTIFICATES.c.not_after_s), func.max(CERTIFICATES.c.issued_s)
    last = (
        select(CERTIFICATES.c.device, ends_s.label("ends_s"))
        .where(CERTIFICATES.c.revoked_s.is_(None))
        .group_by(CERTIFICATES.c.device)
        .having(ends_s < now_s + EXPIRES_SOON_S, ends_s - now_s < (ends_s - issued_s) * EXPIRING_SHARE)
        .subquery()
    )
    query = select(last, _D.tags).join(DEVICES, _D.name == last.c.device).order_by(last.c.ends_s, last.c.device)
    rows = (row for row in connection.execute(query) if selector.matches(row.tags))
    return [ExpiringCertificate(row.device, row.ends_s) for row in rows]
