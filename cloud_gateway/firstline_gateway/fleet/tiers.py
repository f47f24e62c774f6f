"""The answers of all devices together by tier, in buckets of five minutes.

In a large fleet, counts arrive a few hundred times a second. They are added up in memory and stored from time to time,
so that a chart reads a few hundred rows, whatever the fleet's size. A gateway that crashes loses the counts that are
not stored yet; the devices' own totals lose nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import sqlalchemy as sa

from firstline_core.fleet.rest import TierCounts, TierHistory
from firstline_core.types import ModelKey
from firstline_core.units import HOUR_S
from firstline_gateway.fleet.totals import KEPT_HOURS, Totals, difference
from firstline_gateway.store.schema import METADATA, upsert

BUCKET_S = 300.0
OUTCOMES = ("kept", "escalated", "errors")
"""What can become of a row on a device: it is accepted at the edge, escalated, or not answered."""

_VERSIONS = 256  # versions of models in a bucket, because devices choose their names
_OTHERS = ModelKey("", 0)
_MOST_ROWS, _MOST = 2**31, 2**40  # in one report, so that sums do not overflow: rows, and other amounts
TIERS = sa.Table(
    "fleet_tiers",
    METADATA,
    sa.Column("bucket", sa.Integer, primary_key=True),  # of five minutes, since 1970
    sa.Column("model", sa.String(64), primary_key=True),
    sa.Column("version", sa.BigInteger, primary_key=True, autoincrement=False),
    sa.Column("kept", sa.BigInteger, nullable=False),
    sa.Column("escalated", sa.BigInteger, nullable=False),
    sa.Column("errors", sa.BigInteger, nullable=False),
    sa.Column("requests", sa.BigInteger, nullable=False),
    sa.Column("latency_ms", sa.Double, nullable=False),
    sa.Column("saved_bytes", sa.BigInteger, nullable=False),
    sa.Column("saved_mj", sa.Double, nullable=False),
    sa.Column("service_s", sa.Double, nullable=False),  # when counts were last added
)
"""Rows of all devices by the tier that answered, and by the time of the report."""
_C = TIERS.c


class BucketKey(NamedTuple):
    """The key of a bucket; keys are sorted in the order in which rows are written."""

    bucket: int
    model: str
    version: int


class BucketCounts(NamedTuple):
    """Rows that were accepted at the edge, escalated, and not answered; the other fields as in `TierCounts`."""

    kept: int = 0
    escalated: int = 0
    errors: int = 0
    requests: int = 0
    latency_ms: float = 0
    saved_bytes: int = 0
    saved_mj: float = 0


class TierCounter:
    """Counts that are not in the store yet; used on one thread.

    Attributes:
        sums: since this process started: rows by outcome, `objects` that edge models
            reported, and `payload_bytes` that devices sent.
    """

    def __init__(self) -> None:
        self.sums = dict.fromkeys((*OUTCOMES, "objects", "payload_bytes"), 0)
        self._pending: dict[BucketKey, BucketCounts] = {}
        self._bucket = 0
        self._known: set[ModelKey] = set()

    def add(self, before: Totals, after: Totals, now_s: float) -> None:
        """Adds what one device counted between two of its totals, at a wall time."""
        bucket = int(now_s // BUCKET_S)
        if bucket != self._bucket:
            self._bucket, self._known = bucket, set()
        self.sums["payload_bytes"] += max(0, after.payload_bytes - before.payload_bytes)
        earlier = {model.key: model for model in before.models}
        for model in after.models:
            key = model.key
            gain = difference(model, earlier.get(key))
            rows = gain.kept, gain.escalated, gain.errors, sum(gain.latency)
            amounts = gain.latency_sum_ms, gain.saved_bytes, gain.saved_mj
            counts = BucketCounts(*(min(_MOST_ROWS, each) for each in rows), *(min(_MOST, each) for each in amounts))
            for outcome in OUTCOMES:
                self.sums[outcome] += getattr(counts, outcome)
            self.sums["objects"] += sum(gain.objects.values())
            if not any(counts):
                continue
            if key not in self._known:
                key = key if len(self._known) < _VERSIONS else _OTHERS
                self._known.add(key)
            self._put(BucketKey(bucket, *key), counts)

    def take(self) -> dict[BucketKey, BucketCounts]:
        """Returns all counts, and starts again at zero."""
        pending, self._pending = self._pending, {}
        return pending

    def put_back(self, counted: Mapping[BucketKey, BucketCounts]) -> None:
        """Returns taken counts that could not be stored."""
        for key, counts in counted.items():
            self._put(key, counts)

    def _put(self, key: BucketKey, counts: BucketCounts) -> None:
        before = self._pending.get(key, BucketCounts())
        self._pending[key] = BucketCounts._make(one + more for one, more in zip(before, counts, strict=True))


def store(connection: sa.Connection, counted: Mapping[BucketKey, BucketCounts], service_s: float) -> None:
    """Adds counts to the store, in one order, so that replicas do not deadlock."""
    time = {"service_s": service_s}
    rows = (key._asdict() | counts._asdict() | time for key, counts in sorted(counted.items()))
    upsert(connection, TIERS, *rows, summed=BucketCounts._fields)


def history(connection: sa.Connection, since_s: float, model: str) -> TierHistory:
    """Returns the answers by tier, bucket by bucket.

    Args:
        connection: within a transaction.
        since_s: wall time from which on.
        model: only of this one; "" is all together.
    """
    late = _C.bucket >= int(since_s // BUCKET_S)
    sums = [sa.func.sum(_C[name]) for name in BucketCounts._fields]
    query = sa.select(_C.bucket, *sums).where(late).group_by(_C.bucket).order_by(_C.bucket)
    rows = connection.execute(query.where(_C.model == model) if model else query)
    names = connection.execute(
        sa.select(_C.model).where(late, _C.model != "").distinct().order_by(_C.model).limit(_VERSIONS)
    )
    points = tuple(TierCounts(bucket * BUCKET_S, *map(round, counts)) for bucket, *counts in rows)
    return TierHistory(BUCKET_S, tuple(names.scalars()), points)


def forget(connection: sa.Connection, service_s: float) -> None:
    """Deletes counts that are older than the history."""
    connection.execute(sa.delete(TIERS).where(_C.service_s < service_s - KEPT_HOURS * HOUR_S))
