"""Measured figures and their aims, in `bench/results/TARGET.json`.

The file contains a list of figures, or an object with `figures` and the raw results of the measurement.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

RESULTS = Path(__file__).parent / "results"


class Figure(NamedTuple):
    """One measured number.

    Attributes:
        value: None where there was nothing to measure.
        aim: what it should be, in words a reader can check against `value`; None for a number without an aim.
        holds: whether it is; None where nothing was aimed for.
    """

    figure: str
    value: float | None
    unit: str
    aim: str | None = None
    holds: bool | None = None


def at_least(name: str, value: float | None, aim: float, unit: str = "", digits: int = 3) -> Figure:
    """Returns a figure that should be at least `aim`; without a value the aim is missed."""
    figure = plain(name, value, unit, digits)
    return figure._replace(aim=f">= {aim:g}", holds=value is not None and value >= aim)


def at_most(name: str, value: float | None, aim: float, unit: str = "", digits: int = 3) -> Figure:
    """Returns a figure that should be at most `aim`; without a value the aim is missed."""
    figure = plain(name, value, unit, digits)
    return figure._replace(aim=f"<= {aim:g}", holds=value is not None and value <= aim)


def near(name: str, value: float, reference: float, within: float) -> Figure:
    """Returns a share that should be at most `within` away from a reference."""
    aim = f"{reference:g}, within {within:g}"
    return plain(name, value, "share", 4)._replace(aim=aim, holds=abs(value - reference) <= within)


def plain(name: str, value: float | None, unit: str = "", digits: int = 3) -> Figure:
    """Returns a figure without an aim, rounded to `digits` decimals."""
    return Figure(name, None if value is None else float(round(value, digits)), unit)


def stored(target: str) -> dict[str, Any]:
    """Returns the raw results of the last measurement, with its `figures`; {} if there was none."""
    path = RESULTS / f"{target}.json"
    content = json.loads(path.read_text()) if path.exists() else {}
    return content if isinstance(content, dict) else {"figures": content}


def measured(target: str) -> list[Figure]:
    """Returns the figures of the last measurement; empty if there was none."""
    return [Figure(**row) for row in stored(target).get("figures", ())]


def named(part: str, figures: Iterable[Figure]) -> list[Figure]:
    """Returns the figures with the part before their names."""
    return [figure._replace(figure=f"{part}: {figure.figure}") for figure in figures]


def keep(
    target: str,
    found: Mapping[str, Sequence[Figure]],
    parts: Iterable[str],
    record: Mapping[str, Any] | None = None,
) -> None:
    """Writes the figures of the parts that were measured; the other `parts` keep those of the last measurement."""
    before = measured(target)
    earlier = {part: [figure for figure in before if figure.figure.startswith(f"{part}: ")] for part in parts}
    now = {part: named(part, figures) for part, figures in found.items()}
    write(target, [figure for part in parts for figure in now.get(part, earlier[part])], record)


def write(target: str, figures: Sequence[Figure], record: Mapping[str, Any] | None = None) -> None:
    """To the target's file, with the raw `record` next to them."""
    RESULTS.mkdir(exist_ok=True)
    rows = [figure._asdict() for figure in figures]
    content = rows if record is None else {**record, "figures": rows}
    (RESULTS / f"{target}.json").write_text(json.dumps(content, indent=2) + "\n")


def tell(figures: Sequence[Figure]) -> int:
    """Prints figures; returns 0 if all aims hold, else 1."""
    for figure in figures:
        value = "nothing" if figure.value is None else f"{figure.value:g} {figure.unit}"
        mark = "" if figure.aim is None else f" (aim: {figure.aim}) {'holds' if figure.holds else 'DOES NOT HOLD'}"
        print(f"{figure.figure}: {value}{mark}")
    return 1 if any(figure.holds is False for figure in figures) else 0
