"""How much is kept of jobs, without counting them."""

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"


def upgrade() -> None:
    op.create_table(
        "jobs_kept",
        sa.Column("sequence", sa.BigInteger().with_variant(sa.Integer, "sqlite"), nullable=False, autoincrement=True),
        sa.Column("principal", sa.Text, nullable=False),
        sa.Column("jobs", sa.Integer, nullable=False),
        sa.Column("size_bytes", sa.BigInteger, nullable=False),
        sa.PrimaryKeyConstraint("sequence", name="pk_jobs_kept"),
    )
    op.drop_index("ix_jobs_principal_size_bytes", "jobs")
