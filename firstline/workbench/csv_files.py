"""CSV files that people write, also with a spreadsheet: a byte order mark, and spaces around the names of columns."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Iterator
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


def csv_reader(lines: Iterable[str]) -> csv.DictReader[str]:
    """Returns a reader of rows by the name of the column; spaces around the names and before cells are ignored.

    Raises:
        csv.Error: the first line is not CSV.
    """
    reader = csv.DictReader(lines, strict=True, skipinitialspace=True)
    reader.fieldnames = [name.strip() for name in reader.fieldnames or ()]
    return reader
