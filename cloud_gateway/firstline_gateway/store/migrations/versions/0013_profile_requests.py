"""Requests for profiles end, and are fulfilled once; those that stood in the devices' twins stand for a week more."""

import json
import time

import sqlalchemy as sa
from alembic import op

revision = "0013"
down_revision = "0012"

_WEEK_S = 7 * 86_400.0


def upgrade() -> None:
    requests = op.create_table(
        "profile_requests",
        sa.Column("device", sa.String(64), nullable=False),
        sa.Column("bundle", sa.String(64), nullable=False),
        sa.Column("wanted", sa.Text, nullable=False),
        sa.Column("by", sa.String(128), nullable=False),
        sa.Column("asked_s", sa.Double, nullable=False),
        sa.Column("until_s", sa.Double, nullable=False),
        sa.Column("version", sa.BigInteger, nullable=False),
        sa.Column("sha256", sa.String(64), nullable=False),
        sa.Column("brought_s", sa.Double),
        sa.Column("ended_s", sa.Double),
        sa.Column("why", sa.Text, nullable=False),
        sa.PrimaryKeyConstraint("device", "bundle", name="pk_profile_requests"),
    )
    op.create_index("ix_profile_requests_until_s", "profile_requests", ["until_s"])
    connection, now_s = op.get_bind(), time.time()
    devices = sa.table("fleet_devices", *(sa.column(name) for name in ("name", "desired", "reported")))
    asked = sa.select(devices).where(devices.c.desired.like('%"profiles":[{%'))
    for row in connection.execute(asked).all():
        said = {one["id"]: one for one in json.loads(row.reported or "{}").get("profiles", ())}
        for place, wanted in enumerate(json.loads(row.desired)["profiles"]):
            found = said.get(wanted["id"], {})
            done = found.get("state") == "done"
            values = {
                "device": row.name,
                "bundle": wanted["bundle"],
                "wanted": json.dumps(wanted),
                "by": "",
                "asked_s": now_s + place * 1e-3,  # in their order
                "until_s": now_s + _WEEK_S,
                "version": found.get("version", 0) if done else 0,
                "sha256": "",
                "brought_s": now_s if done else None,
                "ended_s": None,
                "why": "",
            }
            connection.execute(sa.insert(requests).values(values))
