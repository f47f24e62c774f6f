"""Requests that are answered later."""

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"


def upgrade() -> None:
    op.create_table(
        "jobs",
        sa.Column("sequence", sa.BigInteger().with_variant(sa.Integer, "sqlite"), nullable=False, autoincrement=True),
        sa.Column("job_id", sa.Text, nullable=False),
        sa.Column("principal", sa.Text, nullable=False),
        sa.Column("model", sa.Text, nullable=False),
        sa.Column("version", sa.Text, nullable=False),
        sa.Column("status", sa.Integer, nullable=False),
        sa.Column("priority", sa.Integer, nullable=False),
        sa.Column("size_bytes", sa.BigInteger, nullable=False),
        sa.Column("content", sa.LargeBinary, nullable=False),
        sa.Column("header", sa.Integer),
        sa.Column("due_service_s", sa.Double),
        sa.Column("service_s", sa.Double, nullable=False),
        sa.Column("holder", sa.Text, nullable=False),
        sa.Column("lease_service_s", sa.Double, nullable=False),
        sa.Column("attempts", sa.Integer, nullable=False),
        sa.PrimaryKeyConstraint("sequence", name="pk_jobs"),
        sa.UniqueConstraint("job_id", name="uq_jobs_job_id"),
    )
    op.create_index("ix_jobs_status_priority_sequence", "jobs", ["status", "priority", "sequence"])
    op.create_index("ix_jobs_principal_size_bytes", "jobs", ["principal", "size_bytes"])
    op.create_index("ix_jobs_service_s", "jobs", ["service_s"])
