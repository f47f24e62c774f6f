"""A table of scores: CSV with the columns score and agree, perhaps weight and events, checked line by line."""

from __future__ import annotations

import math
import sys
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

from firstline.workbench.data.tables import Table, one_column, parse_csv, read_csv
from firstline_core.errors import ConfigError

_STDIN = "-"
_CELL_SHOWN = 40


class ScoredRow(NamedTuple):
    """One row.

    Attributes:
        agree: 1 minus the loss of the edge answer, in [0, 1]: 1 where edge and full model agree.
        weight: in proportion to one over the probability with which the row was drawn; 1 where the table has none.
        certificate: under which a device drew it, "" where the table does not say.
        events: losses of the events that can occur in it.
    """

    score: float
    agree: float
    weight: float = 1.0
    certificate: str = ""
    events: Mapping[str, float] = MappingProxyType({})


_AGREES = "1 where edge and full model agree, else 0, or 1 minus the loss"
_OCCURRED = "1 where the event occurred, 0 where it did not, and empty where it could not"


def read_table(source: str, events: Collection[str] = ()) -> list[ScoredRow]:
    """Returns the rows of a table.

    Args:
        source: a file, or "-" for standard input.
        events: names of columns with the loss of an event, empty where it cannot occur.

    Raises:
        ConfigError: not such a table; the message names the line.
    """
    table = parse_csv(sys.stdin.buffer.read(), "standard input") if source == _STDIN else read_csv(Path(source))
    if fault := one_column(table.columns):
        raise ConfigError(f"{table.path}{fault}")
    missing = [f"'{name}'" for name in ("score", "agree") if name not in table.columns]
    if missing:
        raise ConfigError(
            f"{table.path}:1 has no column {' and '.join(missing)}; the first line names the columns: score,agree."
        )
    if not len(table):
        raise ConfigError(f"{table.path} has no rows below its first line; add one for each answer.")
    return list(_rows(table, [name for name in events if name in table.columns]))


def _rows(table: Table, events: Collection[str]) -> Iterator[ScoredRow]:
    wanted = ("score", "agree", "weight", "certificate", *events)
    columns = {name: table.column(name) for name in wanted if name in table.columns}
    for position in range(len(table)):
        where, row = table.where(position), {name: cells[position] for name, cells in columns.items()}
        score = _number(row["score"])
        if not math.isfinite(score):
            raise ConfigError(f"{where} has the score {_shown(row['score'])}; write a finite number.")
        agree = _share(row["agree"], "agree", where, _AGREES)
        weight = _weight(row["weight"], where) if "weight" in row else 1.0
        losses = {name: _share(row[name], name, where, _OCCURRED) for name in events if row[name]}
        yield ScoredRow(score, agree, weight, row.get("certificate") or "", losses)


def _weight(text: str | None, where: str) -> float:
    weight = _number(text)
    if not (math.isfinite(weight) and weight > 0):
        raise ConfigError(
            f"{where} has the weight {_shown(text)}; it is a number above 0, one over the probability with which the "
            "row was drawn."
        )
    return weight


def _number(text: str | None) -> float:
    """Returns the number in a cell; NaN if there is none."""
    try:
        return float(text or "")
    except ValueError:
        return math.nan


def _share(text: str | None, column: str, where: str, meaning: str) -> float:
    """Returns the number in a cell.

    Raises:
        ConfigError: it is not between 0 and 1; `meaning` says what belongs into the column.
    """
    share = _number(text)
    if not 0 <= share <= 1:
        raise ConfigError(f"{where} has {_shown(text)} under {column}; it is {meaning}.")
    return share


def _shown(text: str | None) -> str:
    """Returns a cell in quotes, cut short, with control characters escaped."""
    cell = text or ""
    return ascii(cell if len(cell) <= _CELL_SHOWN else cell[: _CELL_SHOWN - 3] + "...")
