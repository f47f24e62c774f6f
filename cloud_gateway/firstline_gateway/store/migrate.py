"""Migrates a database to the schema of this version with Alembic, in one transaction."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from sqlalchemy import Connection, MetaData, inspect, text

from firstline_core.errors import ConfigError
from firstline_core.telemetry.logs import logger

MIGRATIONS = Path(__file__).with_name("migrations")
VERSION_TABLE = "alembic_version"
"""The table in which Alembic stores the schema's number."""
HEAD = "0001"
"""The number of this version's schema, the last in `MIGRATIONS`."""
# An arbitrary number that no other user of the server is likely to choose for a lock.
_LOCK = 0x6669727374

Tables = Callable[[], MetaData]
"""Returns the tables of all packages, which higher layers declare; called if a migration is missing."""

log = logger(__name__)


def upgrade(connection: Connection, tables: Tables, shown: str) -> None:
    """Runs the missing migrations; of several processes that start at once, one does it and the others wait.

    Args:
        connection: a transaction that is committed afterwards.
        tables: see `Tables`.
        shown: the database in messages.

    Raises:
        ConfigError: a newer version of Firstline wrote the database.
    """
    lock(connection)
    try:
        migrate(connection, tables)
    except ConfigError as error:
        raise ConfigError(f"The store {shown}: {error.message}") from error


def lock(connection: Connection) -> None:
    """Takes the lock of schema changes for this transaction; SQLite's write transactions exclude each other anyway."""
    if connection.dialect.name == "postgresql":
        connection.execute(text("SET LOCAL statement_timeout = 0"))
        connection.execute(text("SET LOCAL lock_timeout = 0"))
        connection.execute(text("SELECT pg_advisory_xact_lock(:lock)"), {"lock": _LOCK})


def schema_of(connection: Connection) -> str | None:
    """Returns the schema's number; None if there is no schema."""
    if not inspect(connection).has_table(VERSION_TABLE):
        return None
    number: str | None = connection.execute(text("SELECT version_num FROM alembic_version")).scalar()
    return number


def migrate(connection: Connection, tables: Tables, to: str = HEAD) -> None:
    """Runs the migrations up to a schema, within the caller's transaction.

    Raises:
        ConfigError: this version does not know that schema, or the one that there is.
    """
    found = schema_of(connection)
    if found == to == HEAD:
        return
    # Imported here, because almost every start finds the schema as it must be.
    from alembic import command
    from alembic.config import Config
    from alembic.script import ScriptDirectory

    config = Config()
    config.set_main_option("script_location", str(MIGRATIONS).replace("%", "%%"))
    revisions = {script.revision for script in ScriptDirectory.from_config(config).walk_revisions()}
    for schema in (found, to):
        if schema is not None and schema not in revisions:
            raise ConfigError(
                f"Its schema is {schema}; this version of Firstline knows up to {HEAD}. Install the version that wrote "
                "it, or name another store."
            )
    if found != HEAD:
        config.attributes.update(connection=connection, tables=tables())
        command.upgrade(config, to)
        log.info("store brought up to date", schema_before=found, schema=schema_of(connection))
