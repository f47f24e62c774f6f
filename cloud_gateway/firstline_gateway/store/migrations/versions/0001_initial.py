"""The schema before the first release: the tables that the caller declares.

Until a release fixes it, a change of a table is a change of its declaration. The first release writes the tables out
here, and each later change is a migration of its own.
"""

from alembic import context, op

from firstline_core.fleet.audit_log import FIRST

revision = "0001"
down_revision = None

_SINGLE_ROWS: dict[str, dict[str, object]] = {
    "audit_log_head": {"number": 0, "sha256": FIRST},
    "fleet_brake": {"number": 0, "brake": None},
    "identity_version": {"version": 0},
    "rollout_lease": {"holder": "", "until_service_s": -1.0},
    "service_clock": {"seconds": 0.0},
}


def upgrade() -> None:
    declared = context.config.attributes["tables"]
    declared.create_all(op.get_bind(), checkfirst=False)  # of a damaged store, tables may exist
    for table, row in _SINGLE_ROWS.items():
        op.bulk_insert(declared.tables[table], [{"id": 1, **row}])
