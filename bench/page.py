"""Pages of docs/ whose tables are filled with the figures that were measured: the words are the page's own."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from pathlib import Path

import figures
from figures import Figure

_TABLE = re.compile(r"(<!-- figures: ([\w-]+)(?:/(\w+))?(?: (aims|missed))? -->\n).*?(<!-- end -->)", re.DOTALL)


def filled(page: str, measured: Callable[[str], Sequence[Figure]]) -> str:
    """The page with each of its tables as it was measured; what never was has an empty one.

    Args:
        page: with tables between `<!-- figures: TARGET -->`, or `TARGET/PART`, and `<!-- end -->`; with `aims` after it
            only of what was aimed for, with `missed` only of what does not hold.
        measured: the figures of a target.
    """

    def table(match: re.Match[str]) -> str:
        part = f"{match[3]}: " if match[3] else ""
        rows = [
            _row(figure, part)
            for figure in measured(match[2])
            if figure.figure.startswith(part)
            and (match[4] is None or figure.aim is not None)
            and (match[4] != "missed" or figure.holds is False)
        ]
        body = "\n".join(["| figure | measured | aim |", "|---|---|---|", *rows, ""]) if rows else ""
        return match[1] + body + match[5]

    return _TABLE.sub(table, page)


def refill(path: Path) -> None:
    """Writes a page anew, from what was measured last."""
    path.write_text(filled(path.read_text(), figures.measured))


def tables(page: str) -> list[tuple[str, str]]:
    """The targets and parts that the page has tables for."""
    return [(target, part) for _, target, part, _, _ in _TABLE.findall(page)]


def _row(figure: Figure, part: str) -> str:
    value = "nothing" if figure.value is None else f"{figure.value:,} {figure.unit}".strip()
    aim = f"{figure.aim or ''}{': missed' if figure.holds is False else ''}"
    return f"| {figure.figure.removeprefix(part)} | {value} | {aim} |".replace("  |", " |")
