"""Metrics that both tiers count alike, for Prometheus. Labels come from closed lists only."""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import accumulate

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_LATEST
from prometheus_client.registry import Collector

from firstline_core.errors import FirstlineError
from firstline_core.types import InferResponse, Reason, Status, Tier

# Seconds; from a cache hit (tens of microseconds) to a request that waits for its deadline.
LATENCY_BUCKETS_S = (
    0.00005, 0.0001, 0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0,
)  # fmt: skip


class RequestMetrics:
    """Counts answers, errors and latencies of one process.

    Args:
        process: "edge" or "gateway", the prefix of every metric: `firstline_edge_requests_total`.
    """

    def __init__(self, process: str) -> None:
        self.registry = CollectorRegistry()
        self._prefix = f"firstline_{process}"
        self._errors = Counter(
            f"{self._prefix}_errors_total", "Refused or failed requests by code.", ("code",), registry=self.registry
        )
        self._answers = _Answers(self._prefix)
        self.registry.register(self._answers)

    def observe(self, response: InferResponse, seconds: float) -> None:
        """Counts one answer."""
        answer = response.answer
        if answer is not None:
            self.observe_all((answer.tier, answer.reason, answer.status), (seconds,))

    def observe_all(self, labels: tuple[Tier, Reason, Status], seconds: Sequence[float]) -> None:
        """Counts answers that say the same of themselves, by how long each took."""
        self._answers.count(labels, seconds)

    def error(self, error: FirstlineError) -> None:
        """Counts one refusal or failure."""
        self._errors.labels(error.code).inc()

    def gauge(self, name: str, description: str, read: Callable[[], float]) -> None:
        """Adds a value that is read whenever somebody asks, e.g. the outbox's depth."""
        Gauge(f"{self._prefix}_{name}", description, registry=self.registry).set_function(read)

    def counter(self, name: str, description: str, labels: Sequence[str] = ()) -> Counter:
        """Adds a counter; label values must come from a closed list."""
        return Counter(f"{self._prefix}_{name}", description, labels, registry=self.registry)

    def histogram(self, name: str, description: str, buckets: Sequence[float]) -> Histogram:
        """Adds a histogram."""
        return Histogram(f"{self._prefix}_{name}", description, buckets=buckets, registry=self.registry)

    def readings(
        self,
        name: str,
        description: str,
        labels: Sequence[str],
        read: Callable[[], Mapping[tuple[str, ...], float]],
        *,
        counts: bool = False,
    ) -> None:
        """Adds values that others keep, by their labels; those that are not known now are left out of what is read.

        Args:
            name: after the process's prefix.
            description: for people.
            labels: their names; values must come from a closed list.
            read: asked whenever somebody asks.
            counts: a counter, which only grows.
        """
        family = CounterMetricFamily if counts else GaugeMetricFamily
        self.registry.register(_Readings(lambda: family(f"{self._prefix}_{name}", description, labels=labels), read))

    def render(self) -> tuple[bytes, str]:
        """The exposition text and its content type."""
        return generate_latest(self.registry), CONTENT_TYPE_LATEST


class _Answers(Collector):
    """Answers and their latencies as plain numbers, put into Prometheus' form when somebody asks.

    Args:
        prefix: of both metrics' names.
    """

    def __init__(self, prefix: str) -> None:
        self._prefix = prefix
        self._lock = threading.Lock()
        # By tier, reason and status: how many in each bucket and beyond the last, and their seconds together.
        self._found: dict[tuple[str, str, str], tuple[list[int], list[float]]] = {}

    def count(self, labels: tuple[str, str, str], seconds: Sequence[float]) -> None:
        """Counts answers that took so long each; from any thread."""
        with self._lock:
            found = self._found.get(labels)
            if found is None:
                found = self._found[labels] = [0] * (len(LATENCY_BUCKETS_S) + 1), [0.0]
            for each in seconds:
                found[0][bisect_left(LATENCY_BUCKETS_S, each)] += 1
            found[1][0] += sum(seconds)

    def describe(self) -> Iterable[Metric]:
        return self._families()

    def collect(self) -> Iterable[Metric]:
        answers, latencies = self._families()
        with self._lock:
            found = {labels: (tuple(counts), total_s) for labels, (counts, (total_s,)) in self._found.items()}
        bounds = [*map(str, map(float, LATENCY_BUCKETS_S)), "+Inf"]
        by_tier: dict[str, tuple[list[int], float]] = {}
        for labels, (counts, total_s) in found.items():
            answers.add_metric(labels, sum(counts))
            before, before_s = by_tier.get(labels[0], ([0] * len(counts), 0.0))
            by_tier[labels[0]] = [a + b for a, b in zip(before, counts, strict=True)], before_s + total_s
        for tier, (tier_counts, total_s) in by_tier.items():
            latencies.add_metric((tier,), list(zip(bounds, accumulate(tier_counts), strict=True)), total_s)
        return answers, latencies

    def _families(self) -> tuple[CounterMetricFamily, HistogramMetricFamily]:
        return (
            CounterMetricFamily(
                f"{self._prefix}_requests_total",
                "Answered requests by the tier that answered, the reason and the status.",
                labels=("tier", "reason", "status"),
            ),
            HistogramMetricFamily(
                f"{self._prefix}_request_seconds",
                "Time from a request's arrival to its first answer, by the tier that answered.",
                labels=("tier",),
            ),
        )


class _Readings(Collector):
    """Values that are asked for, and not kept."""

    def __init__(
        self,
        family: Callable[[], CounterMetricFamily | GaugeMetricFamily],
        read: Callable[[], Mapping[tuple[str, ...], float]],
    ) -> None:
        self._family = family
        self._read = read

    def describe(self) -> Iterable[Metric]:
        return [self._family()]

    def collect(self) -> Iterable[Metric]:
        found = self._family()
        for labels, value in self._read().items():
            found.add_metric(labels, value)
        return [found]
