"""Profiles are found by the machine's fingerprint too, which their entries have said since there were any."""

import json

import sqlalchemy as sa
from alembic import op

revision = "0012"
down_revision = "0011"

_PLACE = ("bundle", "version", "machine")


def upgrade() -> None:
    op.add_column("profiles", sa.Column("fingerprint", sa.String(64), nullable=False, server_default=""))
    columns: list[sa.ColumnClause[str]] = [sa.column(name) for name in (*_PLACE, "entry", "fingerprint")]
    profiles = sa.table("profiles", *columns)
    connection = op.get_bind()
    for row in connection.execute(sa.select(profiles)).all():
        here = sa.and_(*(profiles.c[name] == getattr(row, name) for name in _PLACE))
        fingerprint = json.loads(row.entry)["fingerprint"]
        connection.execute(sa.update(profiles).where(here).values(fingerprint=fingerprint))
    op.create_index("ix_profiles_bundle_fingerprint", "profiles", ["bundle", "fingerprint"])
