"""The tables of the profiles, each with its entry, and of the profile requests."""

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
    Column("fingerprint", String(64), nullable=False),  # of `entry`
    Index(None, "bundle", "fingerprint"),
)

PROFILE_REQUESTS = Table(
    "profile_requests",
    METADATA,
    Column("device", String(64), primary_key=True),
    Column("bundle", String(64), primary_key=True),
    Column("wanted", Text, nullable=False),
    Column("by", String(128), nullable=False),
    Column("asked_s", Double, nullable=False),
    Column("until_s", Double, nullable=False, index=True),
    Column("version", BigInteger, nullable=False),
    Column("sha256", String(64), nullable=False),
    Column("brought_s", Double),
    Column("ended_s", Double),
    Column("why", Text, nullable=False),
)
