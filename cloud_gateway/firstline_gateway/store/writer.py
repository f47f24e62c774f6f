"""The group-commit writer of the gateway's store."""

from __future__ import annotations

from sqlalchemy import Connection

from firstline_core.errors import StoreUnavailableError
from firstline_core.storage.group_writer import GroupWriter
from firstline_core.telemetry.logs import logger
from firstline_gateway.store.database import Database


class StoreWriter(GroupWriter[Connection]):
    """Writes to the store from one thread.

    Args:
        database: written to; not closed here.
    """

    def __init__(self, database: Database) -> None:
        super().__init__(
            database.begin, name=f"store {database.shown}", refusal=StoreUnavailableError, log=logger(__name__)
        )
