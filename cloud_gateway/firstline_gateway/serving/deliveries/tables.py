"""The deliveries that were answered."""

from __future__ import annotations

from sqlalchemy import Column, Double, Index, Integer, LargeBinary, Table, Text, UniqueConstraint

from firstline_gateway.store.schema import METADATA, SEQUENCE

DELIVERIES = Table(
    "deliveries",
    METADATA,
    Column("sequence", SEQUENCE, primary_key=True, autoincrement=True),
    Column("device", Text, nullable=False),
    Column("request_id", Text, nullable=False),
    Column("content", LargeBinary, nullable=False),
    Column("service_s", Double, nullable=False),
    Column("answer", LargeBinary),  # sealed
    Column("answer_header", Integer),
    UniqueConstraint("device", "request_id"),
    Index(None, "service_s"),
)
