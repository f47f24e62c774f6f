"""Metrics of the result cache."""

from __future__ import annotations

from firstline_core.telemetry.metrics import RequestMetrics
from firstline_edge.cache.results import ResultCache


def register_metrics(metrics: RequestMetrics, cache: ResultCache) -> None:
    """Registers the number and the size of the results in memory."""
    metrics.gauge("cache_entries", "Results in the cache's memory front.", lambda: len(cache))
    metrics.gauge("cache_bytes", "Size of the cache's memory front.", lambda: cache.size_bytes)
