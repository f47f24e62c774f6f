"""One thread that writes, and commits in groups: many callers share one fsync."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from collections.abc import Callable
from dataclasses import dataclass, replace
from queue import SimpleQueue
from typing import Any

from firstline_core.errors import CapacityError, FirstlineError
from firstline_core.telemetry.logs import logger
from firstline_edge.outbox.database import empty_log

log = logger(__name__)

_GROUP_LIMIT = 256


@dataclass(slots=True)
class Totals:
    """What the database holds, kept beside it so that a limit costs no query."""

    items: int = 0
    item_bytes: int = 0
    answers: int = 0
    answer_bytes: int = 0


Operation = Callable[[sqlite3.Connection, Totals], Any]


class GroupWriter:
    """Runs operations in the order given; the future of each is done once its group is on the disk.

    An operation that raises a `FirstlineError` must not have written; it fails alone. An error of SQLite's undoes
    the whole group, and fails all of it.

    Args:
        connection: used by this thread alone from now on, and closed by it.
        totals: at the start; each operation sees and may change those of its group so far.
        on_commit: called on the event loop after each group, also when those who wait were cancelled.
    """

    def __init__(self, connection: sqlite3.Connection, totals: Totals, on_commit: Callable[[], None]) -> None:
        self._connection = connection
        self._on_commit = on_commit
        self._totals = totals
        self._queue: SimpleQueue[tuple[Operation, asyncio.Future[Any]] | None] = SimpleQueue()
        self._closing = False
        self._trouble = ""
        self._start()

    def _start(self) -> None:
        """Has somebody take groups from the queue: a thread, or the timers of a simulated loop."""
        self._thread = threading.Thread(target=self._run, name="outbox-writer", daemon=True)
        self._thread.start()

    @property
    def ended(self) -> bool:
        """Whether it takes nothing more."""
        return self._closing

    @property
    def totals(self) -> Totals:
        """As of the last commit."""
        return self._totals

    def submit(self, operation: Operation) -> asyncio.Future[Any]:
        """Queues one operation; the result comes once it is on the disk, also where nobody waits for it.

        Raises, or gives by the future:
            CapacityError: the disk or the database refuses.
            FirstlineError: the operation's own.
        """
        if self._closing:
            raise CapacityError("The outbox is closed.")
        done: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._queue.put((operation, done))
        return done

    async def run(self, operation: Operation) -> Any:
        """Runs one operation; returns its result once it is on the disk, or raises as `submit` says."""
        return await self.submit(operation)

    async def compact(self) -> None:
        """Returns once what was deleted before has left no byte in the files.

        Raises:
            CapacityError: the disk refuses, or somebody reads; what was deleted stays so.
        """
        await self.run(_compact_after)

    def end(self) -> None:
        """Takes nothing more; called on the event loop, as `submit` is, so that nothing is queued behind the end."""
        if not self._closing:
            self._closing = True
            self._queue.put(None)

    def close(self) -> None:
        """Ends the thread, after it has written what was queued before."""
        self.end()
        self._thread.join()

    def _run(self) -> None:
        open_ = True
        while open_:
            work, open_ = self._next_group()
            if work:
                outcomes = self._commit([operation for operation, _ in work])
                waiting = [done for _, done in work]
                waiting[0].get_loop().call_soon_threadsafe(self._settle, waiting, outcomes)
        self._connection.close()

    def _next_group(self) -> tuple[list[tuple[Operation, asyncio.Future[Any]]], bool]:
        """Waits for what is queued, and says whether more may come."""
        group = [self._queue.get()]
        while not self._queue.empty() and len(group) < _GROUP_LIMIT:
            group.append(self._queue.get())
        return [entry for entry in group if entry is not None], None not in group

    def _settle(self, futures: list[asyncio.Future[Any]], outcomes: list[Any]) -> None:
        self._on_commit()
        for done, outcome in zip(futures, outcomes, strict=True):
            if done.done():
                continue
            if isinstance(outcome, BaseException):
                done.set_exception(outcome)
            else:
                done.set_result(outcome)

    def _commit(self, operations: list[Operation]) -> list[Any]:
        totals = replace(self._totals)
        outcomes: list[Any] = []
        try:
            self._connection.execute("BEGIN IMMEDIATE")
            for operation in operations:
                try:
                    outcomes.append(operation(self._connection, totals))
                except FirstlineError as error:
                    outcomes.append(error)
            self._connection.execute("COMMIT")
            self._totals = totals
        except sqlite3.Error as error:
            self._note_trouble(str(error))
            return self._refuse(operations, error)
        except Exception as error:  # the thread's outermost loop: it must outlive any one group
            log.exception("outbox write broke", operations=len(operations))
            return self._refuse(operations, error)
        self._note_trouble("")
        if _compact_after in operations:
            compacted = self._compacted()  # of the group's other operations, which are on the disk, nothing is refused
            return [
                compacted if operation is _compact_after else outcome
                for operation, outcome in zip(operations, outcomes, strict=True)
            ]
        return outcomes

    def _compacted(self) -> CapacityError | None:
        try:
            _compact(self._connection)
        except sqlite3.Error as error:
            log.error("outbox not compacted", error=str(error))
            return _refusal(error)
        return None

    def _note_trouble(self, trouble: str) -> None:
        """Logs each change once: a full disk refuses every request, and has no room for a line about each."""
        if trouble != self._trouble:
            self._trouble = trouble
            if trouble:
                log.error("outbox write failed", error=trouble)
            else:
                log.info("outbox writes again")

    def _refuse(self, operations: list[Operation], error: Exception) -> list[Any]:
        if self._connection.in_transaction:
            self._roll_back()
        return [_refusal(error) for _ in operations]

    def _roll_back(self) -> None:
        try:
            self._connection.execute("ROLLBACK")
        except sqlite3.Error:
            log.exception("outbox rollback failed")


def _compact_after(_connection: sqlite3.Connection, _totals: Totals) -> None:
    """Stands in a group for what can only be done after its commit."""


def _compact(connection: sqlite3.Connection) -> None:
    """The zeros over what was deleted go from the log into the database, which then shrinks, and the log too.

    Raises:
        sqlite3.Error: the disk refuses.
    """
    empty_log(connection)
    connection.execute("VACUUM")
    empty_log(connection)


def is_full(error: BaseException | None) -> bool:
    """Whether it was for want of room that SQLite refused."""
    code = getattr(error, "sqlite_errorcode", None)
    return isinstance(error, sqlite3.Error) and code is not None and code & 0xFF == sqlite3.SQLITE_FULL


def _refusal(cause: Exception) -> CapacityError:
    refusal = CapacityError(f"The outbox could not be written: {cause}. Is the disk full or failing?")
    refusal.__cause__ = cause
    return refusal
