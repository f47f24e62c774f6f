"""The tables of the audit log. Its head is a row of its own, which is locked while an entry is added."""

from __future__ import annotations

from sqlalchemy import BigInteger, Column, Double, Integer, String, Table, Text

from firstline_gateway.store.schema import METADATA

ENTRIES = Table(
    "trail_entries",
    METADATA,
    Column("number", BigInteger, primary_key=True, autoincrement=False),
    Column("at_s", Double, nullable=False),
    Column("actor", String(128), nullable=False),
    Column("action", String(64), nullable=False),
    Column("subject", String(256), nullable=False, index=True),
    Column("details", Text, nullable=False),
    Column("previous", String(64), nullable=False),
    Column("sha256", String(64), nullable=False),
)

HEAD = Table(
    "trail_head",
    METADATA,
    Column("id", Integer, primary_key=True, autoincrement=False),
    Column("number", BigInteger, nullable=False),
    Column("sha256", String(64), nullable=False),
)
"""One row, of id 1."""
