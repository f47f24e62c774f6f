"""One thread that writes to the store, and commits in groups: many callers share one fsync."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from queue import SimpleQueue
from typing import Any, NamedTuple, TypeVar

from sqlalchemy import Connection

from firstline_core.errors import FirstlineError, NotReadyError, StoreUnavailableError
from firstline_core.telemetry.logs import logger
from firstline_gateway.store.database import Database

log = logger(__name__)

_GROUP_LIMIT = 256
_WAITING_LIMIT = 4096
_RETRY_AFTER_S = 1.0

_T = TypeVar("_T")
_U = TypeVar("_U")
Operation = Callable[[Connection], _T]


class _Work(NamedTuple):
    operation: Operation[Any]
    then: Callable[[Any], Any]
    done: Future[Any]
    writes: bool


class GroupWriter:
    """Runs operations in the order given; the future of each is done once its group is durable.

    An operation may run twice, for where one of a group fails all of it is undone and each tried alone; so it must
    have no effect but on the database. It fails alone.

    Args:
        database: written to; not closed here.
    """

    def __init__(self, database: Database) -> None:
        self._database = database
        self._queue: SimpleQueue[_Work | None] = SimpleQueue()
        self._closed = False
        self._gate = threading.Lock()  # so that nothing is queued behind the end
        self._trouble = ""
        self._start()

    def _start(self) -> None:
        """Has somebody take groups from the queue: a thread, or the timers of a simulated loop."""
        self._thread = threading.Thread(target=self._run, name="store-writer", daemon=True)
        self._thread.start()

    @property
    def trouble(self) -> str:
        """Why the store refused the latest group; "" where it did not."""
        return self._trouble

    def submit(self, operation: Operation[_T]) -> Future[_T]:
        """Queues one operation; from any thread.

        Returns:
            Its result, once durable; or StoreUnavailableError; or the operation's own error.

        Raises:
            StoreUnavailableError: too many wait.
            NotReadyError: this gateway is ending.
        """
        return self.submit_then(operation, lambda result: result)

    def submit_then(self, operation: Operation[_T], then: Callable[[_T], _U], *, writes: bool = True) -> Future[_U]:
        """Queues one operation, and what is to be done in this process once it is durable.

        Args:
            operation: as for `submit`.
            then: runs on the writing thread, in the order of the commits; its result is the future's.
            writes: False where it only reads: that a full disk can be read says nothing of whether it takes anything.
        """
        if self._queue.qsize() >= _WAITING_LIMIT:
            raise StoreUnavailableError(
                f"{_WAITING_LIMIT} writes wait for the store {self._database.shown}; come back later.",
                retry_after_s=_RETRY_AFTER_S,
            )
        done: Future[_U] = Future()
        with self._gate:
            if self._closed:
                raise NotReadyError("This gateway is ending, and keeps nothing more.", retry_after_s=_RETRY_AFTER_S)
            self._queue.put(_Work(operation, then, done, writes))
        return done

    def close(self, timeout_s: float | None = None) -> bool:
        """Ends the thread, after it has written what was queued before.

        Returns:
            False where that took longer: a database that says nothing may hold it for as long as it likes.
        """
        with self._gate:
            if not self._closed:
                self._closed = True
                self._queue.put(None)
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def _run(self) -> None:
        open_ = True
        while open_:
            group, open_ = self._next_group()
            self._commit(group)

    def _next_group(self) -> tuple[list[_Work], bool]:
        """Waits for what is queued, and says whether more may come."""
        group = [self._queue.get()]
        while not self._queue.empty() and len(group) < _GROUP_LIMIT:
            group.append(self._queue.get())
        wanted = [one for one in group if one is not None and one.done.set_running_or_notify_cancel()]
        return wanted, None not in group

    def _commit(self, group: list[_Work]) -> None:
        if not group:
            return
        try:
            with self._database.begin() as connection:
                results = [work.operation(connection) for work in group]
        except Exception as error:  # noqa: BLE001 (the outermost loop of a thread that must never end)
            if len(group) > 1 and not self._away(error):
                for work in group:
                    self._commit([work])
                return
            self._note(error)
            for work in group:
                work.done.set_exception(error)
            return
        if any(work.writes for work in group):
            self._note(None)
        for work, result in zip(group, results, strict=True):
            try:
                work.done.set_result(work.then(result))
            except Exception as error:
                log.exception("what follows a write broke")
                work.done.set_exception(error)

    def _away(self, error: Exception) -> bool:
        """Whether there is no database at this moment, so that to try each operation alone would only take longer."""
        if not isinstance(error, StoreUnavailableError):
            return False
        try:
            with self._database.begin():
                return False
        except StoreUnavailableError:
            return True

    def _note(self, error: Exception | None) -> None:
        """Logs each change once: a store that is away refuses every write, and a line about each helps nobody."""
        if error is not None and not isinstance(error, FirstlineError):
            log.error("store write broke", error=repr(error), exc_info=error)
            return
        trouble = error.message if isinstance(error, StoreUnavailableError) else ""
        if trouble != self._trouble:
            self._trouble = trouble
            if trouble:
                log.error("store refuses", error=trouble)
            else:
                log.info("store writes again")
