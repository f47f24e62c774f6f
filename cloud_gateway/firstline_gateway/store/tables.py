"""The store's own table: the service clock, by which records age."""

from __future__ import annotations

from sqlalchemy import Column, Double, Integer, Table

from firstline_gateway.store.schema import METADATA

SERVICE_CLOCK = Table(
    "service_clock",
    METADATA,
    Column("id", Integer, primary_key=True, autoincrement=False),
    Column("seconds", Double, nullable=False),
)
"""One row, of id 1."""
