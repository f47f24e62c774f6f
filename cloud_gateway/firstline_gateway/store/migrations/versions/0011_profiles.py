"""What bundles' models cost on machines."""

import sqlalchemy as sa
from alembic import op

revision = "0011"
down_revision = "0010"


def upgrade() -> None:
    op.create_table(
        "profiles",
        sa.Column("bundle", sa.String(64), nullable=False),
        sa.Column("version", sa.BigInteger, nullable=False, autoincrement=False),
        sa.Column("machine", sa.String(64), nullable=False),
        sa.Column("kept_s", sa.Double, nullable=False),
        sa.Column("by", sa.String(128), nullable=False),
        sa.Column("entry", sa.Text, nullable=False),
        sa.Column("content", sa.LargeBinary, nullable=False),
        sa.PrimaryKeyConstraint("bundle", "version", "machine", name="pk_profiles"),
    )
