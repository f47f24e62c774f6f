"""Measure what a request costs on the device beyond the model: a confident answer, a memory hit and a disk hit.

    python -m bench.agent [--requests 2000] [--repeats 5]

Each is timed next to `session.run` on the same input in the same loop. A figure is that of the best repeat, because
other work on the machine is not the device's cost. Writes bench/results/agent.json.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from bench.device import in_process
from bench.device.in_process import Times
from bench.figures import Figure, report

_AIMS_US = {"memory hit": 80.0, "disk hit": 160.0}
_CONFIDENT_AIM_US = 80.0


def in_process_figures(repeats: Sequence[Times]) -> list[Figure]:
    """Of the repeat with the quickest model, p50 and p99 (us), and how many times as long as the model that is."""
    figures: list[Figure] = []
    model_us = min(_quantile(times["session.run"], 0.5) for times in repeats)
    extra_us = min(_quantile(t["confident"], 0.5) - _quantile(t["session.run"], 0.5) for t in repeats)
    aim = f"<= {_CONFIDENT_AIM_US:g}"
    figures.append(
        Figure(
            "in process: confident answer minus session.run, p50",
            round(extra_us, 2),
            "us",
            aim,
            extra_us <= _CONFIDENT_AIM_US,
        )
    )
    for name in repeats[0]:
        p50_us, p99_us = (min(_quantile(times[name], share) for times in repeats) for share in (0.5, 0.99))
        aim_us = _AIMS_US.get(name)
        holds = None if aim_us is None else p50_us <= aim_us
        aim_said = None if aim_us is None else f"<= {aim_us:g}"
        figures.append(Figure(f"in process: {name}, p50", round(p50_us, 2), "us", aim_said, holds))
        figures.append(Figure(f"in process: {name}, p99", round(p99_us, 2), "us"))
        if name != "session.run":
            figures.append(Figure(f"in process: {name} / session.run, p50", round(p50_us / model_us, 2), "times"))
    return figures


def _quantile(values: Sequence[float], share: float) -> float:
    return float(np.quantile(values, share))


async def measured(requests: int, repeats: int) -> list[Figure]:
    """All figures, agents and bundles in a temporary folder."""
    with tempfile.TemporaryDirectory(prefix="firstline-agent-") as folder:
        found = [await in_process.measure(Path(folder), requests, repeat) for repeat in range(repeats)]
        return in_process_figures(found)


def main() -> int:
    """Measures and reports; see the module."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=2000, help="of each kind in a repeat")
    parser.add_argument("--repeats", type=int, default=5)
    given = parser.parse_args()
    return report("agent", asyncio.run(measured(given.requests, given.repeats)))


if __name__ == "__main__":
    sys.exit(main())
