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

    def answered(self, seconds: float, now_s: float) -> None:
        """Counts an answer that took so long, at this wall time."""
        self.success.add(seconds)
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
    apart = {"count": found.compute_infer.count, "ns": 0}  # part of compute_infer
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
            "compute_input": apart,
            "compute_infer": _duration(found.compute_infer),
            "compute_output": apart,
            "cache_hit": _duration(found.cache_hit),
            "cache_miss": _duration(found.cache_miss),
        },
        "batch_stats": [
            {
                "batch_size": rows,
                "compute_input": {"count": spent.count, "ns": 0},
                "compute_infer": _duration(spent),
                "compute_output": {"count": spent.count, "ns": 0},
            }
            for rows, spent in sorted(found.batches.items())
        ],
    }


def _duration(found: Duration) -> dict[str, int]:
    return {"count": found.count, "ns": found.ns}
