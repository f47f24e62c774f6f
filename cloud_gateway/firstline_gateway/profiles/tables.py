"""The table of the profiles: each as it came, and what is told of it without reading it."""

from __future__ import annotations

from sqlalchemy import BigInteger, Column, Double, Index, LargeBinary, String, Table, Text

from firstline_gateway.store.schema import METADATA

PROFILES = Table(
    "profiles",
    METADATA,
    Column("bundle", String(64), primary_key=True),
    Column("version", BigInteger, primary_key=True, autoincrement=False),
    Column("machine", String(64), primary_key=True),
    Column("kept_s", Double, nullable=False),
    Column("by", String(128), nullable=False),
    Column("entry", Text, nullable=False),
    Column("content", LargeBinary, nullable=False),
    Column("fingerprint", String(64), nullable=False, server_default=""),  # of `entry`
    Index(None, "bundle", "fingerprint"),
)
