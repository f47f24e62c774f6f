"""The schema before the first release: every table that the packages declare.

Until a release fixes it, a change of a table is a change of its declaration. The first release writes the tables out
here, and each later change is a migration of its own.
"""

from importlib import import_module

from alembic import op

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


def upgrade() -> None:
    for name in _MODULES:
        import_module(f"firstline_gateway.{name}")
    METADATA.create_all(op.get_bind(), checkfirst=False)  # of a damaged store, tables may exist
    op.execute("INSERT INTO service_clock (id, seconds) VALUES (1, 0)")
    op.execute("INSERT INTO identity_version (id, version) VALUES (1, 0)")
