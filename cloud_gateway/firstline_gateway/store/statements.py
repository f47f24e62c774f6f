"""SQL that both databases speak: INSERT ... ON CONFLICT as SQLAlchemy spells it for each, and names by the thousand."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice
from typing import TypeVar, cast

from sqlalchemy import Connection, Table
from sqlalchemy.dialects import postgresql, sqlite

_MANY = 5000  # names in one statement: databases take some tens of thousands

_T = TypeVar("_T")


def insert(connection: Connection, table: Table) -> sqlite.Insert:
    """An INSERT that may say what becomes of a row that is there already."""
    if connection.dialect.name == "postgresql":
        return cast(sqlite.Insert, postgresql.insert(table))  # the same methods
    return sqlite.insert(table)


def batched(names: Iterable[_T]) -> Iterator[list[_T]]:
    """As many at a time as a statement may name."""
    left = iter(names)
    while some := list(islice(left, _MANY)):
        yield some
