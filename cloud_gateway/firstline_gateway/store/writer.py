"""The group-commit writer of the gateway's store."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TypeVar

from sqlalchemy import Connection

from firstline_core.errors import StoreUnavailableError
from firstline_core.storage.group_writer import GroupWriter
from firstline_core.telemetry.logs import logger
from firstline_gateway.store.database import Database

_T = TypeVar("_T")


class StoreWriter(GroupWriter[Connection]):
    """Writes to the store from one thread.

    Args:
        database: is written to; not closed here.
    """

    def __init__(self, database: Database) -> None:
        super().__init__(
            database.begin, name=f"store {database.shown}", refusal=StoreUnavailableError, log=logger(__name__)
        )

    async def write(self, operation: Callable[[Connection], _T]) -> _T:
        """Runs one operation in a transaction and returns its result once it is durable.

        Raises:
            StoreUnavailableError: the store refuses, or too many operations wait.
            NotReadyError: this gateway is ending.
        """
        return await asyncio.wrap_future(self.submit(operation))
