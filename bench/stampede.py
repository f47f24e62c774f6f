"""What a gateway sees when it comes back and a fleet was waiting: real links, breakers and delivery, simulated time."""

from __future__ import annotations

import argparse
import bisect
import statistics
import sys
import time
from collections.abc import Sequence

from bench.figures import Figure
from bench.page import report
from bench.simulation.fleet import Fleet, Seen, come_back
from bench.simulation.simulated_time import LoopClock, simulate

_AIM_PEAK = 3.0


def busiest_s(times_s: list[float], from_s: float, until_s: float, width_s: float = 1.0) -> float:
    """The most in any such stretch, as a rate (per second); stretches begin where something comes."""
    times_s = sorted(when_s for when_s in times_s if from_s <= when_s < until_s)
    most = max((bisect.bisect_left(times_s, when_s + width_s) - at for at, when_s in enumerate(times_s)), default=0)
    return most / width_s


def once(fleet: Fleet, seen: Seen) -> dict[str, float]:
    """The numbers of one seed, by what they are called in the figures."""
    steady_s = fleet.devices * fleet.per_device_s
    return {
        "busiest second after the restart, over the steady rate": busiest_s(seen.requests, seen.back_s, seen.drained_s)
        / steady_s,
        "busiest second of the first five, over the steady rate": busiest_s(seen.requests, seen.back_s, seen.back_s + 5)
        / steady_s,
        "probes in their busiest second": busiest_s(seen.probes, seen.back_s, seen.drained_s),
        "requests that the gateway refused": 100 * seen.refused / max(1, len(seen.requests)),
        "until all that was promised meanwhile is kept": seen.drained_s - seen.back_s,
        "promises not kept after an hour": seen.unkept,
    }


_UNITS = {"busiest": "times", "probes": "/s", "requests": "%", "until": "s"}
"""By how the figure's name begins."""


def figures(fleet: Fleet, runs: Sequence[dict[str, float]]) -> list[Figure]:
    """Medians over the seeds; of what is aimed for the worst of them."""
    steady_s = fleet.devices * fleet.per_device_s
    ideal_s = fleet.away_s * steady_s / (fleet.capacity_s - steady_s)
    what = f"{fleet.devices} devices"
    found = [
        Figure(f"{what}: seeds, whose medians are reported", len(runs), ""),
        Figure(f"{what}: steady rate", steady_s, "/s"),
        Figure(f"{what}: capacity of the gateway, over the steady rate", fleet.capacity_s / steady_s, "times"),
    ]
    for name in runs[0]:
        values = [run[name] for run in runs]
        unit = next((unit for begin, unit in _UNITS.items() if name.startswith(begin)), "")
        if name == "promises not kept after an hour":
            found.append(Figure(f"{what}: {name}", sum(values), "", "0", not any(values)))
            continue
        found.append(Figure(f"{what}: {name}", round(statistics.median(values), 2), unit))
        if name.startswith("busiest second after"):
            worst = round(max(values), 2)
            aim = f"<= {_AIM_PEAK:g}"
            found.append(Figure(f"{what}: the same, of the worst seed", worst, unit, aim, worst <= _AIM_PEAK))
        elif name.startswith("until"):
            found.append(Figure(f"{what}: the same, if no moment of the gateway's were lost", round(ideal_s, 1), "s"))
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=0, help="the first")
    parser.add_argument("--seeds", type=int, default=5)
    arguments = parser.parse_args()
    fleet, runs = Fleet(), []
    for seed in range(arguments.seed, arguments.seed + arguments.seeds):
        began_s = time.perf_counter()
        seen = simulate(come_back(fleet, LoopClock(), seed))
        runs.append(once(fleet, seen))
        seconds = time.perf_counter() - began_s
        print(f"seed {seed}: {seconds:.0f} s for {seen.drained_s:.0f} simulated", file=sys.stderr, flush=True)
    return report("stampede", figures(fleet, runs))


if __name__ == "__main__":
    sys.exit(main())
