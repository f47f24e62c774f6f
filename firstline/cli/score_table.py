"""A table of scores: CSV with the columns score and agree, perhaps weight and events, checked line by line."""

from __future__ import annotations

import csv
import io
import math
import sys
from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

from firstline.workbench.csv_files import csv_fault, csv_reader, one_column
from firstline_core.errors import ConfigError
from firstline_core.storage.files import unreadable

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
    try:
        if source == _STDIN:
            if isinstance(sys.stdin, io.TextIOWrapper):
                sys.stdin.reconfigure(encoding="utf-8-sig", errors="strict", newline="")  # as files, in any locale
            return list(_rows(sys.stdin, "standard input", events))
        with Path(source).open(newline="", encoding="utf-8-sig") as stream:
            return list(_rows(stream, source, events))
    except (OSError, UnicodeDecodeError) as error:
        named = "standard input" if source == _STDIN else source
        raise ConfigError(f"{named} {unreadable(error)}") from error


def _rows(lines: Iterable[str], source: str, events: Collection[str]) -> Iterator[ScoredRow]:
    try:
        reader = csv_reader(lines)
    except csv.Error as error:
        raise ConfigError(f"{source}{csv_fault(error, 1)}") from error
    line = reader.line_num + 1
    try:
        names = reader.fieldnames or ()
        if fault := one_column(names):
            raise ConfigError(f"{source}{fault}")
        missing = [f"'{name}'" for name in ("score", "agree") if name not in names]
        if missing:
            raise ConfigError(
                f"{source}:1 has no column {' and '.join(missing)}; the first line names the columns: score,agree."
            )
        events = [name for name in events if name in names]
        twice = [name for name in ("score", "agree", "weight", *events) if names.count(name) > 1]
        if twice:
            raise ConfigError(f"{source}:1 has the column {twice[0]} more than once; keep the one that counts.")
        count = 0
        for row in reader:
            where = f"{source}:{reader.line_num}"
            if None in row:  # such as 0,97 for 0.97, which would be read as a score of 0
                raise ConfigError(f"{where} has more cells than line 1 has columns; write decimals with a point.")
            weight = _weight(row["weight"], where) if "weight" in names else 1.0
            losses = {name: _share(row[name], name, where, _OCCURRED) for name in events if row[name]}
            score, agree = _score(row["score"], where), _share(row["agree"], "agree", where, _AGREES)
            yield ScoredRow(score, agree, weight, row.get("certificate") or "", losses)
            count, line = count + 1, reader.line_num + 1
    except csv.Error as error:
        raise ConfigError(f"{source}{csv_fault(error, line)}") from error
    if not count:
        raise ConfigError(f"{source} has no rows below its first line; add one for each answer.")


def _score(text: str | None, where: str) -> float:
    score = _number(text)
    if not math.isfinite(score):
        raise ConfigError(f"{where} has the score {_shown(text)}; write a finite number.")
    return score


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
