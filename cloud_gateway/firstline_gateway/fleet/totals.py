"""The counts of devices, added up over their processes: pure rules, then the store within a caller's transaction."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import reduce
from itertools import islice
from types import MappingProxyType
from typing import Any

import sqlalchemy as sa
from msgspec import Struct, convert
from msgspec.structs import asdict, replace

from firstline_core.fleet.telemetry import GROUPS_LIMIT, ModelCounts, Telemetry
from firstline_core.units import HOUR_S
from firstline_gateway.store.schema import METADATA, JsonColumn, insert_missing, upsert

# Limits on what a device can report, so that sums stay readable and stored data stays bounded.
_MOST_COUNTS = 2**53
_MOST_TIME = 1e15
_MODELS = 128
_COUNTERS = ("rows", "kept", "escalated", "errors", "audited", "audited_empty", "disagreed", "saved_bytes")
_SUMS = ("latency_sum_ms", "losses", "saved_mj")
_BY_GROUP = ("objects", "event_audits", "event_losses")
_NO_AUDITS: Mapping[str, Any] = MappingProxyType(
    {"audited": 0, "audited_empty": 0, "disagreed": 0, "losses": 0.0, "event_audits": {}, "event_losses": {}}
)
KEPT_HOURS = 48
"""Length of the history, in hours of service: a clock that is set ahead deletes nothing."""


class Totals(Struct, frozen=True):
    """All counts of one device so far.

    Attributes:
        models: each version of each bundle once, sorted.
        service_s: total uptime of its processes.
        unclean: number of processes that ended without a shutdown.
        payload_bytes: inputs that were sent to the gateway.
    """

    models: tuple[ModelCounts, ...] = ()
    service_s: float = 0.0
    unclean: int = 0
    payload_bytes: int = 0


COUNTS = sa.Table(
    "fleet_counts",
    METADATA,
    sa.Column("device", sa.String(64), primary_key=True),
    sa.Column("session", sa.String(64), nullable=False),
    sa.Column("sequence", sa.BigInteger, nullable=False),
    sa.Column("at_s", sa.Double, nullable=False),
    # Of `latest`, for sums over all devices. The long documents are last: SQLite reads a row up to the wanted column.
    sa.Column("outbox_items", sa.BigInteger, nullable=False),
    sa.Column("outbox_oldest_s", sa.Double, nullable=False),
    sa.Column("links_down", sa.Integer, nullable=False),
    sa.Column("disk_free_share", sa.Double),
    sa.Column("hottest_c", sa.Double),
    sa.Column("throttled", sa.Boolean, nullable=False),
    sa.Column("certificate_ends_s", sa.Double),
    sa.Column("latest", JsonColumn(Telemetry), nullable=False),  # the report, whose counts are the session's
    sa.Column("totals", JsonColumn(Totals), nullable=False),  # of all sessions
)
"""What devices counted, over all their processes."""
HISTORY = sa.Table(
    "fleet_history",
    METADATA,
    sa.Column("device", sa.String(64), primary_key=True),
    sa.Column("hour", sa.Integer, primary_key=True),  # since 1970
    sa.Column("at_s", sa.Double, nullable=False),
    sa.Column("service_s", sa.Double, nullable=False),
    sa.Column("totals", JsonColumn(Totals), nullable=False),
)
"""One copy of the totals per hour, for the time before a rollout."""
_STORED = sa.select(COUNTS).where(COUNTS.c.device == sa.bindparam("name")).with_for_update()


class Counted(Struct, frozen=True):
    """A device's counts before and after a report."""

    before: Totals
    after: Totals


def added(totals: Totals, before: Telemetry | None, report: Telemetry) -> Totals:
    """Returns the totals after one more report.

    Args:
        totals: so far.
        before: the latest report of the same process; None for the first.
        report: the report after it.
    """
    sums = {model.key: model for model in totals.models}
    earlier = {model.key: model for model in before.models} if before is not None else {}
    reported = set()
    for model in report.models:
        key = model.key
        gain = difference(model, earlier.get(key))
        sums[key] = _sum(sums[key], gain) if key in sums else gain
        reported.add(key)
    # As many versions that are no longer reported as there is room for.
    others = islice((key for key in reversed(sums) if key not in reported), max(0, _MODELS - len(reported)))
    models = tuple(sums[key] for key in sorted(reported | set(others)))
    uptime_s = report.uptime_s - (before.uptime_s if before is not None else 0.0)
    service_s = min(_MOST_TIME, totals.service_s + max(0.0, uptime_s))
    sent = report.payload_bytes - (before.payload_bytes if before is not None else 0)
    payload_bytes = min(_MOST_COUNTS, totals.payload_bytes + max(0, sent))
    return Totals(models, service_s, max(totals.unclean, report.unclean), payload_bytes)


def difference(after: ModelCounts, before: ModelCounts | None) -> ModelCounts:
    """Returns the counts between two moments; bins with new edges count from the beginning."""
    if before is None:
        return after
    return replace(
        after,
        **{name: max(0, getattr(after, name) - getattr(before, name)) for name in _COUNTERS},
        **{name: _less_by(getattr(after, name), getattr(before, name)) for name in _BY_GROUP},
        **{name: max(0.0, getattr(after, name) - getattr(before, name)) for name in _SUMS},
        latency=_less(after.latency, before.latency),
        scores=_less(after.scores, before.scores),
    )


