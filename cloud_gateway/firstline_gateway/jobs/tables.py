"""The jobs: the request, the replica that runs it, and the result. And how much is kept of whom."""

from __future__ import annotations

from sqlalchemy import BigInteger, Column, Double, Index, Integer, LargeBinary, Table, Text, UniqueConstraint

from firstline_gateway.store.schema import METADATA, SEQUENCE

JOBS = Table(
    "jobs",
    METADATA,
    Column("sequence", SEQUENCE, primary_key=True, autoincrement=True),
    Column("job_id", Text, nullable=False),  # the request's id
    Column("principal", Text, nullable=False),
    Column("model", Text, nullable=False),
    Column("version", Text, nullable=False),
    Column("status", Integer, nullable=False),  # 0 while it waits or runs, then HTTP's
    Column("priority", Integer, nullable=False),
    Column("size_bytes", BigInteger, nullable=False),  # of what is kept of it now
    Column("content", LargeBinary, nullable=False),  # sealed: the request, then the answer
    Column("header", Integer),  # bytes of JSON at its start; NULL where all is JSON
    Column("due_service_s", Double),  # when nobody wants it any more; NULL for never
    Column("service_s", Double, nullable=False),  # when it came, then when it ended
    Column("holder", Text, nullable=False),  # the replica that works on it
    Column("lease_service_s", Double, nullable=False),  # until when that is believed
    Column("attempts", Integer, nullable=False),
    UniqueConstraint("job_id"),
    Index(None, "status", "priority", "sequence"),
    Index(None, "service_s"),
)

KEPT = Table(
    "jobs_kept",
    METADATA,
    Column("sequence", SEQUENCE, primary_key=True, autoincrement=True),
    Column("principal", Text, nullable=False),
    Column("jobs", Integer, nullable=False),
    Column("size_bytes", BigInteger, nullable=False),
)
"""What is kept is the sum of these: each change adds a row, so that replicas wait for no row of each other's."""
