"""Prometheus metrics of both tiers. Labels come from closed lists only."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector

from firstline_core.errors import FirstlineError
from firstline_core.telemetry import tracing
from firstline_core.types import InferResponse, TraceContext

# Seconds: from a cache hit (tens of microseconds) to a request that waits for its deadline.
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
        self._errors = self.counter("errors_total", "Refused or failed requests by code.", ("code",))
        described = "Answered requests by the tier that answered, the reason and the status."
        answers = self.counter("requests_total", described, ("tier", "reason", "status"))
        latencies = Histogram(
            f"{self._prefix}_request_seconds",
            "Time from a request's arrival to its first answer, by the tier that answered.",
            ("tier",),
            registry=self.registry,
            buckets=LATENCY_BUCKETS_S,
        )
        # The library takes longer to find the counter of some labels than to count.
        self._answers, self._latencies = cache(answers.labels), cache(latencies.labels)

    def observe(self, response: InferResponse, seconds: float, trace: TraceContext | None = None) -> None:
        """Counts one answer and its time from the request's arrival; an exported trace is an exemplar of that time."""
        answer = response.answer
        if answer is not None:
            exemplar = {"trace_id": trace.trace_id} if trace is not None and tracing.is_sampled(trace) else None
            self._answers(answer.tier, answer.reason, answer.status).inc()
            self._latencies(answer.tier).observe(seconds, exemplar)

    def count_error(self, error: FirstlineError) -> None:
        """Counts one refusal or failure."""
        self._errors.labels(error.code).inc()

    def gauge(self, name: str, description: str, read: Callable[[], float]) -> None:
        """Adds a gauge that is read at each scrape, e.g. the depth of the outbox."""
        Gauge(f"{self._prefix}_{name}", description, registry=self.registry).set_function(read)

    def counter(self, name: str, description: str, labels: Sequence[str] = ()) -> Counter:
        """Adds a counter; label values must come from a closed list."""
        return Counter(f"{self._prefix}_{name}", description, labels, registry=self.registry)

    def readings(
        self, name: str, description: str, labels: Sequence[str], read: Callable[[], Mapping[tuple[str, ...], float]]
    ) -> None:
        """Adds values by labels that are read at each scrape; unknown values are left out.

        Args:
            name: after the process's prefix. That of a counter, which only grows, ends in "_total".
            description: help text of the metric.
            labels: names; their values must come from a closed list.
            read: called at each scrape.
        """

        def family() -> CounterMetricFamily | GaugeMetricFamily:
            kind = CounterMetricFamily if name.endswith("_total") else GaugeMetricFamily
            found = kind(f"{self._prefix}_{name}", description, labels=labels)
            if "quantile" in labels:  # only summaries have this label
                found.type = "summary"
            return found

        self.registry.register(_Readings(family, read))

    def render(self, accept: str = "") -> tuple[bytes, str]:
        """Returns the exposition text and its content type; exemplars are part of OpenMetrics only.

        Args:
            accept: the `Accept` header of the request.
        """
        encode, content_type = choose_encoder(accept)
        return encode(self.registry), content_type


@dataclass(eq=False)
class _Readings(Collector):
    """A collector that reads its values at each scrape."""

    family: Callable[[], CounterMetricFamily | GaugeMetricFamily]
    read: Callable[[], Mapping[tuple[str, ...], float]]

    def describe(self) -> Iterable[Metric]:
        return [self.family()]

    def collect(self) -> Iterable[Metric]:
        family = self.family()
        for labels, value in self.read().items():
            family.add_metric(labels, value)
        return [family]
