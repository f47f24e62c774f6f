"""The counts of devices, added up over their processes: pure rules first, then the store."""

from __future__ import annotations

from collections.abc import Iterable
from functools import reduce
from itertools import islice
from operator import add, sub

import msgspec
from msgspec import Struct
from msgspec.structs import replace
from sqlalchemy import Connection, delete, func, select

from firstline_core.fleet.telemetry import ModelCounts, Telemetry
from firstline_gateway.fleet.tables import COUNTS, HISTORY
from firstline_gateway.store import schema

_HOUR_S = 3600.0
# A device may say what it likes; what it said must be readable again, and not grow without end.
_MOST_COUNTS = 2**53
_MOST_TIME = 1e15
_MODELS = 128
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
    """A device's counts before and after a report."""

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
    told = set()
    for model in report.models:
        key = model.name, model.version
        gained = difference(model, earlier.get(key))
        known[key] = _sum(known[key], gained) if key in known else gained
        told.add(key)
    lived_s = report.uptime_s - (before.uptime_s if before is not None else 0.0)
    # Of versions that it says nothing of any more, what there is room for.
    kept = sorted(told | set(islice((key for key in reversed(known) if key not in told), max(0, _MODELS - len(told)))))
    service_s = min(_MOST_TIME, totals.service_s + max(0.0, lived_s))
    return Totals(tuple(known[key] for key in kept), service_s, max(totals.unclean, report.unclean))


def difference(after: ModelCounts, before: ModelCounts | None) -> ModelCounts:
    """Returns the counts between two moments; bins with new edges count from the beginning."""
    if before is None:
        return after
    return replace(
        after,
        rows=max(0, after.rows - before.rows),
        kept=max(0, after.kept - before.kept),
        escalated=max(0, after.escalated - before.escalated),
        errors=max(0, after.errors - before.errors),
        audited=max(0, after.audited - before.audited),
        disagreed=max(0, after.disagreed - before.disagreed),
        latency_sum_ms=max(0.0, after.latency_sum_ms - before.latency_sum_ms),
        latency=_less(after.latency, before.latency),
        scores=_less(after.scores, before.scores),
    )


def gained(bundle: str, start: Totals, end: Totals) -> ModelCounts:
    """Returns the counts of all versions of a bundle between two totals; for "", of all bundles, without scores.

    Scores and alarm are those of the version that answered most of it: another version's scores are on another scale,
    and the alarm of one that answers no more says nothing.
    """
    earlier = {(model.name, model.version): model for model in start.models}
    mine = (model for model in end.models if bundle in ("", model.name))
    found = [difference(model, earlier.get((model.name, model.version))) for model in mine]
    if not found:
        return ModelCounts(bundle or "all", 1)
    most = max(found, key=lambda model: (model.rows, model.version))
    scores = most.scores if bundle else ()
    return replace(reduce(_sum, found), version=most.version, scores=scores, alarm=most.alarm)


def _sum(one: ModelCounts, more: ModelCounts) -> ModelCounts:
    return replace(
        more,
        rows=min(_MOST_COUNTS, one.rows + more.rows),
        kept=min(_MOST_COUNTS, one.kept + more.kept),
        escalated=min(_MOST_COUNTS, one.escalated + more.escalated),
        errors=min(_MOST_COUNTS, one.errors + more.errors),
        audited=min(_MOST_COUNTS, one.audited + more.audited),
        disagreed=min(_MOST_COUNTS, one.disagreed + more.disagreed),
        latency_sum_ms=min(_MOST_TIME, one.latency_sum_ms + more.latency_sum_ms),
        latency=_more(one.latency, more.latency),
        scores=_more(one.scores, more.scores),
    )


def _more(one: tuple[int, ...], other: tuple[int, ...]) -> tuple[int, ...]:
    """Bin by bin; where there are not the same bins, those that are there now."""
    if len(one) != len(other):
        return other or one
    found = tuple(map(add, one, other))
    return found if not found or max(found) <= _MOST_COUNTS else tuple(min(_MOST_COUNTS, count) for count in found)


def _less(after: tuple[int, ...], before: tuple[int, ...]) -> tuple[int, ...]:
    """Likewise."""
    if len(after) != len(before):
        return after
    found = tuple(map(sub, after, before))
    return found if not found or min(found) >= 0 else tuple(max(0, count) for count in found)


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
    kept = schema.insert(connection, COUNTS).values(row)
    connection.execute(kept.on_conflict_do_update(index_elements=["device"], set_=row))
    past = {"device": device, "hour": int(now_s // _HOUR_S), "at_s": now_s, "totals": row["totals"]}
    connection.execute(schema.insert(connection, HISTORY).values(past).on_conflict_do_nothing())
    return Counted(totals, after)


def totals_of(connection: Connection, devices: Iterable[str]) -> dict[str, Totals]:
    """Returns the counts of these devices so far; devices without a report are left out."""
    query = select(COUNTS.c.device, COUNTS.c.totals).where(COUNTS.c.device.in_(list(devices)))
    return {row.device: msgspec.json.decode(row.totals, type=Totals) for row in connection.execute(query)}


def totals_before(connection: Connection, devices: Iterable[str], at_s: float) -> dict[str, Totals]:
    """Returns the counts of these devices at a wall time, by the last stored hour before it."""
    wanted = (HISTORY.c.device.in_(list(devices)), HISTORY.c.at_s <= at_s)
    last = select(HISTORY.c.device, func.max(HISTORY.c.hour).label("hour")).where(*wanted).group_by(HISTORY.c.device)
    found = last.subquery()
    query = select(HISTORY.c.device, HISTORY.c.totals).join(
        found, (HISTORY.c.device == found.c.device) & (HISTORY.c.hour == found.c.hour)
    )
    return {row.device: msgspec.json.decode(row.totals, type=Totals) for row in connection.execute(query)}


def forget(connection: Connection, now_s: float) -> None:
    """Forgets what is older than anybody looks back."""
    connection.execute(delete(HISTORY).where(HISTORY.c.hour < int(now_s // _HOUR_S) - KEPT_HOURS))
