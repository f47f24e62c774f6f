"""Contracts' audits, and the deliveries that were answered."""

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None


def upgrade() -> None:
    op.create_table(
        "contract_pools",
        sa.Column("key", sa.Text, nullable=False),
        sa.Column("record", sa.Text, nullable=False),
        sa.PrimaryKeyConstraint("key", name="pk_contract_pools"),
    )
    op.create_table(
        "contract_contributions",
        sa.Column("pool", sa.Text, nullable=False),
        sa.Column("device", sa.Text, nullable=False),
        sa.Column("audits", sa.BigInteger, nullable=False),
        sa.Column("disagreements", sa.BigInteger, nullable=False),
        sa.Column("last_s", sa.Double, nullable=False),
        sa.PrimaryKeyConstraint("pool", "device", name="pk_contract_contributions"),
    )
    op.create_table(
        "contract_audits",
        sa.Column("device", sa.Text, nullable=False),
        sa.Column("request_id", sa.Text, nullable=False),
        sa.Column("counted_s", sa.Double, nullable=False),
        sa.PrimaryKeyConstraint("device", "request_id", name="pk_contract_audits"),
    )
    op.create_index("ix_contract_audits_counted_s", "contract_audits", ["counted_s"])
    op.create_index("ix_contract_audits_device_counted_s", "contract_audits", ["device", "counted_s"])
    op.create_table(
        "contract_quotas",
        sa.Column("bundle", sa.Text, nullable=False),
        sa.Column("version", sa.BigInteger, nullable=False),
        sa.Column("per_hour", sa.Double, nullable=False),
        sa.PrimaryKeyConstraint("bundle", "version", name="pk_contract_quotas"),
    )
    op.create_table(
        "deliveries",
        sa.Column("sequence", sa.BigInteger().with_variant(sa.Integer, "sqlite"), nullable=False, autoincrement=True),
        sa.Column("device", sa.Text, nullable=False),
        sa.Column("request_id", sa.Text, nullable=False),
        sa.Column("content", sa.LargeBinary, nullable=False),
        sa.Column("service_s", sa.Double, nullable=False),
        sa.Column("answer", sa.LargeBinary, nullable=True),
        sa.Column("answer_header", sa.Integer, nullable=True),
        sa.PrimaryKeyConstraint("sequence", name="pk_deliveries"),
        sa.UniqueConstraint("device", "request_id", name="uq_deliveries_device_request_id"),
    )
    op.create_index("ix_deliveries_service_s", "deliveries", ["service_s"])
    op.create_table(
        "service_clock",
        sa.Column("id", sa.Integer, nullable=False),
        sa.Column("seconds", sa.Double, nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_service_clock"),
    )
    op.execute("INSERT INTO service_clock (id, seconds) VALUES (1, 0)")
