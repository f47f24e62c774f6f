"""CSV files that people write, also with a spreadsheet: a byte order mark, and spaces around the names of columns."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def open_csv(file: Path) -> Iterator[csv.DictReader[str]]:
    """Opens a CSV file whose first line names the columns.

    Raises:
        OSError: it cannot be opened.
        UnicodeDecodeError: it is not UTF-8; also raised while reading.
        csv.Error: it is not CSV; also raised while reading.
    """
    with file.open(newline="", encoding="utf-8-sig") as stream:
        yield csv_reader(stream)


def one_column(columns: Sequence[str]) -> str:
    """Returns the end of a sentence about a first line that other characters than commas separate; "" for others."""
    if len(columns) == 1 and (";" in columns[0] or "\t" in columns[0]):
        return f":1 is {columns[0][:80]!a}, which is read as one column; separate the columns by commas."
    return ""


def csv_fault(error: csv.Error, line: int) -> str:
    """Returns the end of a sentence about a file that is not CSV.

    Args:
        error: of the reader.
        line: at which the row begins that it cannot read.
    """
    if str(error) == "unexpected end of data":
        return f":{line} opens a quote that is not closed; close it."
    return f":{line} is not CSV ({error}); save it as CSV again."


def csv_reader(lines: Iterable[str]) -> csv.DictReader[str]:
    """Returns a reader of rows by the name of the column; spaces around the names and before cells are ignored.

    Raises:
        csv.Error: the first line is not CSV.
    """
    reader = csv.DictReader(lines, strict=True, skipinitialspace=True)
    reader.fieldnames = [name.strip() for name in reader.fieldnames or ()]
    return reader
