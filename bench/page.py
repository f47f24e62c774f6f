"""Fills the tables in pages of docs/ with measured figures."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from pathlib import Path

from bench import figures
from bench.figures import Figure

PAGES = Path(__file__).parents[1] / "docs"
_TABLE = re.compile(r"(<!-- figures: ([\w-]+)(?:/(\w+))?(?: (aims|missed))? -->\n).*?(<!-- end -->)", re.DOTALL)
_COLUMNS = re.compile(r"(<!-- columns: ([\w-]+)/(\w+)(: [^|]*?)? \| (.*?) -->\n).*?(<!-- end -->)", re.DOTALL)


def filled(page: str, measured: Callable[[str], Sequence[Figure]]) -> str:
    """Returns the page with its tables filled; a table without measurements is empty.

    Args:
        page: with tables between `<!-- figures: TARGET -->`, or `TARGET/PART`, and `<!-- end -->`. After the target,
            `aims` keeps only figures with an aim, `missed` only missed aims.
            `<!-- columns: TARGET/PART: WORDS | A | B -->` has one row for the figures that begin with these words and
            differ only in A or B at the end.
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

    def columns(match: re.Match[str]) -> str:
        names = match[5].split(" | ")
        return match[1] + _side_by_side(measured(match[2]), match[3] + (match[4] or ""), names) + match[6]

    return _COLUMNS.sub(columns, _TABLE.sub(table, page))


def report(target: str, measured: Sequence[Figure]) -> int:
    """Stores and prints the figures of a target, and fills its tables; returns 0 if all aims hold, else 1."""
    figures.write(target, measured)
    refill(target)
    return figures.tell(measured)


def refill(*targets: str) -> None:
    """Refills the pages that have a table of one of these targets, from the last measurements."""
    for path in quoting(*targets):
        path.write_text(filled(path.read_text(), figures.measured))


def quoting(*targets: str) -> list[Path]:
    """Returns the pages of docs/ that have a table of one of these targets."""
    pages = sorted(PAGES.rglob("*.md"))
    return [path for path in pages if any(target in targets for target, _ in tables(path.read_text()))]


def tables(page: str) -> list[tuple[str, str]]:
    """Returns the targets and parts of the page's tables."""
    return [(target, part) for pattern in (_TABLE, _COLUMNS) for _, target, part, *_ in pattern.findall(page)]


def _side_by_side(measured: Sequence[Figure], words: str, names: Sequence[str]) -> str:
    """Returns figures in columns, one row for each beginning, rounded to three digits."""
    of = re.compile(rf"{re.escape(words)}(?:[:,] (.+?))?[:,] ({'|'.join(map(re.escape, names))})")
    rows: dict[str, dict[str, str]] = {}
    for figure in measured:
        if match := of.fullmatch(figure.figure):
            rows.setdefault(match[1] or "itself", {})[match[2]] = _cell(figure)
    if not rows:
        return ""
    lines = [f"| | {' | '.join(names)} |", "|---" * (len(names) + 1) + "|"]
    lines += [f"| {row} | {' | '.join(cells.get(name, '') for name in names)} |" for row, cells in rows.items()]
    return "\n".join([*lines, ""]).replace("|  ", "| ")


def _cell(figure: Figure) -> str:
    if figure.value is None:
        return "nothing"
    value = f"{figure.value:,.0f}" if abs(figure.value) >= 100 else f"{float(f'{figure.value:.3g}'):g}"
    return f"{value} {figure.unit}".strip() + (": missed" if figure.holds is False else "")


def _row(figure: Figure, part: str) -> str:
    value = "nothing" if figure.value is None else f"{figure.value:,} {figure.unit}".strip()
    aim = f"{figure.aim or ''}{': missed' if figure.holds is False else ''}"
    return f"| {figure.figure.removeprefix(part)} | {value} | {aim} |".replace("  |", " |")
