"""The store of one gateway: threads that read it for the event loop, and one thread that writes in groups.

The store has threads of its own, because a database that does not answer may block a thread for any time, and with it
all other work of that thread.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from functools import partial
from typing import TypeVar

from sqlalchemy import Connection

from firstline_core.errors import StoreUnavailableError
from firstline_core.storage.group_writer import GroupWriter
from firstline_core.telemetry.logs import logger
from firstline_core.telemetry.metrics import RequestMetrics
from firstline_gateway.store.database import Database

PATIENCE_S = 5.0
"""Longest wait for a database that does not answer."""

_THREADS = 4
_RETRY_AFTER_S = 5.0

_T = TypeVar("_T")


class Readers:
    """Reads the store for one event loop, in threads of its own.

    Each part with readers of its own, such as the checks of devices and the promised corrections, is not delayed by
    the slow reads of other parts.

    Args:
        database: to read from; not closed here.
    """

    def __init__(self, database: Database) -> None:
        self.database = database
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="store-reader")

    async def read(self, operation: Callable[[Connection], _T], *, patience_s: float | None = None) -> _T:
        """Runs an operation in a read transaction, and returns its result.

        Args:
            operation: reads.
            patience_s: the longest wait for it; None for `PATIENCE_S`.

        Raises:
            StoreUnavailableError: the database refuses, or does not answer.
        """

        def run() -> _T:
            with self.database.reading() as connection:
                return operation(connection)

        async with limited_wait(self.database, patience_s=patience_s):
            return await asyncio.get_running_loop().run_in_executor(self._threads, run)

    def close(self, timeout_s: float | None = None) -> bool:
        """Ends the threads; returns False if the database blocked one for longer than `timeout_s`."""
        ending = threading.Thread(target=partial(self._threads.shutdown, cancel_futures=True), daemon=True)
        ending.start()
        ending.join(timeout_s)
        return not ending.is_alive()


class Store(GroupWriter[Connection]):
    """Reads and writes the store of one gateway.

    Args:
        database: not closed here.
    """

    def __init__(self, database: Database) -> None:
        super().__init__(
            database.begin, name=f"store {database.shown}", refusal=StoreUnavailableError, log=logger(__name__)
        )
        self.database = database
        self._readers = Readers(database)

    async def read(self, operation: Callable[[Connection], _T], *, patience_s: float | None = None) -> _T:
        """Runs an operation in a read transaction, and returns its result; see `Readers.read`."""
        return await self._readers.read(operation, patience_s=patience_s)

    async def write(self, operation: Callable[[Connection], _T], *, apart: bool = False, key: str = "") -> _T:
        """Runs one operation in a transaction and returns its result once it is durable.

        Args:
            operation: reads and writes; it may run again, because a group that fails is undone and retried one by one.
            apart: whether it takes a lock under which it must wait for no other lock; see `submit_then`.
            key: of the row that it locks first; operations of one key keep their order.

        Raises:
            StoreUnavailableError: the database refuses, or too many operations wait.
            NotReadyError: this gateway is ending.
        """
        return await asyncio.wrap_future(self.submit_then(operation, lambda result: result, apart=apart, key=key))

    async def change(self, operation: Callable[[Connection], _T]) -> _T:
        """Like `write`, for a caller who waits for the answer: a database that does not answer is an error.

        Raises:
            StoreUnavailableError: the database refuses or does not answer, or too many operations wait.
            NotReadyError: this gateway is ending.
        """
        async with limited_wait(self.database, CHECK_CHANGE):
            return await self.write(operation)

    def reason_down(self) -> str:
        """Returns why the database accepts no writes at the moment; "" if it does."""
        since_s = self.busy_since_s
        if since_s is not None and time.monotonic() - since_s > PATIENCE_S:
            return f"The store {self.database.shown} has not answered for {PATIENCE_S:g} s; check that it runs."
        return self.problem

    def close(self, timeout_s: float | None = None) -> bool:
        """Ends the threads after what was submitted before is written; calling it twice is harmless.

        Returns:
            False if that took longer than `timeout_s`: a database that does not answer may block for any time.
        """
        self.end()
        started_s = time.monotonic()
        readers_ended = self._readers.close(timeout_s)
        left_s = None if timeout_s is None else max(0.0, started_s + timeout_s - time.monotonic())
        return super().close(left_s) and readers_ended


CHECK_CHANGE = "check that it runs, and whether the change was made, before you send the request again"
"""Advice of `limited_wait` for a change, which may still take effect."""


@asynccontextmanager
async def limited_wait(
    database: Database,
    advice: str = "check that it runs, then send the request again",
    *,
    patience_s: float | None = None,
) -> AsyncIterator[None]:
    """Limits the wait for the database; the operation may still take effect later.

    Args:
        database: to wait for.
        advice: ends the sentence of the error.
        patience_s: the longest wait; None for `PATIENCE_S`.

    Raises:
        StoreUnavailableError: it does not answer.
    """
    longest_s = PATIENCE_S if patience_s is None else patience_s
    try:
        async with asyncio.timeout(longest_s):
            yield
    except TimeoutError as error:
        late = f"did not answer within {longest_s:g} s; {advice}."
        raise StoreUnavailableError(
            f"The store {database.shown} {late}", retry_after_s=_RETRY_AFTER_S, public=f"The gateway's store {late}"
        ) from error


def register_metrics(metrics: RequestMetrics, store: Store) -> None:
    """Registers whether the store accepts writes."""
    metrics.gauge("store_up", "1 while the store accepts writes.", lambda: float(not store.reason_down()))
