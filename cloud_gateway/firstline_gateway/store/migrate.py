"""Brings a database to the schema that this version knows, by alembic's migrations, in one transaction."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from sqlalchemy import text

from firstline_core.errors import ConfigError

if TYPE_CHECKING:
    from firstline_gateway.store.database import Database

MIGRATIONS = Path(__file__).with_name("migrations")
# Any number that nobody else who uses the server would take for a lock of theirs.
_LOCK = 0x6669727374


def upgrade(database: Database) -> None:
    """Runs what is missing; of several processes that start at once, one does it and the others wait.

    Raises:
        ConfigError: a newer version of Firstline wrote it.
        CapacityError: the database refuses; it is as it was.
    """
    # Imported here: a gateway's other commands open no database.
    from alembic import command
    from alembic.config import Config
    from alembic.runtime.migration import MigrationContext
    from alembic.script import ScriptDirectory

    config = Config()
    config.set_main_option("script_location", str(MIGRATIONS).replace("%", "%%"))
    known = ScriptDirectory.from_config(config)
    head = known.get_current_head()
    with database.begin() as connection:
        if database.dialect == "postgresql":
            connection.execute(text("SET LOCAL statement_timeout = 0"))
            connection.execute(text("SELECT pg_advisory_xact_lock(:lock)"), {"lock": _LOCK})
        found = MigrationContext.configure(connection).get_current_revision()
        if found == head:
            return
        if found is not None and found not in {script.revision for script in known.walk_revisions()}:
            raise ConfigError(
                f"The store {database.shown} has schema {found}; this version of Firstline knows up to {head}. "
                "Install the version that wrote it, or name another store."
            )
        config.attributes["connection"] = connection
        command.upgrade(config, "head")
