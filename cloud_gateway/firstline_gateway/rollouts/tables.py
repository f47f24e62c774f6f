"""The tables of rollouts. Records are JSON; searched fields have columns of their own."""

from __future__ import annotations

from sqlalchemy import BigInteger, Boolean, Column, Double, Integer, String, Table, Text

from firstline_gateway.store.schema import METADATA

ROLLOUTS = Table(
    "rollouts",
    METADATA,
    Column("id", String(64), primary_key=True),
    Column("bundle", String(64), nullable=False, index=True),
    Column("state", String(16), nullable=False),
    Column("active", Boolean, nullable=False, index=True),  # whether the engine has anything to do
    Column("revision", BigInteger, nullable=False),
    Column("idempotency", String(64), unique=True),  # of who made it, and with which key; NULL without one
    Column("record", Text, nullable=False),
)

ASSIGNMENTS = Table(
    "rollout_devices",
    METADATA,
    Column("rollout", String(64), primary_key=True),
    Column("device", String(64), primary_key=True),
    Column("state", String(16), nullable=False),
    Column("record", Text, nullable=False),
    Column("before", Text),  # a period before the stage, for the judgement
    Column("start", Text),  # totals when the stage was begun to be observed
)

LOOKS = Table(
    "rollout_looks",
    METADATA,
    Column("rollout", String(64), primary_key=True),
    Column("stage", Integer, primary_key=True, autoincrement=False),
    Column("look", Integer, primary_key=True, autoincrement=False),
    Column("at_s", Double, nullable=False),
    Column("verdict", Text, nullable=False),
)

LEASE = Table(
    "rollout_lease",
    METADATA,
    Column("id", Integer, primary_key=True, autoincrement=False),
    Column("holder", String(64), nullable=False),
    Column("until_service_s", Double, nullable=False),
)
"""At most one row, of id 1: which replica drives the rollouts."""