def gained(bundle: str, start: Totals, end: Totals, *, audits_of: int | None = None) -> ModelCounts:
    """Returns the counts of all versions of a bundle between two totals; for "", of all bundles, without scores.

    Scores and alarm are those of the version with the most rows: scores of different versions have different scales,
    and the alarm of a version that no longer answers is outdated. Audits are those of the version `audits_of`, or
    without it of all versions.
    """
    earlier = {model.key: model for model in start.models}
    mine = (model for model in end.models if bundle in ("", model.name))
    gains = [difference(model, earlier.get(model.key)) for model in mine]
    if audits_of is not None:
        gains = [each if each.version == audits_of else replace(each, **_NO_AUDITS) for each in gains]
    if not gains:
        return ModelCounts(bundle or "all", 1)
    most = max(gains, key=lambda model: (model.rows, model.version))
    scores = most.scores if bundle else ()
    return replace(reduce(_sum, gains), version=most.version, scores=scores, alarm=most.alarm)


def _sum(one: ModelCounts, more: ModelCounts) -> ModelCounts:
    return replace(
        more,
        **{name: min(_MOST_COUNTS, getattr(one, name) + getattr(more, name)) for name in _COUNTERS},
        **{name: _more_by(getattr(one, name), getattr(more, name)) for name in _BY_GROUP},
        **{name: min(_MOST_TIME, getattr(one, name) + getattr(more, name)) for name in _SUMS},
        latency=_more(one.latency, more.latency),
        scores=_more(one.scores, more.scores),
    )


def _more_by(one: Mapping[str, int], other: Mapping[str, int]) -> dict[str, int]:
    """Adds counts by group; groups without room are left out, the older ones first."""
    names = list(dict.fromkeys((*other, *one)))[: 2 * GROUPS_LIMIT]
    return {name: min(_MOST_COUNTS, one.get(name, 0) + other.get(name, 0)) for name in names}


def _less_by(after: Mapping[str, int], before: Mapping[str, int]) -> dict[str, int]:
    """Subtracts counts by group."""
    return {name: max(0, number - before.get(name, 0)) for name, number in after.items()}


def _more(one: tuple[int, ...], other: tuple[int, ...]) -> tuple[int, ...]:
    """Adds bins; returns the newer bins if their number differs."""
    if len(one) != len(other):
        return other or one
    return tuple(min(_MOST_COUNTS, a + b) for a, b in zip(one, other, strict=True))


def _less(after: tuple[int, ...], before: tuple[int, ...]) -> tuple[int, ...]:
    """Subtracts bins; returns the newer bins if their number differs."""
    if len(after) != len(before):
        return after
    return tuple(max(0, a - b) for a, b in zip(after, before, strict=True))


def count(
    connection: sa.Connection, device: str, report: Telemetry, now_s: float, *, service_s: float
) -> Counted | None:
    """Adds a report to a device's totals; returns None if a newer report was added before."""
    stored = connection.execute(_STORED, {"name": device}).first()
    before, totals = None, Totals()
    if stored is not None:
        totals = stored.totals
        if stored.session == report.session:
            if report.sequence <= convert(stored.sequence, int):  # refuses a damaged number
                return None
            before = stored.latest
    after = added(totals, before, report)
    row = {"device": device, "at_s": now_s, "totals": after}
    process = {"session": report.session, "sequence": report.sequence, "latest": report}
    upsert(connection, COUNTS, row | process | {"outbox_items": report.outbox_items} | asdict(report.health))
    insert_missing(connection, HISTORY, row | {"hour": int(now_s // HOUR_S), "service_s": service_s})
    return Counted(totals, after)


def totals_of(connection: sa.Connection, devices: Iterable[str]) -> dict[str, Totals]:
    """Returns the counts of these devices so far; devices without a report are left out."""
    query = sa.select(COUNTS.c.device, COUNTS.c.totals).where(COUNTS.c.device.in_(list(devices)))
    return {row.device: row.totals for row in connection.execute(query)}


def latest(connection: sa.Connection, device: str) -> tuple[Telemetry, float] | None:
    """Returns the latest report of a device and its wall time; None without one."""
    row = connection.execute(sa.select(COUNTS.c.latest, COUNTS.c.at_s).where(COUNTS.c.device == device)).one_or_none()
    return None if row is None else (row.latest, row.at_s)


def totals_before(connection: sa.Connection, devices: Iterable[str], at_s: float) -> dict[str, Totals]:
    """Returns the counts of these devices at a wall time, by the last stored hour before it."""
    conditions = (HISTORY.c.device.in_(list(devices)), HISTORY.c.at_s <= at_s)
    last = (
        sa.select(HISTORY.c.device, sa.func.max(HISTORY.c.hour).label("hour"))
        .where(*conditions)
        .group_by(HISTORY.c.device)
    )
    latest = last.subquery()
    query = sa.select(HISTORY.c.device, HISTORY.c.totals).join(
        latest, (HISTORY.c.device == latest.c.device) & (HISTORY.c.hour == latest.c.hour)
    )
    return {row.device: row.totals for row in connection.execute(query)}


def forget(connection: sa.Connection, service_s: float) -> None:
    """Deletes totals that are older than the history."""
    connection.execute(sa.delete(HISTORY).where(HISTORY.c.service_s < service_s - KEPT_HOURS * HOUR_S))
