"""Measures whether routing keeps its promises; see docs/benchmarks.md."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from functools import partial
from types import ModuleType

from bench.figures import Figure
from bench.parts import measure
from bench.pools import CIFAR10, DATA, DIGITS, IMAGENET, TRAINSAMPLE, Pool, collect
from bench.routing import alarm, contract
from bench.routing.parts import run

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
    """Returns 0 if all ran and every aim holds, 1 if an aim is missed, 2 if a part has no data."""
    parser = argparse.ArgumentParser(prog="python -m bench.routing.run", description=__doc__)
    parser.add_argument("--only", choices=PARTS, nargs="+", default=list(PARTS), help="parts (default: all)")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1, help="(default: %(default)s)")
    options = parser.parse_args(arguments)
    for threads in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"):  # one process a core is enough
        os.environ.setdefault(threads, "1")
    collected = pools()
    measures = {name: partial(_measured, part, collected, options.processes) for name, part in PARTS.items()}
    return measure(_TARGET, measures, options.only)


def _measured(part: ModuleType, collected: dict[str, Pool], processes: int) -> tuple[list[Figure], None]:
    """Runs the jobs of a part; see `parts.Part`."""
    return part.figures(run(part.jobs(collected), processes)), None


if __name__ == "__main__":
    sys.exit(main())
