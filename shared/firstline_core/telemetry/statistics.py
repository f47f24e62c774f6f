"""What Triton's statistics extension tells of a model: how often, and for how long, since the process began.

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
    """So many times, and all their time together."""

    count: int = 0
    seconds: float = 0.0

    def add(self, seconds: float, times: int = 1) -> None:
        """Adds `times` that took so long together."""
        self.count += times
        if seconds > 0:
            self.seconds += seconds

    @property
    def ns(self) -> int:
        return round(self.seconds * _NS_PER_S)


@dataclass(slots=True)
class Apart:
    """What of the runs' time was not the model's own, as far as it is measured.

    Args:
        input_s: preparing inputs, each request of a batch counting all of it.
        output_s: handing out results, likewise.
        batches_s: both, by the rows of the batch.
    """

    input_s: float = 0.0
    output_s: float = 0.0
    batches_s: dict[int, tuple[float, float]] = field(default_factory=dict)

    def add(self, requests: int, rows: int, input_s: float, output_s: float) -> None:
        """Counts a batch."""
        self.input_s += requests * input_s
        self.output_s += requests * output_s
        before = self.batches_s.get(rows, (0.0, 0.0))
        self.batches_s[rows] = before[0] + input_s, before[1] + output_s

    def include(self, other: Apart) -> None:
        """Counts what was measured elsewhere."""
        self.input_s += other.input_s
        self.output_s += other.output_s
        for rows, (input_s, output_s) in other.batches_s.items():
            before = self.batches_s.get(rows, (0.0, 0.0))
            self.batches_s[rows] = before[0] + input_s, before[1] + output_s


@dataclass(slots=True)
class ModelStatistics:
    """One version of a model.

    Args:
        name: the bundle's.
        version: the bundle's.
        last_inference_s: wall time of the latest answer, since 1970.
        inference_count: rows that the model answered, in however few runs.
        execution_count: runs of the model.
        success: requests that were answered, from their arrival on.
        fail: those that were not.
        queue: how long requests waited for their run.
        compute_infer: how long their run took, preparing and handing out included: a request of a batch counts all
            of the batch's time.
        cache_hit: requests whose answer was known.
        cache_miss: those whose answer was looked for and not known.
        batches: runs by their rows.
        apart: what of that was preparing and handing out.
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
    apart: Apart = field(default_factory=Apart)

    def answered(self, seconds: float, now_s: float, times: int = 1) -> None:
        """Counts answers that took so long together, the last at this wall time."""
        self.success.add(seconds, times)
        self.last_inference_s = now_s

    def ran(self, rows: int, seconds: float, waits_s: Sequence[float]) -> None:
        """Counts a run: its rows, how long it took, and how long each of its requests had waited."""
        self.inference_count += rows
        self.execution_count += 1
        self.batches[rows].add(seconds)
        self.queue.add(sum(waits_s), len(waits_s))
        self.compute_infer.add(seconds * len(waits_s), len(waits_s))


def as_json(found: Iterable[ModelStatistics]) -> dict[str, Any]:
    """Triton's form; what is not measured apart is 0."""
    return {"model_stats": [_model(each) for each in found]}


def _model(found: ModelStatistics) -> dict[str, Any]:
    computed, apart = found.compute_infer, found.apart
    return {
        "name": found.name,
        "version": found.version,
        "last_inference": round(found.last_inference_s * 1000),
        "inference_count": found.inference_count,
        "execution_count": found.execution_count,
        "inference_stats": {
            "success": _duration(found.success),
            "fail": _duration(found.fail),
            "queue": _duration(found.queue),
            **_computed(computed, apart.input_s, apart.output_s),
            "cache_hit": _duration(found.cache_hit),
            "cache_miss": _duration(found.cache_miss),
        },
        "batch_stats": [
            {"batch_size": rows, **_computed(spent, *apart.batches_s.get(rows, (0.0, 0.0)))}
            for rows, spent in sorted(found.batches.items())
        ],
    }


def _computed(spent: Duration, input_s: float, output_s: float) -> dict[str, dict[str, int]]:
    """The three parts of what runs took, which add up to it."""
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


def _duration(found: Duration) -> dict[str, int]:
    return {"count": found.count, "ns": found.ns}
