"""A table as text."""

from __future__ import annotations

from bench.routing.parts import Table


def show(table: Table) -> str:
    """Its title, and columns as wide as they need be; what is a number stands on the right."""
    columns = list(zip(table.columns, *table.rows, strict=True))
    aligned = []
    for column in columns:
        width = max(map(len, column))
        number = all(not cell or cell[0] in "+-.0123456789" for cell in column[1:])
        aligned.append([cell.rjust(width) if number else cell.ljust(width) for cell in column])
    lines = ["  ".join(cells).rstrip() for cells in zip(*aligned, strict=True)]
    return "\n".join([table.title, lines[0], "-" * max(map(len, lines)), *lines[1:]])
