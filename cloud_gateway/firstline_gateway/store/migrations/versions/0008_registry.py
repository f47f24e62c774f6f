"""The registry's signed metadata, and its aliases."""

import sqlalchemy as sa
from alembic import op

revision = "0008"
down_revision = "0007"


def upgrade() -> None:
    op.create_table(
        "registry_metadata",
        sa.Column("role", sa.String(16), nullable=False),
        sa.Column("version", sa.BigInteger, autoincrement=False, nullable=False),
        sa.Column("content", sa.LargeBinary, nullable=False),
        sa.Column("expires_s", sa.Double, nullable=False),
        sa.PrimaryKeyConstraint("role", "version", name="pk_registry_metadata"),
    )
    op.create_table(
        "registry_aliases",
        sa.Column("sequence", sa.BigInteger().with_variant(sa.Integer, "sqlite"), nullable=False, autoincrement=True),
        sa.Column("model", sa.String(64), nullable=False),
        sa.Column("alias", sa.String(64), nullable=False),
        sa.Column("version", sa.BigInteger),
        sa.Column("changed_by", sa.String(80), nullable=False),
        sa.Column("changed_s", sa.Double, nullable=False),
        sa.PrimaryKeyConstraint("sequence", name="pk_registry_aliases"),
    )
    op.create_index("ix_registry_aliases_model_alias_sequence", "registry_aliases", ["model", "alias", "sequence"])
