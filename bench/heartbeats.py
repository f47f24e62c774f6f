"""What 1,000 and 10,000 devices' heartbeats take a gateway, and a rollout to them: `make heartbeats`.

    python bench/heartbeats.py [--devices 1000 10000]    # crowds that are left out keep their figures

Starts a gateway with SQLite and a Mosquitto for each crowd, which is stood for over MQTT; devices come, each says once
a minute what it counted, and then all of them take a rollout. Writes bench/results/heartbeats.json (five minutes).
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import tempfile
from pathlib import Path

from crowd import table
from crowd.measure import Effort, measure
from figures import RESULTS, tell, write
from serving import machine


def main() -> int:
    """Measures, and writes what comes of it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--devices", type=int, nargs="+", default=[1000, 10_000], help="of each crowd")
    parser.add_argument("--queue", type=int, default=20_000, help="words that the broker keeps for a slow gateway")
    wanted = parser.parse_args()
    described, path = machine.described(), RESULTS / "heartbeats.json"
    before = [table.Run(**run) for run in json.loads(path.read_text())["runs"]] if path.exists() else []
    by_size = {run.devices: run for run in before}
    for devices in wanted.devices:
        with tempfile.TemporaryDirectory(prefix="firstline-heartbeats-", ignore_cleanup_errors=True) as folder:
            by_size[devices] = asyncio.run(measure(Path(folder) / "site", devices, Effort(queue=wanted.queue)))
    runs = [by_size[devices] for devices in sorted(by_size)]
    found = table.figures(runs)
    write("heartbeats", found, {"machine": described, "runs": [run._asdict() for run in runs]})
    print(table.table(runs))
    return tell([figure for figure in found if figure.aim is not None])


if __name__ == "__main__":
    sys.exit(main())
