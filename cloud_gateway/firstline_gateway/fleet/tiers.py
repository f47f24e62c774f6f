"""The fleet's answers by tier, of all devices together, in buckets of five minutes.

In a large fleet, counts arrive a few hundred times a second; each device has a row of its own. Here it is
added up in memory and put into the store now and then, so that a chart costs a few hundred rows, whatever the fleet's
size. A gateway that ends without a word loses what it has not put there yet; the devices' own totals lose nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from sqlalchemy import Connection, delete, func, select

from firstline_core.fleet.rest import TierCounts, TierHistory
from firstline_gateway.fleet.tables import TIERS
from firstline_gateway.fleet.totals import KEPT_HOURS, Totals
from firstline_gateway.store import schema

BUCKET_S = 300.0
_MOST = 256  # models' versions in a bucket: their names are the devices' word
_OTHERS = ("", 0)
_MOST_ROWS = 2**31  # in one report: no device answers more, and none may say so much that sums overflow
_C = TIERS.c


class Key(NamedTuple):
    """The key of a bucket; keys are sorted in the order in which rows are written."""

    bucket: int
    model: str
    version: int


Counts = tuple[int, int, int]
"""Rows that were kept, escalated, and got no answer."""


class Tally:
    """Counts that are not in the store yet; used on one thread."""

    def __init__(self) -> None:
        self._held: dict[Key, Counts] = {}
        self._bucket = 0
        self._known: set[tuple[str, int]] = set()

    def add(self, before: Totals, after: Totals, now_s: float) -> None:
        """Takes what one device counted between two of its totals, at a wall time."""
        bucket = int(now_s // BUCKET_S)
        if bucket != self._bucket:
            self._bucket, self._known = bucket, set()
        earlier = {(model.name, model.version): model for model in before.models}
        for model in after.models:
            which = model.name, model.version
            was = earlier.get(which)
            gained = (
                min(_MOST_ROWS, model.kept - (was.kept if was is not None else 0)),
                min(_MOST_ROWS, model.escalated - (was.escalated if was is not None else 0)),
                min(_MOST_ROWS, model.errors - (was.errors if was is not None else 0)),
            )
            if not any(gained):
                continue
            if which not in self._known:
                which = which if len(self._known) < _MOST else _OTHERS
                self._known.add(which)
            self._put(Key(bucket, *which), gained)

    def take(self) -> dict[Key, Counts]:
        """All of it, which is then not here any more."""
        held, self._held = self._held, {}
        return held

    def put_back(self, counted: Mapping[Key, Counts]) -> None:
        """Returns taken counts that could not be stored."""
        for key, counts in counted.items():
            self._put(key, counts)

    def _put(self, key: Key, counts: Counts) -> None:
        kept, escalated, errors = self._held.get(key, (0, 0, 0))
        self._held[key] = (kept + counts[0], escalated + counts[1], errors + counts[2])


def keep(connection: Connection, counted: Mapping[Key, Counts]) -> None:
    """Adds it to what is in the store; in one order, so that replicas do not wait for each other in a circle."""
    for key, (kept, escalated, errors) in sorted(counted.items()):
        row = {**key._asdict(), "kept": kept, "escalated": escalated, "errors": errors}
        added = schema.insert(connection, TIERS).values(row)
        connection.execute(
            added.on_conflict_do_update(
                index_elements=["bucket", "model", "version"],
                set_={name: _C[name] + added.excluded[name] for name in ("kept", "escalated", "errors")},
            )
        )


def history(connection: Connection, since_s: float, model: str) -> TierHistory:
    """Returns the answers by tier, bucket by bucket.

    Args:
        connection: within a transaction.
        since_s: wall time from which on.
        model: only of this one; "" is all together.
    """
    late = _C.bucket >= int(since_s // BUCKET_S)
    sums = [func.sum(_C[name]) for name in ("kept", "escalated", "errors")]
    query = select(_C.bucket, *sums).where(late).group_by(_C.bucket).order_by(_C.bucket)
    rows = connection.execute(query.where(_C.model == model) if model else query)
    names = connection.execute(select(_C.model).where(late, _C.model != "").distinct().order_by(_C.model).limit(_MOST))
    points = tuple(TierCounts(bucket * BUCKET_S, *map(int, counts)) for bucket, *counts in rows)
    return TierHistory(BUCKET_S, tuple(names.scalars()), points)


def forget(connection: Connection, now_s: float) -> None:
    """Forgets what is older than anybody looks back."""
    connection.execute(delete(TIERS).where(_C.bucket < int((now_s - KEPT_HOURS * 3600) // BUCKET_S)))
