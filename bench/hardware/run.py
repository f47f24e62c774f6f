"""Runs the parts that measure planning, adaptation and profiles; see docs/benchmarks.md.

A part without its data says so and keeps the figures of an earlier run.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from bench import parts
from bench.figures import Figure
from bench.hardware import prediction
from bench.hardware.controller import runs as controller

TARGET = "hardware"

PARTS: dict[str, Callable[[bool], tuple[Sequence[Figure], Any]]] = {
    "controller": lambda quick: controller.measure(),
    "prediction": prediction.measure,
}
"""Each returns its figures and its record, after a brief trial if the argument is true; no figures without its data."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Returns 0 if all ran and every aim holds, 1 if an aim is missed, 2 if a requested part could not run."""
    parser = argparse.ArgumentParser(prog="python -m bench.hardware.run", description=__doc__)
    parser.add_argument("--only", choices=PARTS, nargs="+", default=list(PARTS), help="parts (default: all)")
    parser.add_argument("--quick", action="store_true", help="see that it runs, with the fewest rounds; write nothing")
    options = parser.parse_args(arguments)
    measures = {name: partial(measure, options.quick) for name, measure in PARTS.items()}
    return parts.measure(TARGET, measures, options.only, quick=options.quick)


if __name__ == "__main__":
    sys.exit(main())
