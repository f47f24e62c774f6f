"""The gateway's metrics: batches, queue, drops. Names start with `firstline_gateway_`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from typing import Literal

from prometheus_client.core import HistogramMetricFamily
from prometheus_client.registry import Collector

from firstline_core.telemetry.metrics import RequestMetrics

_BATCH_ROWS_BUCKETS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 4096)


class GatewayMetrics(RequestMetrics):
    """The gateway's registry.

    Attributes:
        before_reading: called before each scrape.
    """

    def __init__(self) -> None:
        super().__init__("gateway")
        self._batches: Counter[int] = Counter()  # by their rows
        self.registry.register(_BatchCollector(self._batches))
        self._late = self.counter("late_total", "Requests that were let in and not answered by their deadline.")
        self.before_reading: Callable[[], None] = lambda: None
        self._deliveries = self.counter("deliveries_total", "Requests that keep a device's promise.", ("result",))

    def render(self) -> tuple[bytes, str]:
        self.before_reading()
        return super().render()

    def batch(self, rows: int) -> None:
        """Counts one batch."""
        self._batches[rows] += 1

    def late(self) -> None:
        """Counts one request that was let in and whose deadline passed."""
        self._late.inc()

    def queue(self, depth: Callable[[], float], wait_s: Callable[[], float]) -> None:
        """Says where to read how many requests wait, and how long another would."""
        self.gauge("queue_depth", "Requests that wait to run.", depth)
        self.gauge("queue_seconds", "How long a request would wait that came now.", wait_s)

    def models(self, resident: Callable[[], float], used_bytes: Callable[[], float]) -> None:
        """Says where to read how many models are in memory, and what they take of the budget."""
        self.gauge("models_resident", "Versions of models that are in memory.", resident)
        self.gauge("models_bytes", "What they take of models.memory_budget_mb.", used_bytes)

    def delivery(self, result: Literal["recorded", "repeated", "refused", "reused"]) -> None:
        """Counts a delivery: new, known, not to be kept now, or another's id."""
        self._deliveries.labels(result).inc()

    def store(self, read: Callable[[], float]) -> None:
        """Says where to read whether the store takes what is to be kept."""
        self.gauge("store_up", "1 while the store takes what is to be kept.", read)


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
        counts = [(str(float(most)), _up_to(most, found)) for most in _BATCH_ROWS_BUCKETS]
        family.add_metric((), [*counts, ("+Inf", found.total())], sum(rows * count for rows, count in found.items()))
        return (family,)


def _up_to(most: int, batches: Counter[int]) -> int:
    return sum(count for rows, count in batches.items() if rows <= most)
