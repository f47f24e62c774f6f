"""Tables of the documentation as data, so that a test can hold the product to them."""

from __future__ import annotations

from pathlib import Path

DOCS = Path(__file__).parents[2] / "docs"


def table_after(file: str, heading: str) -> tuple[list[str], dict[str, list[str]]]:
    """The first table below a heading.

    Returns:
        The columns' names without the first, and each row's cells by its first.
    """
    _, found, text = (DOCS / file).read_text().partition(f"{heading}\n")
    assert found, f"{file} has no {heading}"
    lines = iter(text.splitlines())
    rows = []
    for line in lines:
        if line.startswith("|"):
            rows.append([cell.strip().strip("`") for cell in line.strip("|").split("|")])
        elif rows:
            break
    (_, *columns), _, *body = rows
    return columns, {name: cells for name, *cells in body}
