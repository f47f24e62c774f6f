"""docs/reliability.md's tables, from the figures that were measured: the words are the page's own."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from figures import Figure

PAGE = Path(__file__).parents[2] / "docs" / "reliability.md"
_TABLE = re.compile(r"(<!-- figures: ([\w ]+) -->\n).*?(<!-- end -->)", re.DOTALL)


def filled(page: str, figures: Sequence[Figure]) -> str:
    """The page with each of its tables as `figures` say; a part that was never run has none."""

    def table(match: re.Match[str]) -> str:
        part = f"{match[2]}: "
        rows = [_row(figure, part) for figure in figures if figure.figure.startswith(part)]
        body = "\n".join(["| figure | measured | aim |", "|---|---|---|", *rows, ""]) if rows else ""
        return match[1] + body + match[3]

    return _TABLE.sub(table, page)


def parts(page: str) -> list[str]:
    """Those that the page has tables for."""
    return [part for _, part, _ in _TABLE.findall(page)]


def _row(figure: Figure, part: str) -> str:
    value = "nothing" if figure.value is None else f"{figure.value:,} {figure.unit}".strip()
    return f"| {figure.figure.removeprefix(part)} | {value} | {figure.aim or ''} |".replace("  |", " |")
