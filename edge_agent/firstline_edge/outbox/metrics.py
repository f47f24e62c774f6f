"""Metrics of the outbox."""

from __future__ import annotations

from firstline_core.telemetry.metrics import RequestMetrics
from firstline_edge.outbox.reopening import ReopeningOutbox


def register_metrics(metrics: RequestMetrics, outbox: ReopeningOutbox) -> None:
    """Registers the number and the size of the promises that wait."""
    metrics.gauge("outbox_items", "Promised corrections that are still to come.", lambda: outbox.depth)
    metrics.gauge("outbox_bytes", "Payload in the outbox.", lambda: outbox.size_bytes)
