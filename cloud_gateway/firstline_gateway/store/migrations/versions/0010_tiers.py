"""Who answered, of all devices together, over time."""

import sqlalchemy as sa
from alembic import op

revision = "0010"
down_revision = "0009"


def upgrade() -> None:
    op.create_table(
        "fleet_tiers",
        sa.Column("bucket", sa.Integer, nullable=False),
        sa.Column("model", sa.String(64), nullable=False),
        sa.Column("version", sa.BigInteger, nullable=False, autoincrement=False),
        sa.Column("kept", sa.BigInteger, nullable=False),
        sa.Column("escalated", sa.BigInteger, nullable=False),
        sa.Column("errors", sa.BigInteger, nullable=False),
        sa.PrimaryKeyConstraint("bucket", "model", "version", name="pk_fleet_tiers"),
    )
