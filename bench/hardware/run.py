"""Runs the parts, and writes their figures and what they measured.

What is told is what this run measured, and why something that was asked for was not run; what is written also has what
earlier runs measured of other models.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from bench import page
from bench.figures import RESULTS, Figure, measured, tell, write
from bench.hardware import prediction, split
from bench.hardware.controller import runs as controller
from bench.hardware.controller.scenario import Stated
from bench.hardware.parts import Asked, Outcome, Part, by_model, whole
from bench.hardware.scheduler import runs as scheduler

TARGET = "hardware"
PAGES = Path(__file__).parents[2] / "docs"
MISSED, NOT_RUN = 1, 2


def main(arguments: Sequence[str] | None = None) -> int:
    """0 where all was run and every aim holds; 1 where an aim does not; 2 where something asked for was not run."""
    said = _parsed(arguments)
    asked = Asked(tuple(said.models), said.quick)
    told: list[Figure] = []
    missing: list[str] = []
    for name in said.only:
        part = PARTS[name]
        if asked.models and part.models and not set(asked.models) & set(part.models):
            continue  # it is asked of models that this part does not have
        before = _beside().get(name, {})
        outcome = part.run(before, asked)
        told += _of(name, outcome.told)
        missing += outcome.missing
        if outcome.beside is not None and not said.quick:
            _write(name, outcome)
    status = tell(told)
    for why in missing:
        print(why)
    return NOT_RUN if missing else status


def _parsed(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="bench_hardware.py", description=__doc__)
    parser.add_argument("--only", choices=PARTS, nargs="+", default=list(PARTS), help="parts (default: all)")
    parser.add_argument("--models", nargs="+", default=[], help="of the parts that have several (default: all)")
    parser.add_argument("--quick", action="store_true", help="see that it runs, with the fewest rounds; write nothing")
    said = parser.parse_args(arguments)
    known = sorted({model for name in said.only for model in PARTS[name].models})
    if unknown := sorted(set(said.models) - set(known)):
        parser.error(f"no part that is asked for has a model {unknown[0]!r}; they have {', '.join(known) or 'none'}")
    return said


def _write(name: str, outcome: Outcome) -> None:
    """To the file, part by part, and the pages that quote it; what is of a part that is no more leaves."""
    beside = {**_beside(), name: msgspec.to_builtins(outcome.beside)}
    rows = {part: [row for row in measured(TARGET) if row.figure.startswith(f"{part}: ")] for part in PARTS}
    rows[name] = _of(name, outcome.written)
    write(
        TARGET, [row for part in PARTS for row in rows[part]], {part: beside[part] for part in PARTS if part in beside}
    )
    for path in sorted(PAGES.glob("*.md")):
        if any(target == TARGET for target, _ in page.tables(path.read_text())):
            page.refill(path)


def _of(name: str, figures: Sequence[Figure]) -> list[Figure]:
    return [figure._replace(figure=f"{name}: {figure.figure}") for figure in figures]


def _beside() -> dict[str, Any]:
    path = RESULTS / f"{TARGET}.json"
    if not path.exists():
        return {}
    said = json.loads(path.read_text())
    return {name: value for name, value in said.items() if name != "figures"} if isinstance(said, dict) else {}


def _controller(_asked: Asked) -> tuple[Sequence[Figure], Any]:
    print("controller: an hour, and what it depends on", file=sys.stderr, flush=True)
    found, of = controller.measure()
    return found, {"stated": msgspec.to_builtins(Stated()), "measured": of}


def _scheduler(_asked: Asked) -> tuple[Sequence[Figure], Any]:
    return scheduler.measure()


PARTS: dict[str, Part] = {
    "split": by_model(
        "split",
        {subject.name: subject.pair for subject in split.SUBJECTS},
        split.Record,
        measure=split.measure,
        figures=split.figures,
    ),
    "controller": whole("controller", _controller),
    "prediction": by_model(
        "prediction",
        {pair.name: pair for pair in prediction.PAIRS},
        list[prediction.Trial],
        measure=prediction.measure,
        figures=prediction.figures,
    ),
    "scheduler": whole("scheduler", _scheduler),
}
