"""The model without any server: `session.run` in a loop, in a process of its own on given cores.

python -m bench.serving.alone model.onnx --kind s --batch 64 --threads 1 --seconds 2
"""

from __future__ import annotations

import argparse
import itertools
import json
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np

from bench.serving.asking import session
from bench.serving.models import INPUT, KINDS, Kind, rows
from bench.serving.processes import Cores

_WARM_UP = 20


def measured(
    model: Path, kind: Kind, *, seconds: float, on: Cores, batch: int = 1, threads: int = 1, copies: int = 1
) -> dict[str, float]:
    """Rows a second of all threads together, and how long one run took; `copies` of the model are run in turn."""
    command = [sys.executable, "-m", "bench.serving.alone", model, "--kind", kind.name]
    command += ["--batch", batch, "--threads", threads, "--seconds", seconds, "--copies", copies]
    told = subprocess.run(
        ["taskset", "--cpu-list", ",".join(map(str, sorted(on))), *map(str, command)],
        capture_output=True,
        text=True,
        check=True,
        cwd=Path(__file__).parents[2],
    )
    found: dict[str, float] = json.loads(told.stdout)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", type=Path)
    parser.add_argument("--kind", choices=KINDS, required=True)
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--copies", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=2.0)
    asked = parser.parse_args()
    given = {INPUT: rows(KINDS[asked.kind], asked.batch)}
    took_s: list[list[float]] = [[] for _ in range(asked.threads)]

    def run(own: list[float]) -> None:
        sessions = [session(asked.model) for _ in range(asked.copies)]
        for alone in sessions * _WARM_UP:
            alone.run(None, given)
        in_turn = itertools.cycle(sessions)
        start.wait()
        end_s = time.perf_counter() + asked.seconds
        while (began_s := time.perf_counter()) < end_s:
            next(in_turn).run(None, given)
            own.append(time.perf_counter() - began_s)

    start = threading.Barrier(asked.threads)
    threads = [threading.Thread(target=run, args=(own,)) for own in took_s]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    rate = sum(len(own) * asked.batch / sum(own) for own in took_s)
    middle_us = float(np.median([s for own in took_s for s in own])) * 1e6
    print(json.dumps({"rate_per_s": round(rate, 1), "p50_us": round(middle_us, 2)}))


if __name__ == "__main__":
    main()
