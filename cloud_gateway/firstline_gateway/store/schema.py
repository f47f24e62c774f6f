"""The one `MetaData`, on which each package declares its tables in a `tables.py`.

The tables describe the schema after the newest migration; `store/migrations` creates it.
"""

from __future__ import annotations

from sqlalchemy import BigInteger, Integer, MetaData

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
