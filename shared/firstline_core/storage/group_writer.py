"""One thread that writes to a database and commits in groups: many callers share one fsync."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import AbstractContextManager
from queue import SimpleQueue
from typing import Any, Generic, NamedTuple, TypeVar

from structlog.stdlib import BoundLogger

from firstline_core.errors import CapacityError, FirstlineError, NotReadyError

_GROUP_LIMIT = 256
_GROUP_LIMIT_S = 0.5  # other processes wait for the rows that a transaction has locked
_WAITING_LIMIT = 4096
_RETRY_AFTER_S = 1.0

Transaction = TypeVar("Transaction")
_T = TypeVar("_T")
_U = TypeVar("_U")


class _Work(NamedTuple):
    operation: Callable[[Any], Any]
    then: Callable[[Any], Any]
    done: Future[Any]
    writes: bool
    apart: bool
    key: str


class GroupWriter(Generic[Transaction]):
    """Runs operations in the order of submission, those of a group in the order of their keys first.

    The future of each is done once its group is durable. Two processes that write the same rows in the order of keys
    cannot wait for each other. A slow group takes several transactions.

    An operation may run twice: if one operation of a group raises, the whole group is undone and each operation is
    tried alone. So an operation must have no effect outside the database. An operation that refuses without having
    written anything returns the `FirstlineError` instead of raising it, and its group is committed.

    Args:
        begin: opens a transaction that is durable once the block has ended, and undone if the block raises. Raises
            `refusal` while the database is unavailable.
        name: names the database in log lines, e.g. "store sqlite:///gateway.db"; errors have its first word.
        refusal: the error by which `begin` says that the database is unavailable.
        log: receives one line when the database starts to refuse, and one when it accepts writes again.

    Attributes:
        problem: why the database refused the latest group; "" if it did not.
        busy_since_s: when the writing thread began the present transaction, by the monotonic clock; None if it waits.
        closed: whether it accepts no more operations.
    """

    def __init__(
        self,
        begin: Callable[[], AbstractContextManager[Transaction]],
        *,
        name: str,
        refusal: type[CapacityError],
        log: BoundLogger,
    ) -> None:
        self._begin = begin
        self._name = name
        self._kind = name.partition(" ")[0]
        self._refusal = refusal
        self._log = log
        self._queue: SimpleQueue[_Work | None] = SimpleQueue()
        self.closed = False
        self._gate = threading.Lock()  # so that nothing is queued behind the end
        self.problem = ""
        self.busy_since_s: float | None = None
        self._start()

    def _start(self) -> None:
        """Starts to take groups from the queue; a simulation replaces the thread by timers."""
        self._thread = threading.Thread(target=self._run, name=f"{self._kind}-writer", daemon=True)
        self._thread.start()

    def submit(self, operation: Callable[[Transaction], _T | FirstlineError]) -> Future[_T]:
        """Queues one operation; may be called from any thread.

        Returns:
            The operation's result, once durable; or `refusal`; or the operation's own error.

        Raises:
            CapacityError: too many operations wait (`refusal`), or the writer is closed (NotReadyError).
        """
        return self.submit_then(operation, lambda result: result)

    def submit_then(
        self,
        operation: Callable[[Transaction], _T | FirstlineError],
        then: Callable[[_T], _U],
        *,
        writes: bool = True,
        apart: bool = False,
        key: str = "",
    ) -> Future[_U]:
        """Queues one operation, and what this process does once the operation is durable.

        Args:
            operation: as for `submit`.
            then: runs on the writing thread outside of any transaction, in the order of the commits. Its result is
                the future's result.
            writes: False if the operation only reads: a full disk can still be read, so a read says nothing about
                `problem`.
            apart: True if the operation takes a lock under which it must wait for no other lock: it shares a
                transaction only with others of its kind.
            key: of the row that it locks first; operations of one key keep their order.
        """
        if self._queue.qsize() >= _WAITING_LIMIT:
            raise self._refusal(
                f"{_WAITING_LIMIT} writes wait for the {self._kind}; retry later.", retry_after_s=_RETRY_AFTER_S
            )
        done: Future[_U] = Future()
        with self._gate:
            if self.closed:
                raise NotReadyError(
                    f"The {self._kind} is closed and stores nothing more.", retry_after_s=_RETRY_AFTER_S
                )
            self._queue.put(_Work(operation, then, done, writes, apart, key))
        return done

    def end(self) -> None:
        """Refuses new operations, and returns at once; those submitted before are still written."""
        with self._gate:
            if not self.closed:
                self.closed = True
                self._queue.put(None)

    def close(self, timeout_s: float | None = None) -> bool:
        """Ends the thread after it has written what was submitted before; calling it twice is harmless.

        Returns:
            False if that took longer than `timeout_s`: a database that does not answer may block for any time.
        """
        self.end()
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def _run(self) -> None:
        open_ = True
        while open_:
            group, open_ = self._next_group()
            for apart in (False, True):
                chosen = [work for work in group if work.apart is apart]
                resolve(self._commit(sorted(chosen, key=lambda work: work.key)))
            self.busy_since_s = None

    def _next_group(self) -> tuple[list[_Work], bool]:
        """Waits for operations; returns those that were not cancelled, and whether more may come."""
        group = [self._queue.get()]
        while not self._queue.empty() and len(group) < _GROUP_LIMIT:
            group.append(self._queue.get())
        wanted = [one for one in group if one is not None and one.done.set_running_or_notify_cancel()]
        return wanted, None not in group

    def _commit(self, group: list[_Work]) -> list[tuple[_Work, Any]]:
        """Commits a group and returns each operation's outcome, which is its result or an exception."""
        if not group:
            return []
        self.busy_since_s = time.monotonic()
        try:
            with self._begin() as transaction:
                results = self._results(transaction, group)
        except Exception as error:  # noqa: BLE001 (the outermost loop of a thread that must never end)
            if len(group) > 1 and not self._is_unavailable(error):
                return [outcome for work in group for outcome in self._commit([work])]
            self._note(error)
            return [(work, error) for work in group]
        done, later = group[: len(results)], group[len(results) :]
        if any(work.writes for work in done):
            self._note(None)
        outcomes = [(work, self._finish(work, result)) for work, result in zip(done, results, strict=True)]
        return outcomes + self._commit(later)

    def _results(self, transaction: Transaction, group: list[_Work]) -> list[Any]:
        """Runs operations of a group until the time of a transaction has passed, and returns their results."""
        results = list[Any]()
        ends_s = time.monotonic() + _GROUP_LIMIT_S
        for work in group:
            results.append(work.operation(transaction))
            if time.monotonic() >= ends_s:
                break
        return results

    def _finish(self, work: _Work, result: Any) -> Any:
        if isinstance(result, FirstlineError):
            return result
        try:
            return work.then(result)
        except FirstlineError as error:
            return error
        except Exception as error:  # noqa: BLE001 (logged, and handed to the caller)
            self._log.exception("callback after a commit failed", database=self._name)
            return error

    def _is_unavailable(self, error: Exception) -> bool:
        """Returns whether even an empty transaction fails; retrying single operations is then useless."""
        if not isinstance(error, self._refusal):
            return False
        try:
            with self._begin():
                return False
        except self._refusal:
            return True

    def _note(self, error: Exception | None) -> None:
        """Logs each change once: a database that is away refuses every write, and one line is enough."""
        if error is not None and not isinstance(error, FirstlineError):
            self._log.error("write failed", database=self._name, error=repr(error), exc_info=error)
            return
        problem = error.message if isinstance(error, self._refusal) else ""
        if problem != self.problem:
            self.problem = problem
            if problem:
                self._log.error("database refuses writes", database=self._name, error=problem)
            else:
                self._log.info("database accepts writes again", database=self._name)


def resolve(outcomes: list[tuple[_Work, Any]]) -> None:
    """Hands each operation's outcome to those who wait for it."""
    for work, outcome in outcomes:
        if isinstance(outcome, BaseException):
            work.done.set_exception(outcome)
        else:
            work.done.set_result(outcome)
