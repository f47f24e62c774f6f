"""Contracts' tables: pools, contributions, the audits of the last day of service, and quotas.

`last_s` is wall time, to be shown; `service_s` is the store's own clock, by which things grow old (`store/service.py`).
"""

from __future__ import annotations

from sqlalchemy import BigInteger, Column, Double, Index, Table, Text

from firstline_gateway.store.schema import METADATA

POOLS = Table(
    "contract_pools",
    METADATA,
    Column("key", Text, primary_key=True),
    Column("record", Text, nullable=False),
)

CONTRIBUTIONS = Table(
    "contract_contributions",
    METADATA,
    Column("pool", Text, primary_key=True),
    Column("device", Text, primary_key=True),
    Column("audits", BigInteger, nullable=False),
    Column("disagreements", BigInteger, nullable=False),
    Column("last_s", Double, nullable=False),
    Column("service_s", Double, nullable=False),
)

AUDITS = Table(
    "contract_audits",
    METADATA,
    Column("device", Text, primary_key=True),
    Column("request_id", Text, primary_key=True),
    Column("service_s", Double, nullable=False),
    Index(None, "service_s"),
    Index(None, "device", "service_s"),
)

QUOTAS = Table(
    "contract_quotas",
    METADATA,
    Column("bundle", Text, primary_key=True),
    Column("version", BigInteger, primary_key=True, autoincrement=False),
    Column("per_hour", Double, nullable=False),
)
