"""The tables of devices, certificates, join tokens and API keys. Times are seconds since 1970.

Every change of a row that requests are judged by gets the next number of `identity_version`: a process that caches
these rows reads those above the number that it has seen. Rows are marked as revoked, not deleted, so that no change is
missed; expired rows are deleted long after they stopped being valid. A certificate is judged by wall time, but not
deleted by it alone: it is retained until gateways have been in service for its intended lifetime
(`retained_until_service_s`), so that a clock far ahead deletes no device.
"""

from __future__ import annotations

from sqlalchemy import BigInteger, Column, Double, Index, Integer, String, Table, Text

from firstline_gateway.store.schema import METADATA

VERSION = Table(
    "identity_version",
    METADATA,
    Column("id", Integer, primary_key=True, autoincrement=False),
    Column("version", BigInteger, nullable=False),
)

DEVICES = Table(
    "devices",
    METADATA,
    Column("name", String(64), primary_key=True),
    Column("enrolled_s", Double, nullable=False),
    Column("revoked_s", Double),
    Column("changed", BigInteger, nullable=False, index=True),
)

CERTIFICATES = Table(
    "certificates",
    METADATA,
    Column("serial", String(40), primary_key=True),
    Column("device", String(64), nullable=False),
    Column("issued_s", Double, nullable=False),
    Column("not_after_s", Double, nullable=False, index=True),
    Column("revoked_s", Double),
    Column("changed", BigInteger, nullable=False, index=True),
    Column("retained_until_service_s", Double, nullable=False),
    Index("ix_certificates_device", "device", "not_after_s"),
)

JOIN_TOKENS = Table(
    "join_tokens",
    METADATA,
    Column("sha256", String(64), primary_key=True),
    Column("device", String(64), nullable=False, index=True),
    Column("created_by", String(160), nullable=False),
    Column("created_s", Double, nullable=False),
    Column("expires_s", Double, nullable=False, index=True),
    Column("used_s", Double),
    Column("key_hash", String(64)),  # of the device that used it, which may ask again for what it was given
    Column("certificate", Text),
)

API_KEYS = Table(
    "api_keys",
    METADATA,
    Column("sha256", String(64), primary_key=True),
    Column("name", String(64), nullable=False, index=True),
    Column("kind", String(16), nullable=False),
    Column("scopes", String(64), nullable=False),
    Column("created_s", Double, nullable=False),
    Column("expires_s", Double),
    Column("requests_per_s", Double),
    Column("person", String(64), nullable=False),
    Column("revoked_s", Double),
    Column("changed", BigInteger, nullable=False, index=True),
)
