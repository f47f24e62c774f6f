"""Both tiers' own databases, committed in simulated time; what a kill finds uncommitted was never there.

The group-commit writer groups and commits as it does in its thread, but on the timers of the simulated loop.
"""

import asyncio
import sqlite3
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import AbstractContextManager
from typing import TypeVar

from firstline_core.errors import CapacityError, FirstlineError
from firstline_core.storage.group_writer import GroupWriter, Transaction, resolve
from firstline_core.telemetry.logs import logger
from firstline_edge.outbox import database as outbox

_T = TypeVar("_T")
_U = TypeVar("_U")

_RESOLVE_S = 0.0001  # from a commit to those who wait for it: a kill in between finds it kept and unacknowledged


class Disk:
    """Of one process.

    Args:
        fsync_s: of a commit.

    Attributes:
        dead: the process was killed: nothing is written any more, and no waiting caller gets an outcome.
    """

    def __init__(self, fsync_s: float) -> None:
        self.fsync_s = fsync_s
        self.dead = False


class SimulatedWriter(GroupWriter[Transaction]):
    """A group-commit writer on timers.

    Args:
        disk: of the process.
        begin: as of a `GroupWriter`.
        on_commit: called after each commit.
    """

    def __init__(
        self,
        disk: Disk,
        begin: Callable[[], AbstractContextManager[Transaction]],
        on_commit: Callable[[], None] = lambda: None,
    ) -> None:
        self._disk = disk
        self._on_commit = on_commit
        self._busy = False
        super().__init__(begin, name="simulated database", refusal=CapacityError, log=logger(__name__))

    def _start(self) -> None:
        pass

    def submit_then(
        self,
        operation: Callable[[Transaction], _T | FirstlineError],
        then: Callable[[_T], _U],
        *,
        writes: bool = True,
        apart: bool = False,
        key: str = "",
    ) -> Future[_U]:
        done = super().submit_then(operation, then, writes=writes, apart=apart, key=key)
        self._schedule()
        return done

    def close(self, timeout_s: float | None = None) -> bool:
        self.closed = True
        while not self._queue.empty() and not self._disk.dead:
            self._write()
        return True

    def _schedule(self) -> None:
        if not self._busy and not self._queue.empty():
            self._busy = True
            asyncio.get_running_loop().call_later(self._disk.fsync_s, self._end)

    def _end(self) -> None:
        if self._disk.dead or self.closed:
            return
        self._write()
        self._busy = False
        self._schedule()

    def _write(self) -> None:
        outcomes = self._commit(self._next_group()[0])
        self._on_commit()
        asyncio.get_running_loop().call_later(_RESOLVE_S, self._resolve, outcomes)

    def _resolve(self, outcomes: list[tuple[object, object]]) -> None:
        if not self._disk.dead:
            resolve(outcomes)


def outbox_writer(disk: Disk, on_commit: Callable[[sqlite3.Connection], None]) -> outbox.MakeWriter:
    """Makes an outbox's writer; `on_commit` gets what the database holds after each commit."""

    def make(database: outbox.Database) -> outbox.Writer:
        return SimulatedWriter(disk, database.begin, lambda: on_commit(database.connection))

    return make
