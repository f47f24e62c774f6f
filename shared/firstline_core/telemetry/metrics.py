"""Prometheus metrics of both tiers. Labels come from closed lists only."""

from __future__ import annotations

import time
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate

from prometheus_client import CollectorRegistry, Counter, Gauge
from prometheus_client.core import CounterMetricFamily, Exemplar, GaugeMetricFamily, HistogramMetricFamily, Metric
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
        self._answers: defaultdict[tuple[str, ...], int] = defaultdict(int)
        self.readings("requests_total", described, ("tier", "reason", "status"), self._answers.copy)
        described = "Time from a request's arrival to its first answer, by the tier that answered."
        self._latencies = self.distribution("request_seconds", described, LATENCY_BUCKETS_S, "tier")

    def observe(self, response: InferResponse, seconds: float, trace: TraceContext | None = None) -> None:
        """Counts one answer and its time from the request's arrival; an exported trace is an exemplar of that time."""
        answer = response.answer
        if answer is not None:
            exemplar = {"trace_id": trace.trace_id} if trace is not None and tracing.is_sampled(trace) else None
            self._answers[answer.tier, answer.reason, answer.status] += 1
            self._latencies.add(seconds, answer.tier, exemplar)

    def count_error(self, error: FirstlineError) -> None:
        """Counts one refusal or failure."""
        self._errors.labels(error.code).inc()

    def gauge(self, name: str, description: str, read: Callable[[], float]) -> None:
        """Adds a gauge that is read at each scrape, e.g. the depth of the outbox."""
        Gauge(f"{self._prefix}_{name}", description, registry=self.registry).set_function(read)

    def counter(self, name: str, description: str, labels: Sequence[str] = ()) -> Counter:
        """Adds a counter; label values must come from a closed list."""
        return Counter(f"{self._prefix}_{name}", description, labels, registry=self.registry)

    def distribution(self, name: str, description: str, buckets: Sequence[float], label: str = "") -> Distribution:
        """Adds a histogram.

        Args:
            name: after the process's prefix.
            description: help text of the metric.
            buckets: their upper bounds, the least first.
            label: its name, or ""; values must come from a closed list.
        """
        added = Distribution(f"{self._prefix}_{name}", description, buckets, label)
        self.registry.register(added)
        return added

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


@dataclass(slots=True)
class _Counts:
    """The values with one label: their number by bucket, the latest exemplar of each bucket, and their sum."""

    values: list[int]
    exemplars: dict[int, Exemplar] = field(default_factory=dict)
    total: float = 0.0


@dataclass(eq=False)
class Distribution(Collector):
    """A histogram that is converted for Prometheus at each scrape: the library takes as long to count as a quick model.

    Belongs to one thread, apart from the scrapes.

    Args:
        name: of the metric.
        description: help text of the metric.
        buckets: their upper bounds, the least first.
        label: its name, or "".
    """

    name: str
    description: str
    buckets: Sequence[float]
    label: str = ""

    def __post_init__(self) -> None:
        self._of: dict[str, _Counts] = {}  # by the label's value
        if not self.label:
            self._begin("")

    def add(self, value: float, label: str = "", exemplar: Mapping[str, str] | None = None) -> None:
        """Counts a value, with the labels of an exemplar."""
        counts = self._of.get(label) or self._begin(label)
        bucket = bisect_left(self.buckets, value)
        counts.values[bucket] += 1
        counts.total += value
        if exemplar is not None:
            counts.exemplars[bucket] = Exemplar(dict(exemplar), value, time.time())

    def _begin(self, label: str) -> _Counts:
        counts = self._of[label] = _Counts([0] * (len(self.buckets) + 1))
        return counts

    def describe(self) -> Iterable[Metric]:
        return [HistogramMetricFamily(self.name, self.description)]

    def collect(self) -> Iterable[Metric]:
        family = HistogramMetricFamily(self.name, self.description, labels=[self.label] if self.label else [])
        bounds = [*map(str, map(float, self.buckets)), "+Inf"]
        for label, counts in self._of.copy().items():
            sums = zip(bounds, accumulate(counts.values), strict=True)
            exemplars = counts.exemplars
            buckets = [(*each, exemplars[place]) if place in exemplars else each for place, each in enumerate(sums)]
            family.add_metric([label] if self.label else [], buckets, counts.total)
        return [family]
