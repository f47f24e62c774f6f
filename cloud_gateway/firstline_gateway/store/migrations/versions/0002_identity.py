"""Devices, their certificates, join tokens and API keys."""

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"


def upgrade() -> None:
    version = op.create_table(
        "identity_version",
        sa.Column("id", sa.Integer, autoincrement=False, nullable=False),
        sa.Column("version", sa.BigInteger, nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_identity_version"),
    )
    op.bulk_insert(version, [{"id": 1, "version": 0}])
    op.create_table(
        "devices",
        sa.Column("name", sa.String(64), nullable=False),
        sa.Column("enrolled_s", sa.Double, nullable=False),
        sa.Column("revoked_s", sa.Double),
        sa.Column("changed", sa.BigInteger, nullable=False),
        sa.PrimaryKeyConstraint("name", name="pk_devices"),
    )
    op.create_index("ix_devices_changed", "devices", ["changed"])
    op.create_table(
        "certificates",
        sa.Column("serial", sa.String(40), nullable=False),
        sa.Column("device", sa.String(64), nullable=False),
        sa.Column("issued_s", sa.Double, nullable=False),
        sa.Column("not_after_s", sa.Double, nullable=False),
        sa.Column("revoked_s", sa.Double),
        sa.Column("changed", sa.BigInteger, nullable=False),
        sa.PrimaryKeyConstraint("serial", name="pk_certificates"),
    )
    op.create_index("ix_certificates_not_after_s", "certificates", ["not_after_s"])
    op.create_index("ix_certificates_changed", "certificates", ["changed"])
    op.create_index("ix_certificates_device", "certificates", ["device", "not_after_s"])
    op.create_table(
        "join_tokens",
        sa.Column("sha256", sa.String(64), nullable=False),
        sa.Column("device", sa.String(64), nullable=False),
        sa.Column("created_by", sa.String(80), nullable=False),
        sa.Column("created_s", sa.Double, nullable=False),
        sa.Column("expires_s", sa.Double, nullable=False),
        sa.Column("used_s", sa.Double),
        sa.Column("key_hash", sa.String(64)),
        sa.Column("certificate", sa.Text),
        sa.PrimaryKeyConstraint("sha256", name="pk_join_tokens"),
    )
    op.create_index("ix_join_tokens_device", "join_tokens", ["device"])
    op.create_index("ix_join_tokens_expires_s", "join_tokens", ["expires_s"])
    op.create_table(
        "api_keys",
        sa.Column("sha256", sa.String(64), nullable=False),
        sa.Column("name", sa.String(64), nullable=False),
        sa.Column("kind", sa.String(16), nullable=False),
        sa.Column("scopes", sa.String(64), nullable=False),
        sa.Column("created_s", sa.Double, nullable=False),
        sa.Column("expires_s", sa.Double),
        sa.Column("requests_per_s", sa.Double),
        sa.Column("revoked_s", sa.Double),
        sa.Column("changed", sa.BigInteger, nullable=False),
        sa.PrimaryKeyConstraint("sha256", name="pk_api_keys"),
    )
    op.create_index("ix_api_keys_name", "api_keys", ["name"])
    op.create_index("ix_api_keys_changed", "api_keys", ["changed"])
