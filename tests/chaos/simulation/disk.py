"""Both tiers' own databases, committed in simulated time; what a kill finds uncommitted was never there.

Each tier's writer groups and commits as it does in its thread, but on the timers of the simulated loop.
"""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, TypeVar

from sqlalchemy import Connection

from firstline_core.errors import FirstlineError
from firstline_core.storage.group_writer import tell
from firstline_edge.outbox.writer import GroupWriter, Operation, Totals
from firstline_gateway.store.database import Database
from firstline_gateway.store.writer import StoreWriter

_T = TypeVar("_T")
_U = TypeVar("_U")

_TELL_S = 0.0001  # from a commit to those who wait for it: a kill in between finds it kept and unacknowledged


class Disk:
    """Of one process.

    Args:
        fsync_s: of a commit.
        on_commit: told of each, with what the database then holds.

    Attributes:
        dead: the process was killed: nothing is written any more, and nobody is told.
    """

    def __init__(self, fsync_s: float, on_commit: Callable[[sqlite3.Connection], None]) -> None:
        self.fsync_s = fsync_s
        self.on_commit = on_commit
        self.dead = False

    def writer(self, connection: sqlite3.Connection, totals: Totals, on_commit: Callable[[], None]) -> GroupWriter:
        """As the outbox makes its own."""
        return _SimulatedWriter(self, connection, totals, on_commit)


class SimulatedStoreWriter(StoreWriter):
    """The gateway's.

    Args:
        fsync_s: of a commit.

    Attributes:
        dead: as of a `Disk`.
    """

    def __init__(self, database: Database, fsync_s: float) -> None:
        self._fsync_s = fsync_s
        self._busy = False
        self.dead = False
        super().__init__(database)

    def _start(self) -> None:
        pass

    def submit_then(
        self, operation: Callable[[Connection], _T | FirstlineError], then: Callable[[_T], _U], *, writes: bool = True
    ) -> Future[_U]:
        done = super().submit_then(operation, then, writes=writes)
        self._begin()
        return done

    def close(self, timeout_s: float | None = None) -> bool:
        self._closed = True
        return True

    def _begin(self) -> None:
        if not self._busy and not self._queue.empty():
            self._busy = True
            asyncio.get_running_loop().call_later(self._fsync_s, self._end)

    def _end(self) -> None:
        if not self.dead:
            tell(self._commit(self._next_group()[0]))
            self._busy = False
            self._begin()


class _SimulatedWriter(GroupWriter):
    """The agent's."""

    def __init__(
        self, disk: Disk, connection: sqlite3.Connection, totals: Totals, on_commit: Callable[[], None]
    ) -> None:
        self._disk = disk
        self._busy = False
        super().__init__(connection, totals, on_commit)

    def _start(self) -> None:
        pass

    def submit(self, operation: Operation) -> asyncio.Future[Any]:
        done = super().submit(operation)
        self._begin()
        return done

    def close(self) -> None:
        self._closing = True
        while not self._queue.empty() and not self._disk.dead:
            self._write()
        self._connection.close()

    def _begin(self) -> None:
        if not self._busy and not self._queue.empty():
            self._busy = True
            asyncio.get_running_loop().call_later(self._disk.fsync_s, self._end)

    def _end(self) -> None:
        if self._disk.dead or self._closing:
            return
        self._write()
        self._busy = False
        self._begin()

    def _write(self) -> None:
        work, _ = self._next_group()
        outcomes = self._commit([operation for operation, _ in work])
        self._disk.on_commit(self._connection)
        asyncio.get_running_loop().call_later(_TELL_S, self._tell, [done for _, done in work], outcomes)

    def _tell(self, waiting: list[asyncio.Future[Any]], outcomes: list[Any]) -> None:
        if not self._disk.dead:
            self._settle(waiting, outcomes)
