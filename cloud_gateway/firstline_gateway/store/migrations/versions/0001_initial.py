"""The schema before the first release: every table that the packages declare.

Until a release fixes it, a change of a table is a change of its declaration. The first release writes the tables out
here, and each later change is a migration of its own.
"""

from importlib import import_module

from alembic import op

from firstline_core.fleet.audit_log import FIRST
from firstline_gateway.store.schema import METADATA

revision = "0001"
down_revision = None

# The modules that declare tables.
_MODULES = (
    "audit_log",
    "contracts.records",
    "fleet.answers",
    "fleet.devices",
    "fleet.tiers",
    "fleet.totals",
    "identity.tables",
    "jobs.records",
    "profiles.records",
    "registry.records",
    "rollouts.records",
    "serving.deliveries.records",
    "store.service_clock",
    "webhooks.records",
)
_SINGLE_ROWS: dict[str, dict[str, object]] = {
    "audit_log_head": {"number": 0, "sha256": FIRST},
    "identity_version": {"version": 0},
    "rollout_lease": {"holder": "", "until_service_s": -1.0},
    "service_clock": {"seconds": 0.0},
}


def upgrade() -> None:
    for name in _MODULES:
        import_module(f"firstline_gateway.{name}")
    METADATA.create_all(op.get_bind(), checkfirst=False)  # of a damaged store, tables may exist
    for table, row in _SINGLE_ROWS.items():
        op.bulk_insert(METADATA.tables[table], [{"id": 1, **row}])
