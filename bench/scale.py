"""What one request, connection and delivery cost, and what fleets of 1 to 1,000,000 devices need by that: `make scale`.

    python bench/scale.py [--connections N] [--arithmetic]

Starts a gateway, PostgreSQL and Mosquitto, asks them, writes bench/results/scale.json and the tables of docs/scale.md
(two minutes). With --arithmetic nothing is measured: the tables are made anew from the last measurement.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import tempfile
from pathlib import Path

from figures import RESULTS, tell, write
from scaling import page
from scaling.fleet import DEVICES, Assumptions, Units, step


def main() -> int:
    """Measures, and writes what comes of it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--connections", type=int, default=4000, help="to one broker (default: %(default)s)")
    parser.add_argument("--arithmetic", action="store_true", help="from the last measurement")
    wanted = parser.parse_args()
    if wanted.arithmetic:
        units = Units(**json.loads((RESULTS / "scale.json").read_text())["units"])
    else:
        from scaling.units import measure  # it starts processes by what the tests have for that

        with tempfile.TemporaryDirectory(prefix="firstline-scale-", ignore_cleanup_errors=True) as folder:
            units = asyncio.run(measure(Path(folder), wanted.connections))
    given = Assumptions()
    steps = [step(devices, units, given) for devices in DEVICES]
    found = page.figures(units)
    write("scale", found, {"units": units._asdict(), "steps": [each._asdict() for each in steps]})
    page.refill()
    return tell(found)


if __name__ == "__main__":
    sys.exit(main())
