"""Measure how rollouts are judged, and write the figures to `bench/results/fleet.json`."""

from __future__ import annotations

import argparse
import os
import sys

from bench.fleet.run import PARTS, Effort, measure, store
from bench.page import refill


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rollouts", type=int, default=1000, help="of the same model, and of a worse one")
    parser.add_argument("--devices", type=int, default=1000, help="simulated, under the driver")
    parser.add_argument("--processes", type=int, default=os.cpu_count(), help="that judge and simulate at once")
    parser.add_argument("--only", choices=PARTS, action="append", help="parts that are left out keep their figures")
    options = parser.parse_args()
    effort = Effort(options.rollouts, options.devices, options.processes)
    code = store(measure(effort, frozenset(options.only or PARTS)))
    refill("fleet")
    sys.exit(code)


if __name__ == "__main__":
    main()
