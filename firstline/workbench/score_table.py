"""A table of scores: CSV with the columns score and agree, perhaps weight and events, checked cell by cell."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from firstline.workbench.data.tables import Table, one_column, parse_csv, read_csv
from firstline_core.errors import ConfigError

_STDIN = "-"
_CELL_SHOWN = 40
_AGREES = "1 where edge and full model agree, else 0, or 1 minus the loss"
_OCCURRED = "1 where the event occurred, 0 where it did not, and empty where it could not"


@dataclass(frozen=True, slots=True, eq=False)
class ScoreTable:
    """Scored rows, such as the audits of a device.

    Attributes:
        scores: (n,) of the edge model.
        losses: (n,) of the edge answers, in [0, 1]: 0 where edge and full model agree.
        weights: (n,) in proportion to one over the probability with which a row was drawn; 1 where the table has none.
        events: (n,) losses by event, NaN in rows in which it cannot occur; only events that the table has.
        certificates: under which a device drew the rows; "" where the table does not say.
    """

    scores: NDArray[np.float64]
    losses: NDArray[np.float64]
    weights: NDArray[np.float64]
    events: Mapping[str, NDArray[np.float64]]
    certificates: frozenset[str]


def read_score_table(source: str, events: Collection[str] = ()) -> ScoreTable:
    """Reads a table.

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
    return ScoreTable(
        scores=_numbers(table, "score", _score),
        losses=1 - _numbers(table, "agree", lambda cell, where: _share(cell, "agree", where, _AGREES)),
        weights=_numbers(table, "weight", _weight) if "weight" in table.columns else np.ones(len(table)),
        events={name: _event(table, name) for name in events if name in table.columns},
        certificates=frozenset(table.column("certificate") if "certificate" in table.columns else [""]),
    )


def _numbers(table: Table, column: str, read: Callable[[str, str], float]) -> NDArray[np.float64]:
    """Returns the numbers of a column; `read` is given each cell, "" if the row ends before it, and its place."""
    return np.array([read(cell or "", table.where(row)) for row, cell in enumerate(table.column(column))])


def _event(table: Table, name: str) -> NDArray[np.float64]:
    return _numbers(table, name, lambda cell, where: _share(cell, name, where, _OCCURRED) if cell else math.nan)


def _score(cell: str, where: str) -> float:
    score = _number(cell)
    if not math.isfinite(score):
        raise ConfigError(f"{where} has the score {_shown(cell)}; write a finite number.")
    return score


def _weight(cell: str, where: str) -> float:
    weight = _number(cell)
    if not (math.isfinite(weight) and weight > 0):
        raise ConfigError(
            f"{where} has the weight {_shown(cell)}; it is a number above 0, one over the probability with which the "
            "row was drawn."
        )
    return weight


def _share(cell: str, column: str, where: str, meaning: str) -> float:
    """Returns the number in a cell.

    Raises:
        ConfigError: it is not between 0 and 1; `meaning` says what belongs into the column.
    """
    share = _number(cell)
    if not 0 <= share <= 1:
        raise ConfigError(f"{where} has {_shown(cell)} under {column}; it is {meaning}.")
    return share


def _number(cell: str) -> float:
    """Returns the number in a cell; NaN if there is none."""
    try:
        return float(cell)
    except ValueError:
        return math.nan


def _shown(cell: str) -> str:
    """Returns a cell in quotes, cut short, with control characters escaped."""
    return ascii(cell if len(cell) <= _CELL_SHOWN else cell[: _CELL_SHOWN - 3] + "...")
