"""The `MetaData` on which the packages declare their tables.

The tables describe the schema after the newest migration; `store/migrations` creates it. `tables.py` names the modules.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from functools import cache
from itertools import islice
from typing import Any, TypeVar, cast

import msgspec
from sqlalchemy import BigInteger, Column, Connection, Dialect, Integer, MetaData, Table, Text, TypeDecorator
from sqlalchemy.dialects import sqlite

METADATA = MetaData(
    naming_convention={
        "ix": "ix_%(table_name)s_%(column_0_N_name)s",
        "uq": "uq_%(table_name)s_%(column_0_N_name)s",
        "pk": "pk_%(table_name)s",
        "fk": "fk_%(table_name)s_%(column_0_N_name)s",
    }
)

# SQLite numbers rows by itself where the primary key is an INTEGER, and nowhere else.
SEQUENCE = BigInteger().with_variant(Integer, "sqlite")
"""The type of a primary key that the database counts up."""


_MANY = 5000  # names in one statement: databases take some tens of thousands

_T = TypeVar("_T")


class JsonColumn(TypeDecorator[Any]):
    """The type of a column that stores a value as JSON text; None is NULL.

    Args:
        kind: type of the value.
    """

    impl = Text
    cache_ok = True

    def __init__(self, kind: Any) -> None:
        super().__init__()
        self.kind = kind

    def process_bind_param(self, value: Any, dialect: Dialect) -> str | None:
        return msgspec.json.encode(value).decode() if value is not None else None

    def process_result_value(self, value: str | None, dialect: Dialect) -> Any:
        return msgspec.json.decode(value, type=self.kind) if value is not None else None


def single_row(name: str, *columns: Column[Any]) -> Table:
    """Declares a table of one row, of id 1, which the first migration inserts."""
    return Table(name, METADATA, Column("id", Integer, primary_key=True, autoincrement=False), *columns)


def insert(connection: Connection, table: Table) -> sqlite.Insert:
    """Returns an INSERT that can handle a row that exists already."""
    return _insert(connection.dialect.name, table)


@cache  # it takes longer to build such a statement than to run it
def _insert(dialect: str, table: Table) -> sqlite.Insert:
    if dialect == "postgresql":
        from sqlalchemy.dialects import postgresql  # imported already by an engine of this dialect

        return cast(sqlite.Insert, postgresql.insert(table))  # the same methods
    return sqlite.insert(table)


def insert_missing(connection: Connection, table: Table, *rows: Mapping[str, Any]) -> None:
    """Inserts rows; those that exist already stay as they are."""
    if rows:
        connection.execute(_insert_or_replace(connection.dialect.name, table, (), frozenset()), rows)


def upsert(connection: Connection, table: Table, *rows: Mapping[str, Any], summed: Collection[str] = ()) -> None:
    """Inserts rows, and replaces the values of those that exist already.

    Args:
        connection: within a transaction.
        table: by its primary key, rows are the same.
        rows: all with the same columns.
        summed: columns whose values are added to those of a row that exists.
    """
    if rows:
        found = _insert_or_replace(connection.dialect.name, table, tuple(rows[0]), frozenset(summed))
        connection.execute(found, rows)


@cache
def _insert_or_replace(dialect: str, table: Table, names: Sequence[str], summed: Collection[str]) -> sqlite.Insert:
    added, keys = _insert(dialect, table), [column.name for column in table.primary_key]
    values = {
        name: table.c[name] + added.excluded[name] if name in summed else added.excluded[name]
        for name in names
        if name not in keys
    }
    return added.on_conflict_do_update(index_elements=keys, set_=values) if values else added.on_conflict_do_nothing()


def batched(names: Iterable[_T]) -> Iterator[list[_T]]:
    """Yields lists of at most as many names as a statement may have."""
    left = iter(names)
    while some := list(islice(left, _MANY)):
        yield some
