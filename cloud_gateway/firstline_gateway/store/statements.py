"""SQL for both databases: INSERT ... ON CONFLICT in SQLAlchemy's form for each, and batches of names."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice
from typing import TypeVar, cast

from sqlalchemy import Connection, Table
from sqlalchemy.dialects import postgresql, sqlite

_MANY = 5000  # names in one statement: databases take some tens of thousands

_T = TypeVar("_T")


def insert(connection: Connection, table: Table) -> sqlite.Insert:
    """Returns an INSERT that can handle a row that exists already."""
    if connection.dialect.name == "postgresql":
        return cast(sqlite.Insert, postgresql.insert(table))  # the same methods
    return sqlite.insert(table)


def batched(names: Iterable[_T]) -> Iterator[list[_T]]:
    """Yields lists of at most as many names as a statement may have."""
    left = iter(names)
    while some := list(islice(left, _MANY)):
        yield some
