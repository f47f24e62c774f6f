"""The tables of devices, certificates, join tokens and API keys. Times are seconds since 1970.

Every change of a row that requests are judged by gets the next number of `identity_version`: a process that caches
these rows reads those above the number that it has seen. Rows are marked as revoked, not deleted, so that no change is
missed; expired rows are deleted long after they stopped being valid. A certificate is judged by wall time, but not
deleted by it alone: it is retained until gateways have been in service for its intended lifetime
(`retained_until_service_s`), so that a clock far ahead deletes no device.
"""

from __future__ import annotations

import sqlalchemy as sa

from firstline_gateway.store.schema import METADATA, single_row

VERSION = single_row("identity_version", sa.Column("version", sa.BigInteger, nullable=False))

DEVICES = sa.Table(
    "devices",
    METADATA,
    sa.Column("name", sa.String(64), primary_key=True),
    sa.Column("enrolled_s", sa.Double, nullable=False),
    sa.Column("revoked_s", sa.Double),
    sa.Column("changed", sa.BigInteger, nullable=False, index=True),
)

CERTIFICATES = sa.Table(
    "certificates",
    METADATA,
    sa.Column("serial", sa.String(40), primary_key=True),
    sa.Column("device", sa.String(64), nullable=False),
    sa.Column("issued_s", sa.Double, nullable=False),
    sa.Column("not_after_s", sa.Double, nullable=False, index=True),
    sa.Column("revoked_s", sa.Double),
    sa.Column("changed", sa.BigInteger, nullable=False, index=True),
    sa.Column("retained_until_service_s", sa.Double, nullable=False),
    sa.Index("ix_certificates_device", "device", "not_after_s", "revoked_s"),
)

JOIN_TOKENS = sa.Table(
    "join_tokens",
    METADATA,
    sa.Column("sha256", sa.String(64), primary_key=True),
    sa.Column("device", sa.String(64), nullable=False, index=True),
    sa.Column("created_by", sa.String(160), nullable=False),
    sa.Column("created_s", sa.Double, nullable=False),
    sa.Column("expires_s", sa.Double, nullable=False, index=True),
    sa.Column("used_s", sa.Double),
    sa.Column("key_hash", sa.String(64)),  # of the device that used it, which may ask again for what it was given
    sa.Column("certificate", sa.Text),
)

API_KEYS = sa.Table(
    "api_keys",
    METADATA,
    sa.Column("sha256", sa.String(64), primary_key=True),
    sa.Column("name", sa.String(64), nullable=False, index=True),
    sa.Column("kind", sa.String(16), nullable=False),
    sa.Column("scopes", sa.String(64), nullable=False),
    sa.Column("created_s", sa.Double, nullable=False),
    sa.Column("expires_s", sa.Double),
    sa.Column("requests_per_s", sa.Double),
    sa.Column("person", sa.String(64), nullable=False),
    sa.Column("revoked_s", sa.Double),
    sa.Column("changed", sa.BigInteger, nullable=False, index=True),
)
