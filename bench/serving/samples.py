"""How much is measured, and the samples that figures are made of: one for each measurement of each round."""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from bench.serving.wrk import Load


@dataclass(frozen=True)
class Effort:
    """The defaults are what the committed figures were made with.

    Attributes:
        rounds: in which everything is measured once; figures are ratios of medians over them.
        seconds: of each load.
        quick: everything once and briefly, to see that it works; its figures mean nothing.
    """

    rounds: int = 5
    seconds: int = 3
    quick: bool = False
    began_s: float = field(default_factory=time.monotonic)

    @property
    def warm_up_s(self) -> int:
        """Before each load."""
        return 0 if self.quick else 1

    def requests(self, in_flight: int) -> int:
        """Maximum number of requests in a load with that many in flight; 0 for no limit."""
        return in_flight if self.quick else 0

    def progress(self, what: str) -> None:
        """Prints to stderr what is measured now, with the time so far."""
        print(f"[{time.monotonic() - self.began_s:5.0f} s] {what}", file=sys.stderr, flush=True)


QUICK = Effort(rounds=1, seconds=1, quick=True)


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
        "p99_us": load.p99_us,
        "requests": load.requests,
        "bad": load.bad,
        "client_share": load.client_cpu_s / load.seconds,
    }
    return Sample(part, number, who, what, {name: round(value, 3) for name, value in values.items()})


def median(samples: Iterable[Sample], who: str, what: str, name: str) -> float | None:
    """Over the rounds; None where it was not measured."""
    found = [one.values[name] for one in samples if (one.who, one.what) == (who, what) and name in one.values]
    return statistics.median(found) if found else None


def ratio(
    samples: Sequence[Sample], over: tuple[str, str], under: tuple[str, str], name: str = "rate_per_s"
) -> float | None:
    """Of the medians of two, each told by who and what."""
    above, below = median(samples, *over, name), median(samples, *under, name)
    return None if above is None or not below else above / below
