"""Rollouts, their devices, the looks at them, and who drives them."""

import sqlalchemy as sa
from alembic import op

revision = "0009"
down_revision = "0008"


def upgrade() -> None:
    op.create_table(
        "rollouts",
        sa.Column("id", sa.String(64), nullable=False),
        sa.Column("bundle", sa.String(64), nullable=False),
        sa.Column("state", sa.String(16), nullable=False),
        sa.Column("active", sa.Boolean, nullable=False),
        sa.Column("revision", sa.BigInteger, nullable=False),
        sa.Column("idempotency", sa.String(64)),
        sa.Column("record", sa.Text, nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_rollouts"),
        sa.UniqueConstraint("idempotency", name="uq_rollouts_idempotency"),
    )
    op.create_index("ix_rollouts_bundle", "rollouts", ["bundle"])
    op.create_index("ix_rollouts_active", "rollouts", ["active"])
    op.create_table(
        "rollout_devices",
        sa.Column("rollout", sa.String(64), nullable=False),
        sa.Column("device", sa.String(64), nullable=False),
        sa.Column("state", sa.String(16), nullable=False),
        sa.Column("record", sa.Text, nullable=False),
        sa.Column("before", sa.Text),
        sa.Column("start", sa.Text),
        sa.PrimaryKeyConstraint("rollout", "device", name="pk_rollout_devices"),
    )
    op.create_table(
        "rollout_looks",
        sa.Column("rollout", sa.String(64), nullable=False),
        sa.Column("stage", sa.Integer, nullable=False, autoincrement=False),
        sa.Column("look", sa.Integer, nullable=False, autoincrement=False),
        sa.Column("at_s", sa.Double, nullable=False),
        sa.Column("verdict", sa.Text, nullable=False),
        sa.PrimaryKeyConstraint("rollout", "stage", "look", name="pk_rollout_looks"),
    )
    op.create_table(
        "rollout_lease",
        sa.Column("id", sa.Integer, nullable=False, autoincrement=False),
        sa.Column("holder", sa.String(64), nullable=False),
        sa.Column("until_service_s", sa.Double, nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_rollout_lease"),
    )
