"""Runs the parts of the routing benchmark, prints their figures and writes them."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from types import ModuleType

from bench.figures import Figure, keep, named, tell
from bench.pools import CIFAR10, DATA, DIGITS, IMAGENET, TRAINSAMPLE, Pool, collect
from bench.routing import alarm, contract
from bench.routing.parts import Job, run

PARTS: dict[str, ModuleType] = {"contract": contract, "alarm": alarm}
_TARGET = "routing"


def pools() -> dict[str, Pool]:
    """Those whose data is there, by name; says which are not."""
    found = {}
    for pair in (DIGITS, CIFAR10, IMAGENET, TRAINSAMPLE):
        if (missing := pair.missing_in(DATA)) is not None:
            print(f"{pair.name} is left out: there is no {missing}.", file=sys.stderr)
            continue
        print(f"{pair.name}: collecting what the models say", file=sys.stderr, flush=True)
        found[pair.name] = collect(pair)
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    """0 where every aim holds, 1 where one does not."""
    parser = argparse.ArgumentParser(prog="python -m bench.routing", description=__doc__)
    parser.add_argument("--only", choices=PARTS, nargs="+", default=list(PARTS), help="parts (default: all)")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1, help="(default: %(default)s)")
    options = parser.parse_args(arguments)
    for threads in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"):  # one process a core is enough
        os.environ.setdefault(threads, "1")

    collected = pools()
    jobs: list[tuple[str, Job]] = [(name, job) for name in options.only for job in PARTS[name].jobs(collected)]
    found = run([job for _, job in jobs], options.processes)
    figures: dict[str, list[Figure]] = {}
    for name in options.only:
        records = [record for (part, _), given in zip(jobs, found, strict=True) if part == name for record in given]
        figures[name] = PARTS[name].figures(records)
    keep(_TARGET, figures, PARTS)
    return tell([figure for name in options.only for figure in named(name, figures[name])])
