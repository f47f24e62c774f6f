"""Counts of the gateway's answers and batches: Triton's statistics of each model, and Prometheus metrics."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from prometheus_client.core import HistogramMetricFamily
from prometheus_client.registry import Collector

from firstline_core.clock import Clock
from firstline_core.telemetry.metrics import RequestMetrics
from firstline_core.telemetry.statistics import ModelStatistics
from firstline_core.types import InferResponse, ModelKey

_BATCH_ROWS_BUCKETS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 4096)


class ServingStatistics:
    """Counts answers, batches and late requests from the start of the process on.

    Args:
        metrics: the registry of the gateway; this adds its metrics.
        clock: for the time of each model's last answer.
    """

    def __init__(self, metrics: RequestMetrics, clock: Clock) -> None:
        self._metrics = metrics
        self._clock = clock
        self._models: dict[ModelKey, ModelStatistics] = {}
        self._batches: Counter[int] = Counter()  # by their rows
        metrics.registry.register(_BatchCollector(self._batches))
        self._late = metrics.counter("late_total", "Requests that were let in and not answered by their deadline.")

    def of(self, key: ModelKey) -> ModelStatistics:
        """Returns the statistics of a version; zeros if it has had no request."""
        found = self._models.get(key)
        if found is None:
            found = self._models[key] = ModelStatistics(key.name, str(key.version))
        return found

    def answered(self, key: ModelKey, response: InferResponse, seconds: float) -> None:
        """Counts an answer, which took so long."""
        self._metrics.observe(response, seconds)
        self.of(key).answered(seconds, self._clock.wall_s())

    def started(self, rows: int) -> None:
        """Counts a batch that starts."""
        self._batches[rows] += 1

    def ran(self, key: ModelKey, rows: int, seconds: float, waits_s: Sequence[float]) -> None:
        """Counts a batch that was answered; see `ModelStatistics.ran`."""
        self.of(key).ran(rows, seconds, waits_s)

    def late(self) -> None:
        """Counts a request that was admitted and not answered by its deadline."""
        self._late.inc()


class _BatchCollector(Collector):
    """Batches by their rows, converted for Prometheus at each scrape: counting there would take as long as a batch.

    Args:
        batches: how many there were, by their rows.
    """

    def __init__(self, batches: Counter[int]) -> None:
        self._batches = batches

    def collect(self) -> Iterable[HistogramMetricFamily]:
        family = HistogramMetricFamily("firstline_gateway_batch_rows", "Rows that ran as one batch.")
        found = self._batches.copy()
        counts = [
            (str(float(most)), sum(count for rows, count in found.items() if rows <= most))
            for most in _BATCH_ROWS_BUCKETS
        ]
        family.add_metric((), [*counts, ("+Inf", found.total())], sum(rows * count for rows, count in found.items()))
        return (family,)
