"""Figures that were measured, beside what was aimed for, in `bench/results/TARGET.json`.

A list of them, or an object that has them as `figures` beside what they were made of.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

RESULTS = Path(__file__).parent / "results"


class Figure(NamedTuple):
    """One measured number.

    Attributes:
        value: None where there was nothing to measure.
        aim: what it should be, in words a reader can check against `value`; None for a number that is only told.
        holds: whether it is; None where nothing was aimed for.
    """

    figure: str
    value: float | None
    unit: str
    aim: str | None = None
    holds: bool | None = None


def at_least(name: str, value: float | None, aim: float) -> Figure:
    """Returns a figure that should be at least `aim`; without a value the aim is missed."""
    return plain(name, value)._replace(aim=f">= {aim:g}", holds=value is not None and value >= aim)


def at_most(name: str, value: float | None, aim: float, unit: str = "", digits: int = 3) -> Figure:
    """Returns a figure that should be at most `aim`; without a value the aim is missed."""
    figure = plain(name, value, unit, digits)
    return figure._replace(aim=f"<= {aim:g}", holds=value is not None and value <= aim)


def plain(name: str, value: float | None, unit: str = "", digits: int = 3) -> Figure:
    """Returns a figure without an aim, rounded to `digits` decimals."""
    return Figure(name, None if value is None else float(round(value, digits)), unit)


def measured(target: str) -> list[Figure]:
    """The figures that were reported last; none where nothing was."""
    path = RESULTS / f"{target}.json"
    if not path.exists():
        return []
    said = json.loads(path.read_text())
    return [Figure(**row) for row in (said["figures"] if isinstance(said, dict) else said)]


def report(target: str, figures: Sequence[Figure]) -> int:
    """Write and print the figures of one make target; 0 where all hold, 1 where one does not (an exit code)."""
    write(target, figures)
    return tell(figures)


def write(target: str, figures: Sequence[Figure], beside: Mapping[str, Any] | None = None) -> None:
    """To the target's file, with what they were made of `beside` them."""
    RESULTS.mkdir(exist_ok=True)
    rows = [figure._asdict() for figure in figures]
    said = rows if beside is None else {**beside, "figures": rows}
    (RESULTS / f"{target}.json").write_text(json.dumps(said, indent=2) + "\n")


def tell(figures: Sequence[Figure]) -> int:
    """Prints them; 0 where all hold, 1 where one does not."""
    for figure in figures:
        value = "nothing" if figure.value is None else f"{figure.value:g} {figure.unit}"
        mark = "" if figure.aim is None else f" (aim: {figure.aim}) {'holds' if figure.holds else 'DOES NOT HOLD'}"
        print(f"{figure.figure}: {value}{mark}")
    return 1 if any(figure.holds is False for figure in figures) else 0
