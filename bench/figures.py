"""Figures that were measured, beside what was aimed for, in `bench/results/TARGET.json`."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

RESULTS = Path(__file__).parent / "results"


class Figure(NamedTuple):
    """One measured number.

    Attributes:
        aim: what it should be, in words a reader can check against `value`.
        holds: whether it is.
    """

    figure: str
    value: float
    unit: str
    aim: str
    holds: bool


def report(target: str, figures: Sequence[Figure]) -> int:
    """Write and print the figures of one make target; 0 where all hold, 1 where one does not (an exit code)."""
    RESULTS.mkdir(exist_ok=True)
    rows = [figure._asdict() for figure in figures]
    (RESULTS / f"{target}.json").write_text(json.dumps(rows, indent=2) + "\n")
    for figure in figures:
        mark = "holds" if figure.holds else "DOES NOT HOLD"
        print(f"{figure.figure}: {figure.value:g} {figure.unit} (aim: {figure.aim}) {mark}")
    return 0 if all(figure.holds for figure in figures) else 1
