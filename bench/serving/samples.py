"""What was measured, one line for each measurement of each round: figures are made of these and of nothing else."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from bench.serving.wrk import Load


class Sample(NamedTuple):
    """One measurement.

    Attributes:
        part: of the benchmark.
        who: what was measured ("gateway", "raw ASGI").
        what: how ("S binary, 32 in flight").
        values: by name and unit ("rate_per_s").
    """

    part: str
    round: int
    who: str
    what: str
    values: dict[str, float]


def of_load(part: str, number: int, who: str, what: str, load: Load) -> Sample:
    """All that a load told."""
    values = {
        "rate_per_s": load.rate,
        "cpu_us": load.cpu_us,
        "p50_us": load.p50_us,
        "p90_us": load.p90_us,
        "p99_us": load.p99_us,
        "requests": load.requests,
        "bad": load.bad,
        "server_share": load.server_cpu_s / load.seconds,
        "client_share": load.client_cpu_s / load.seconds,
        "memory_mb": load.memory_mb,
    }
    return Sample(part, number, who, what, {name: round(value, 3) for name, value in values.items()})


def values(samples: Iterable[Sample], who: str, what: str, name: str) -> list[float]:
    """One for each round."""
    return [one.values[name] for one in samples if (one.who, one.what) == (who, what) and name in one.values]


def median(samples: Iterable[Sample], who: str, what: str, name: str) -> float | None:
    """Over the rounds; None where it was not measured."""
    found = values(samples, who, what, name)
    return statistics.median(found) if found else None


def ratio(
    samples: Sequence[Sample], over: tuple[str, str], under: tuple[str, str], name: str = "rate_per_s"
) -> float | None:
    """Of the medians of two, each told by who and what."""
    above, below = median(samples, *over, name), median(samples, *under, name)
    return None if above is None or not below else above / below
