"""Audits, contributions and certificates grow old by seconds of service, no more by a wall clock that may jump.

What is there is given service times as far apart as its wall times are, but none more than an hour back: nothing is
forgotten by the upgrade, and no device's share of the hour is used up by it.
"""

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"

_AGED = """UPDATE {table} SET {column} = (SELECT seconds FROM service_clock)
    - CASE WHEN newest.wall_s - {wall} < 3600 THEN newest.wall_s - {wall} ELSE 3600 END
    FROM (SELECT max({wall}) AS wall_s FROM {table}) AS newest"""


def upgrade() -> None:
    op.drop_index("ix_contract_audits_counted_s", "contract_audits")
    op.drop_index("ix_contract_audits_device_counted_s", "contract_audits")
    op.execute(_AGED.format(table="contract_audits", column="counted_s", wall="counted_s"))
    op.execute("ALTER TABLE contract_audits RENAME COLUMN counted_s TO service_s")
    op.create_index("ix_contract_audits_service_s", "contract_audits", ["service_s"])
    op.create_index("ix_contract_audits_device_service_s", "contract_audits", ["device", "service_s"])
    op.add_column("contract_contributions", sa.Column("service_s", sa.Double, nullable=False, server_default="0"))
    op.execute(_AGED.format(table="contract_contributions", column="service_s", wall="last_s"))
    # Until when a certificate is kept whatever a wall clock says: as long as it was made for, from now on.
    op.add_column("certificates", sa.Column("kept_service_s", sa.Double, nullable=False, server_default="0"))
    op.execute("UPDATE certificates SET kept_service_s = (SELECT seconds FROM service_clock) + not_after_s - issued_s")
