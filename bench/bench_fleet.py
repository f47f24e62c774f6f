"""`make bench-fleet`: false aborts, bad models found, and a thousand devices under the real engine and store."""

from __future__ import annotations

import argparse
import os
import sys

from fleet.run import keep, measure

PARTS = ("same", "worse", "devices")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rollouts", type=int, default=1000, help="of the same model, and of a worse one")
    parser.add_argument("--devices", type=int, default=1000, help="under the engine")
    parser.add_argument("--processes", type=int, default=os.cpu_count())
    parser.add_argument("--only", choices=PARTS, action="append")
    options = parser.parse_args()
    found = measure(options.rollouts, options.devices, options.processes, frozenset(options.only or PARTS))
    sys.exit(keep(found))


if __name__ == "__main__":
    main()
