"""The metrics of jobs."""

from __future__ import annotations

from prometheus_client import Counter

from firstline_gateway.telemetry.metrics import GatewayMetrics


def jobs_counter(metrics: GatewayMetrics) -> Counter:
    """Adds the counter of jobs, by event: submitted, answered or failed."""
    return metrics.counter("jobs_total", "Jobs, by what became of them.", ("event",))
