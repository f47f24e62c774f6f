"""The store's tables as lines of JSON, in the same form for either database, and back.

The tables are looked up in the database, so that a backup is read into the schema that it was made of, whatever came
later; only then is that brought up to date.
"""

from __future__ import annotations

import base64
from collections.abc import Iterator
from itertools import islice
from typing import IO, Any

import msgspec
from sqlalchemy import Connection, LargeBinary, MetaData, Table, func, insert, inspect, select, text

from firstline_core.errors import ConfigError
from firstline_gateway.store.migrate import VERSION_TABLE

_ROWS = 1000


def tables_of(connection: Connection) -> list[Table]:
    """All but the one in which the schema's version is."""
    found = MetaData()
    found.reflect(connection)
    return [table for table in found.sorted_tables if table.name != VERSION_TABLE]


def is_empty(connection: Connection) -> bool:
    """Whether there is no table at all."""
    return not inspect(connection).get_table_names()


def lines(connection: Connection, table: Table) -> Iterator[bytes]:
    """A table's rows, each an array of its columns' values on a line of its own, after a line with their names."""
    yield msgspec.json.encode([str(column.name) for column in table.columns]) + b"\n"
    query = select(table).order_by(*table.primary_key.columns)
    for row in connection.execution_options(yield_per=_ROWS).execute(query):
        yield msgspec.json.encode(tuple(row)) + b"\n"  # bytes as base64


def fill(connection: Connection, table: Table, file: IO[bytes]) -> int:
    """Puts rows, as `lines` gave them, into an empty table; how many.

    Raises:
        ConfigError: they are not this table's.
    """
    try:
        names = msgspec.json.decode(next(file), type=list[str])
        binary = [isinstance(table.columns[name].type, LargeBinary) for name in names]
        count = 0
        while some := list(islice(file, _ROWS)):
            rows = [dict(zip(names, map(_value, msgspec.json.decode(line), binary), strict=True)) for line in some]
            connection.execute(insert(table), rows)
            count += len(rows)
    except (StopIteration, KeyError, ValueError, msgspec.MsgspecError) as error:
        raise ConfigError(f"The backup's table {table.name} does not fit the store: {error}.") from error
    if connection.dialect.name == "postgresql":
        _count_on(connection, table)
    return count


def _value(value: Any, binary: bool) -> Any:
    return base64.b64decode(value, validate=True) if binary and value is not None else value


def _count_on(connection: Connection, table: Table) -> None:
    """Has PostgreSQL number new rows after those that were put in."""
    for column in table.primary_key.columns:
        named = {"table": table.name, "column": column.name}
        sequence = connection.execute(text("SELECT pg_get_serial_sequence(:table, :column)"), named).scalar()
        newest = connection.execute(select(func.max(column))).scalar() if sequence else None
        if newest is not None:
            connection.execute(text("SELECT setval(:sequence, :newest)"), {"sequence": sequence, "newest": newest})
