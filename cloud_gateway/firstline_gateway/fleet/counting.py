"""What devices counted, added up over their processes. The rules are pure; below them, what of it is in the store."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec
from msgspec import Struct
from msgspec.structs import replace
from sqlalchemy import Connection, delete, select

from firstline_core.fleet.telemetry import ModelCounts, Telemetry
from firstline_gateway.fleet.tables import COUNTS, HISTORY
from firstline_gateway.store import statements

_ADDED = ("rows", "kept", "escalated", "errors", "audited", "disagreed", "latency_sum_ms")
_HOUR_S = 3600.0
KEPT_HOURS = 48
"""How far back one can look."""


class Totals(Struct, frozen=True):
    """All that one device counted so far.

    Attributes:
        models: each version of each bundle once, in order.
        service_s: for how long its processes ran.
        unclean: how many of them ended without a word.
    """

    models: tuple[ModelCounts, ...] = ()
    service_s: float = 0.0
    unclean: int = 0


class Counted(Struct, frozen=True):
    """What a device counted before a report, and after it."""

    before: Totals
    after: Totals


def added(totals: Totals, before: Telemetry | None, report: Telemetry) -> Totals:
    """Totals after one more report.

    Args:
        totals: so far.
        before: the latest report of the same process; None of the first one.
        report: which follows it.
    """
    known = {(model.name, model.version): model for model in totals.models}
    earlier = {(model.name, model.version): model for model in before.models} if before is not None else {}
    for model in report.models:
        key = model.name, model.version
        gained = difference(model, earlier.get(key))
        known[key] = _sum(known[key], gained) if key in known else gained
    lived_s = report.uptime_s - (before.uptime_s if before is not None else 0.0)
    models = tuple(known[key] for key in sorted(known))
    return Totals(models, totals.service_s + max(0.0, lived_s), max(totals.unclean, report.unclean))


def difference(after: ModelCounts, before: ModelCounts | None) -> ModelCounts:
    """What was counted between two moments; bins that were cut anew count from the beginning."""
    if before is None:
        return after
    values = {name: max(0, getattr(after, name) - getattr(before, name)) for name in _ADDED}
    bins = {name: _bins(getattr(after, name), getattr(before, name), -1) for name in ("latency", "scores")}
    return replace(after, **values, **bins)


def of_bundle(totals: Totals, bundle: str) -> ModelCounts:
    """All versions of a bundle together; `version` and `scores` are the newest one's. Of "": all bundles, no scores."""
    found = ModelCounts(bundle or "all", 1)
    for model in totals.models:
        if model.name == bundle:
            found = replace(_sum(found, model), version=model.version, scores=model.scores)
        elif not bundle:
            found = replace(_sum(found, model), scores=())
    return found


def _sum(one: ModelCounts, more: ModelCounts) -> ModelCounts:
    values = {name: getattr(one, name) + getattr(more, name) for name in _ADDED}
    bins = {name: _bins(getattr(one, name), getattr(more, name), 1) for name in ("latency", "scores")}
    return replace(more, **values, **bins)


def _bins(one: tuple[int, ...], other: tuple[int, ...], sign: int) -> tuple[int, ...]:
    """Bin by bin; where there are not the same bins, those that are there now."""
    if len(one) != len(other):
        return one if sign < 0 or not other else other
    return tuple(max(0, a + sign * b) for a, b in zip(one, other, strict=True))


def count(connection: Connection, device: str, report: Telemetry, now_s: float) -> Counted | None:
    """Adds a report to what is kept of a device; None where it said something newer before."""
    held = connection.execute(select(COUNTS).where(COUNTS.c.device == device).with_for_update()).first()
    before, totals = None, Totals()
    if held is not None:
        totals = msgspec.json.decode(held.totals, type=Totals)
        if held.session == report.session:
            if report.sequence <= held.sequence:
                return None
            before = msgspec.json.decode(held.latest, type=Telemetry)
    after = added(totals, before, report)
    row = {
        "device": device,
        "session": report.session,
        "sequence": report.sequence,
        "latest": msgspec.json.encode(report).decode(),
        "totals": msgspec.json.encode(after).decode(),
        "at_s": now_s,
    }
    kept = statements.insert(connection, COUNTS).values(row)
    connection.execute(kept.on_conflict_do_update(index_elements=["device"], set_=row))
    past = {"device": device, "hour": int(now_s // _HOUR_S), "at_s": now_s, "totals": row["totals"]}
    connection.execute(statements.insert(connection, HISTORY).values(past).on_conflict_do_nothing())
    return Counted(totals, after)


def totals_of(connection: Connection, devices: Iterable[str]) -> dict[str, Totals]:
    """What these devices counted so far; those that never said are left out."""
    query = select(COUNTS.c.device, COUNTS.c.totals).where(COUNTS.c.device.in_(list(devices)))
    return {row.device: msgspec.json.decode(row.totals, type=Totals) for row in connection.execute(query)}


def totals_before(connection: Connection, devices: Iterable[str], at_s: float) -> dict[str, Totals]:
    """What these devices had counted by a wall time, as the last hour before it knew."""
    query = (
        select(HISTORY.c.device, HISTORY.c.totals)
        .where(HISTORY.c.device.in_(list(devices)), HISTORY.c.at_s <= at_s)
        .order_by(HISTORY.c.hour)
    )
    return {row.device: msgspec.json.decode(row.totals, type=Totals) for row in connection.execute(query)}


def forget(connection: Connection, now_s: float) -> None:
    """Forgets what is older than anybody looks back."""
    connection.execute(delete(HISTORY).where(HISTORY.c.hour < int(now_s // _HOUR_S) - KEPT_HOURS))
