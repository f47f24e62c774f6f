"""Signed metadata, and what aliases stood for."""

from __future__ import annotations

from sqlalchemy import BigInteger, Column, Double, Index, LargeBinary, String, Table

from firstline_gateway.store.schema import METADATA, SEQUENCE

SIGNED = Table(
    "registry_metadata",
    METADATA,
    Column("role", String(16), primary_key=True),
    Column("version", BigInteger, primary_key=True, autoincrement=False),
    Column("content", LargeBinary, nullable=False),  # as it was signed; devices verify it, so it needs no seal
    Column("expires_s", Double, nullable=False),
)

ALIASES = Table(
    "registry_aliases",
    METADATA,
    Column("sequence", SEQUENCE, primary_key=True, autoincrement=True),
    Column("model", String(64), nullable=False),
    Column("alias", String(64), nullable=False),
    Column("version", BigInteger),  # NULL: for nothing any more
    Column("changed_by", String(80), nullable=False),
    Column("changed_s", Double, nullable=False),
    Index(None, "model", "alias", "sequence"),
)
"""Each change is a row; the newest holds."""
