"""What a device counted since its process began: sums and histograms of fixed size, whatever the traffic.

Counts only grow within a session, as Prometheus' do: a report that was lost costs nothing, one that comes twice or late
is known by its sequence, and the difference of two is what happened between them. `local_only` requests are in none.
"""

from __future__ import annotations

from bisect import bisect_left
from typing import Annotated

from msgspec import Meta, Struct

from firstline_core.fleet.twin import FORMAT, Version
from firstline_core.types import Name

LATENCY_BOUNDS_MS = (1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 200.0, 500.0, 1000.0, 2000.0, 5000.0)
"""Upper bounds of the latencies' bins; one more has what took longer."""

_Count = Annotated[int, Meta(ge=0, le=2**53)]
_Bins = Annotated[tuple[_Count, ...], Meta(max_length=64)]


class ModelCounts(Struct, frozen=True):
    """One version of a model on one device.

    Attributes:
        rows: that it was asked about; each was kept, escalated, or ended in an error.
        kept: answered by the edge model or its cached evidence, for good.
        escalated: sent, or to be sent, to the full model.
        errors: rows that got no answer.
        latency: requests by how long they took, see `LATENCY_BOUNDS_MS`.
        latency_sum_ms: of all of them.
        scores: rows by score, in the bins of the certificate's histogram; () where there is none.
        audited: kept answers that the full model checked.
        disagreed: of those, how many it answered otherwise.
        alarm: whether the contract's alarm stands.
    """

    name: Name
    version: Version
    rows: _Count = 0
    kept: _Count = 0
    escalated: _Count = 0
    errors: _Count = 0
    latency: _Bins = ()
    latency_sum_ms: Annotated[float, Meta(ge=0)] = 0.0
    scores: _Bins = ()
    audited: _Count = 0
    disagreed: _Count = 0
    alarm: bool = False


class Telemetry(Struct, frozen=True):
    """One report.

    Attributes:
        session: of the process that counts.
        sequence: grows with each report of a session.
        uptime_s: of that process.
        starts: processes of this device so far, this one included, as its state directory remembers them.
        unclean: of those, how many ended without a word.
    """

    session: Annotated[str, Meta(min_length=1, max_length=64)]
    sequence: Annotated[int, Meta(ge=0, le=2**53)]
    uptime_s: Annotated[float, Meta(ge=0)] = 0.0
    models: Annotated[tuple[ModelCounts, ...], Meta(max_length=64)] = ()
    starts: _Count = 0
    unclean: _Count = 0
    outbox_items: _Count = 0
    format: int = FORMAT


def latency_bin(ms: float) -> int:
    """Which bin a latency belongs into."""
    return bisect_left(LATENCY_BOUNDS_MS, ms)
