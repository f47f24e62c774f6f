"""The statistics of a model in Triton's statistics extension: counts and durations since the process started.

https://github.com/triton-inference-server/server/blob/main/docs/protocol/extension_statistics.md
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

_NS_PER_S = 1_000_000_000


@dataclass(slots=True)
class Duration:
    """A count and the sum of the durations."""

    count: int = 0
    seconds: float = 0.0

    def add(self, seconds: float, times: int = 1) -> None:
        """Adds `times` events with a total duration."""
        self.count += times
        if seconds > 0:
            self.seconds += seconds

    @property
    def ns(self) -> int:
        return round(self.seconds * _NS_PER_S)


@dataclass(slots=True)
class OverheadTimes:
    """The share of the runs' time outside the model, as far as it is measured.

    Args:
        input_s: preparing inputs; each request of a batch counts all of it.
        output_s: distributing results, counted likewise.
        batches_s: both, by rows of the batch.
    """

    input_s: float = 0.0
    output_s: float = 0.0
    batches_s: dict[int, tuple[float, float]] = field(default_factory=dict)

    def add(self, requests: int, rows: int, input_s: float, output_s: float) -> None:
        """Counts a batch."""
        self.input_s += requests * input_s
        self.output_s += requests * output_s
        self._add_batches(rows, input_s, output_s)

    def include(self, other: OverheadTimes) -> None:
        """Adds measurements of another instance."""
        self.input_s += other.input_s
        self.output_s += other.output_s
        for rows, (input_s, output_s) in tuple(other.batches_s.items()):  # a thread may count a batch meanwhile
            self._add_batches(rows, input_s, output_s)

    def _add_batches(self, rows: int, input_s: float, output_s: float) -> None:
        before_input_s, before_output_s = self.batches_s.get(rows, (0.0, 0.0))
        self.batches_s[rows] = before_input_s + input_s, before_output_s + output_s


@dataclass(slots=True)
class ModelStatistics:
    """The statistics of one version of a model.

    Args:
        name: the bundle's.
        version: the bundle's.
        last_inference_s: wall time of the latest answer (seconds since 1970).
        inference_count: rows that the model answered.
        execution_count: runs of the model, one per batch.
        success: answered requests, from their arrival.
        fail: failed requests.
        queue: waiting time of requests.
        compute_infer: duration of the runs, including preparation and distribution; each request of a batch counts all
            of it.
        cache_hit: requests answered from the cache.
        cache_miss: requests not found in the cache.
        batches: runs by number of rows.
        overhead: time of preparation and distribution.
    """

    name: str
    version: str
    last_inference_s: float = 0.0
    inference_count: int = 0
    execution_count: int = 0
    success: Duration = field(default_factory=Duration)
    fail: Duration = field(default_factory=Duration)
    queue: Duration = field(default_factory=Duration)
    compute_infer: Duration = field(default_factory=Duration)
    cache_hit: Duration = field(default_factory=Duration)
    cache_miss: Duration = field(default_factory=Duration)
    batches: defaultdict[int, Duration] = field(default_factory=lambda: defaultdict(Duration))
    overhead: OverheadTimes = field(default_factory=OverheadTimes)

    def answered(self, seconds: float, now_s: float, times: int = 1) -> None:
        """Counts answers with a total duration, the last at this wall time."""
        self.success.add(seconds, times)
        self.last_inference_s = now_s

    def ran(self, rows: int, seconds: float, waits_s: Sequence[float]) -> None:
        """Counts a run: its rows, its duration and the waiting time of each request."""
        self.inference_count += rows
        self.execution_count += 1
        self.batches[rows].add(seconds)
        self.queue.add(sum(waits_s), len(waits_s))
        self.compute_infer.add(seconds * len(waits_s), len(waits_s))


def as_json(models: Iterable[ModelStatistics]) -> dict[str, Any]:
    """Returns Triton's JSON; parts that are not measured separately are 0."""
    return {"model_stats": [_model(each) for each in models]}


def _model(model: ModelStatistics) -> dict[str, Any]:
    computed, overhead = model.compute_infer, model.overhead
    return {
        "name": model.name,
        "version": model.version,
        "last_inference": round(model.last_inference_s * 1000),
        "inference_count": model.inference_count,
        "execution_count": model.execution_count,
        "inference_stats": {
            "success": _duration(model.success),
            "fail": _duration(model.fail),
            "queue": _duration(model.queue),
            **_computed(computed, overhead.input_s, overhead.output_s),
            "cache_hit": _duration(model.cache_hit),
            "cache_miss": _duration(model.cache_miss),
        },
        "batch_stats": [
            {"batch_size": rows, **_computed(spent, *overhead.batches_s.get(rows, (0.0, 0.0)))}
            for rows, spent in sorted(model.batches.items())
        ],
    }


def _computed(spent: Duration, input_s: float, output_s: float) -> dict[str, dict[str, int]]:
    """Returns the three parts of the runs' time, which add up to the total."""
    input_s = min(input_s, spent.seconds)
    output_s = min(output_s, spent.seconds - input_s)
    return {
        name: _duration(Duration(spent.count, seconds))
        for name, seconds in (
            ("compute_input", input_s),
            ("compute_infer", spent.seconds - input_s - output_s),
            ("compute_output", output_s),
        )
    }


def _duration(duration: Duration) -> dict[str, int]:
    return {"count": duration.count, "ns": duration.ns}
