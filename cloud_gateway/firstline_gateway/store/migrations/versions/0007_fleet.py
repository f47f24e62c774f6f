"""The fleet: what devices shall run, what they report, and what they counted."""

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"


def upgrade() -> None:
    op.create_table(
        "fleet_devices",
        sa.Column("name", sa.String(64), nullable=False),
        sa.Column("tags", sa.Text, nullable=False),
        sa.Column("accepted_s", sa.Double),
        sa.Column("first_seen_s", sa.Double),
        sa.Column("last_seen_s", sa.Double),
        sa.Column("online", sa.Boolean, nullable=False),
        sa.Column("session", sa.String(64), nullable=False),
        sa.Column("earlier_sessions", sa.Text, nullable=False),
        sa.Column("sequence", sa.BigInteger, nullable=False),
        sa.Column("reported", sa.Text),
        sa.Column("desired", sa.Text, nullable=False),
        sa.Column("revision", sa.BigInteger, nullable=False),
        sa.Column("published", sa.BigInteger, nullable=False),
        sa.PrimaryKeyConstraint("name", name="pk_fleet_devices"),
    )
    op.create_index("ix_fleet_devices_last_seen_s", "fleet_devices", ["last_seen_s"])
    op.create_table(
        "fleet_counts",
        sa.Column("device", sa.String(64), nullable=False),
        sa.Column("session", sa.String(64), nullable=False),
        sa.Column("sequence", sa.BigInteger, nullable=False),
        sa.Column("latest", sa.Text, nullable=False),
        sa.Column("totals", sa.Text, nullable=False),
        sa.Column("at_s", sa.Double, nullable=False),
        sa.PrimaryKeyConstraint("device", name="pk_fleet_counts"),
    )
    op.create_table(
        "fleet_history",
        sa.Column("device", sa.String(64), nullable=False),
        sa.Column("hour", sa.Integer, nullable=False),
        sa.Column("at_s", sa.Double, nullable=False),
        sa.Column("totals", sa.Text, nullable=False),
        sa.PrimaryKeyConstraint("device", "hour", name="pk_fleet_history"),
    )
    op.create_table(
        "fleet_brake",
        sa.Column("id", sa.Integer, nullable=False, autoincrement=False),
        sa.Column("brake", sa.Text, nullable=False),
        sa.Column("by", sa.String(128), nullable=False),
        sa.Column("since_s", sa.Double, nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_fleet_brake"),
    )
