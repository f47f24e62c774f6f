"""Threads that read the store for the event loop.

The store has threads of its own, because a database that does not answer may block a thread for any time, and with it
all other work of that thread.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TypeVar

from sqlalchemy import Connection

from firstline_core.errors import StoreUnavailableError
from firstline_gateway.store.database import Database

PATIENCE_S = 5.0
"""Longest wait for a database that does not answer."""

_THREADS = 4
_RETRY_AFTER_S = 5.0

_T = TypeVar("_T")


class Readers:
    """Reads the store for one event loop.

    Args:
        database: to read from; not closed here.
    """

    def __init__(self, database: Database) -> None:
        self.database = database
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="store-reader")

    async def read(self, operation: Callable[[Connection], _T]) -> _T:
        """Runs an operation in a read transaction, and returns its result.

        Raises:
            StoreUnavailableError: the database refuses, or does not answer.
        """

        def run() -> _T:
            with self.database.reading() as connection:
                return operation(connection)

        try:
            async with asyncio.timeout(PATIENCE_S):
                return await asyncio.get_running_loop().run_in_executor(self._threads, run)
        except TimeoutError as error:
            raise unresponsive(self.database) from error

    def close(self, timeout_s: float | None = None) -> bool:
        """Ends the threads; returns False if the database blocked one for longer than `timeout_s`."""
        ending = threading.Thread(target=partial(self._threads.shutdown, cancel_futures=True), daemon=True)
        ending.start()
        ending.join(timeout_s)
        return not ending.is_alive()


def unresponsive(database: Database) -> StoreUnavailableError:
    """Returns the error for a database that does not answer."""
    return StoreUnavailableError(
        f"The store {database.shown} did not answer within {PATIENCE_S:g} s.", retry_after_s=_RETRY_AFTER_S
    )
