"""What a gateway sees when it comes back and a fleet was waiting: real links, breakers and delivery, simulated time."""

from __future__ import annotations

import argparse
import bisect
import sys
import time

from figures import Figure, report
from simulation.fleet import Fleet, Seen, come_back
from simulation.simulated_time import LoopClock, simulate

_AIM_PEAK = 3.0


def busiest_s(times_s: list[float], from_s: float, until_s: float, width_s: float = 1.0) -> float:
    """The most in any such stretch, as a rate (per second); stretches begin where something comes."""
    times_s = sorted(when_s for when_s in times_s if from_s <= when_s < until_s)
    most = max((bisect.bisect_left(times_s, when_s + width_s) - at for at, when_s in enumerate(times_s)), default=0)
    return most / width_s


def figures(fleet: Fleet, seen: Seen) -> list[Figure]:
    steady_s = fleet.devices * fleet.per_device_s
    spare_s = fleet.capacity_s - steady_s
    ideal_s = fleet.away_s * steady_s / spare_s
    peak = busiest_s(seen.requests, seen.back_s, seen.drained_s) / steady_s
    first = busiest_s(seen.requests, seen.back_s, seen.back_s + 5) / steady_s
    probes_s = busiest_s(seen.probes, seen.back_s, seen.drained_s)
    drain_s = seen.drained_s - seen.back_s
    refused = seen.refused / max(1, len(seen.requests))
    what = f"{fleet.devices} devices"
    holds = peak <= _AIM_PEAK
    return [
        Figure(f"{what}: steady rate", steady_s, "/s"),
        Figure(f"{what}: what the gateway can answer, over the steady rate", fleet.capacity_s / steady_s, "times"),
        Figure(
            f"{what}: busiest second after the restart, over the steady rate",
            round(peak, 2),
            "times",
            f"<= {_AIM_PEAK:g}",
            holds,
        ),
        Figure(f"{what}: busiest second of the first five, over the steady rate", round(first, 2), "times"),
        Figure(f"{what}: probes in their busiest second", probes_s, "/s"),
        Figure(f"{what}: requests that the gateway refused", round(100 * refused, 2), "%"),
        Figure(f"{what}: until all that was promised meanwhile is kept", round(drain_s, 1), "s"),
        Figure(f"{what}: the same, if no moment of the gateway's were lost", round(ideal_s, 1), "s"),
        Figure(f"{what}: promises not kept after an hour", seen.unkept, "", "0", seen.unkept == 0),
    ]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--devices", type=int, default=1000)
    parser.add_argument("--away", type=float, default=120.0, help="seconds for which the gateway is away")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    fleet = Fleet(devices=arguments.devices, capacity_s=0.4 * arguments.devices, away_s=arguments.away)
    began_s = time.perf_counter()
    seen = simulate(come_back(fleet, LoopClock(), arguments.seed))
    print(f"{time.perf_counter() - began_s:.0f} s for {seen.drained_s:.0f} simulated", file=sys.stderr)
    return report("stampede", figures(fleet, seen))


if __name__ == "__main__":
    sys.exit(main())
