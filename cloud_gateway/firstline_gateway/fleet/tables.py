"""The tables of the fleet. Documents are stored as JSON; searched fields have columns of their own."""

from __future__ import annotations

from sqlalchemy import BigInteger, Boolean, Column, Double, Index, Integer, String, Table, Text

from firstline_gateway.store.schema import METADATA

DEVICES = Table(
    "fleet_devices",
    METADATA,
    Column("name", String(64), primary_key=True),
    Column("tags", Text, nullable=False),  # an object of strings
    Column("accepted_s", Double),  # NULL while nobody has said that it belongs here
    Column("first_seen_s", Double),
    Column("last_seen_s", Double),  # NULL for one that was only named so far
    Column("online", Boolean, nullable=False),
    Column("session", String(64), nullable=False),
    Column("earlier_sessions", Text, nullable=False),  # an array, the latest last
    Column("sequence", BigInteger, nullable=False),  # of what it reported
    Column("reported", Text),
    Column("desired", Text, nullable=False),
    Column("revision", BigInteger, nullable=False),  # of `desired`
    Column("published", BigInteger, nullable=False),  # the revision that lies at the broker; -1 for none
    Index(None, "last_seen_s"),
)

COUNTS = Table(
    "fleet_counts",
    METADATA,
    Column("device", String(64), primary_key=True),
    Column("session", String(64), nullable=False),
    Column("sequence", BigInteger, nullable=False),
    Column("latest", Text, nullable=False),  # the report, whose counts are the session's
    Column("totals", Text, nullable=False),  # of all sessions
    Column("at_s", Double, nullable=False),
)
"""What devices counted, over all their processes."""

HISTORY = Table(
    "fleet_history",
    METADATA,
    Column("device", String(64), primary_key=True),
    Column("hour", Integer, primary_key=True),  # since 1970
    Column("at_s", Double, nullable=False),
    Column("totals", Text, nullable=False),
)
"""The totals as they were, one an hour, for the time before a rollout."""

TIERS = Table(
    "fleet_tiers",
    METADATA,
    Column("bucket", Integer, primary_key=True),  # of five minutes, since 1970
    Column("model", String(64), primary_key=True),
    Column("version", BigInteger, primary_key=True, autoincrement=False),
    Column("kept", BigInteger, nullable=False),
    Column("escalated", BigInteger, nullable=False),
    Column("errors", BigInteger, nullable=False),
)
"""Rows that all devices were asked, by who answered them and when that was heard of."""

BRAKE = Table(
    "fleet_brake",
    METADATA,
    Column("id", Integer, primary_key=True, autoincrement=False),
    Column("brake", Text, nullable=False),
    Column("by", String(128), nullable=False),
    Column("since_s", Double, nullable=False),
)
"""At most one row, of id 1: what all devices are held to."""
