"""Runs the parts of the hardware benchmark, and writes their figures and records.

A part without its data says so and keeps the figures of an earlier run.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from bench import page
from bench.figures import Figure, keep, named, stored, tell
from bench.hardware import prediction
from bench.hardware.controller import runs as controller

TARGET = "hardware"
MISSED, NOT_RUN = 1, 2

PARTS: dict[str, Callable[[bool], tuple[Sequence[Figure], Any]]] = {
    "controller": lambda quick: controller.measure(),
    "prediction": prediction.measure,
}
"""Each returns its figures and its record, after a brief trial if the argument is true; no figures without its data."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Returns 0 if all ran and every aim holds, 1 if an aim is missed, 2 if a requested part could not run."""
    parser = argparse.ArgumentParser(prog="python -m bench.hardware", description=__doc__)
    parser.add_argument("--only", choices=PARTS, nargs="+", default=list(PARTS), help="parts (default: all)")
    parser.add_argument("--quick", action="store_true", help="see that it runs, with the fewest rounds; write nothing")
    options = parser.parse_args(arguments)
    figures: list[Figure] = []
    missing = []
    for name in options.only:
        print(f"{name} is measured.", file=sys.stderr, flush=True)
        found, record = PARTS[name](options.quick)
        if not found:
            missing.append(name)
            continue
        figures += named(name, found)
        if not options.quick:
            records = {**stored(TARGET), name: msgspec.to_builtins(record)}
            keep(TARGET, {name: found}, PARTS, {part: records[part] for part in PARTS if part in records})
            page.refill(TARGET)
    status = tell(figures)
    for name in missing:
        print(f"{name} was not run, for the reason above.")
    return NOT_RUN if missing else status
