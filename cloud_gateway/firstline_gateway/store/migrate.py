"""Migrates a database to the schema of this version with Alembic, in one transaction."""

from __future__ import annotations

from pathlib import Path

from sqlalchemy import Connection, text

from firstline_core.errors import ConfigError
from firstline_core.telemetry.logs import logger

MIGRATIONS = Path(__file__).with_name("migrations")
VERSION_TABLE = "alembic_version"
"""The table in which Alembic stores the schema's number."""
# An arbitrary number that no other user of the server is likely to choose for a lock.
_LOCK = 0x6669727374

log = logger(__name__)


def upgrade(connection: Connection, shown: str) -> None:
    """Runs the missing migrations; of several processes that start at once, one does it and the others wait.

    Args:
        connection: a transaction that is committed afterwards.
        shown: the database in messages.

    Raises:
        ConfigError: a newer version of Firstline wrote the database.
    """
    lock(connection)
    try:
        migrate(connection)
    except ConfigError as error:
        raise ConfigError(f"The store {shown}: {error.message}") from error


def lock(connection: Connection) -> None:
    """Takes the lock of schema changes for this transaction; SQLite's write transactions exclude each other anyway."""
    if connection.dialect.name == "postgresql":
        connection.execute(text("SET LOCAL statement_timeout = 0"))
        connection.execute(text("SELECT pg_advisory_xact_lock(:lock)"), {"lock": _LOCK})


def schema_of(connection: Connection) -> str | None:
    """Returns the schema's number; None if there is no schema."""
    from alembic.runtime.migration import MigrationContext

    return MigrationContext.configure(connection).get_current_revision()


def migrate(connection: Connection, to: str = "head") -> None:
    """Runs the migrations up to a schema, within the caller's transaction.

    Raises:
        ConfigError: this version does not know that schema, or the one that there is.
    """
    # Imported here: a gateway's other commands open no database.
    from alembic import command
    from alembic.config import Config
    from alembic.script import ScriptDirectory

    config = Config()
    config.set_main_option("script_location", str(MIGRATIONS).replace("%", "%%"))
    scripts = ScriptDirectory.from_config(config)
    known = {script.revision for script in scripts.walk_revisions()}
    head, found = scripts.get_current_head(), schema_of(connection)
    for schema in (found, head if to == "head" else to):
        if schema is not None and schema not in known:
            raise ConfigError(
                f"Its schema is {schema}; this version of Firstline knows up to {head}. Install the version that wrote "
                "it, or name another store."
            )
    if found != head:
        config.attributes["connection"] = connection
        command.upgrade(config, to)
        log.info("store brought up to date", schema_before=found, schema=schema_of(connection))
