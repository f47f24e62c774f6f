"""SQL that both databases speak, and SQLAlchemy spells for each: INSERT ... ON CONFLICT."""

from __future__ import annotations

from typing import cast

from sqlalchemy import Connection, Table
from sqlalchemy.dialects import postgresql, sqlite


def insert(connection: Connection, table: Table) -> sqlite.Insert:
    """An INSERT that may say what becomes of a row that is there already."""
    if connection.dialect.name == "postgresql":
        return cast(sqlite.Insert, postgresql.insert(table))  # the same methods
    return sqlite.insert(table)
