"""Measures what tracing costs a request while no spans are exported.

    python -m bench.tracing

Both tiers run in this process with the digits, as in `bench.request_path`. A request then reads `tracing.active` some
times and calls nothing of tracing. The reads are counted, and one read with its comparison is timed in pairs with a
loop that does nothing; the order within a pair alternates. Their product is the cost. Writes
bench/results/tracing.json and docs/benchmarks.md.
"""

from __future__ import annotations

import asyncio
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from itertools import islice
from pathlib import Path
from types import ModuleType

from bench.agent import agent
from bench.figures import Figure, at_most, plain
from bench.page import report
from bench.request_path import Infer, gateway, requests
from firstline_core.telemetry import tracing

_DIGITS = Path(__file__).parents[1] / "models" / "digits"
_PAIRS, _LOOPS, _REQUESTS = 101, 20_000, 50
_AIM_US = 1.0


class _Counted(ModuleType):
    """The module of tracing, which counts how often its state is looked at."""

    reads = 0

    @property
    def active(self) -> bool:
        _Counted.reads += 1
        return False


def read_us() -> float:
    """Returns the time of one look at whether spans are exported, in microseconds: the median over the pairs."""

    def looks() -> None:
        for _ in range(_LOOPS):
            if tracing.active:
                raise RuntimeError("spans are exported")

    def nothing() -> None:
        for _ in range(_LOOPS):
            pass

    differences = []
    for pair in range(_PAIRS):
        seconds = {}
        for run in (looks, nothing) if pair % 2 else (nothing, looks):
            started_s = time.perf_counter()
            run()
            seconds[run] = time.perf_counter() - started_s
        differences.append((seconds[looks] - seconds[nothing]) / _LOOPS * 1e6)
    return statistics.median(differences)


async def reads(infer: Infer, settle: Callable[[], None]) -> float:
    """Returns how often a request looks at whether spans are exported.

    Args:
        infer: answers a request.
        settle: does what the tier does a moment after its answers, such as counting them.
    """
    settle()
    _Counted.reads = 0
    for request in islice(requests(), _REQUESTS):
        await infer(request)
    settle()
    return _Counted.reads / _REQUESTS


async def measured() -> list[Figure]:
    """Measures both tiers."""
    each_us, found = read_us(), {}
    tracing.__class__ = _Counted
    with tempfile.TemporaryDirectory(prefix="firstline-tracing-") as name:
        async with agent(Path(name) / "state", _DIGITS / "bundle") as device:
            found["device"] = await reads(device.data_plane.infer, device.recorder.flush)
        async with gateway(Path(name)) as running:
            found["gateway"] = await reads(running.plane.infer, lambda: None)
    figures = [plain("a look at whether spans are exported", each_us, "us")]
    for tier, count in found.items():
        figures.append(plain(f"looks for each request on the {tier}", count))
        figures.append(at_most(f"tracing that is off, for each request on the {tier}", count * each_us, _AIM_US, "us"))
    return figures


if __name__ == "__main__":
    sys.exit(report("tracing", asyncio.run(measured())))
