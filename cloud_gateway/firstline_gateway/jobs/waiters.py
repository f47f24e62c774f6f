"""Callers that wait for a job to end, so that they need not poll.

A job that ends in this process wakes its callers at once. Jobs that other replicas end are looked up in the store: one
query for all awaited jobs, and no query without waiting callers.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import Iterator
from functools import partial

from firstline_core.errors import QueueFullError
from firstline_core.telemetry.wording import counted
from firstline_gateway.jobs import records
from firstline_gateway.store.store import Store

JobEnd = asyncio.Future[None]
"""Done once a job has ended, was deleted, or this gateway stops; the store knows which."""

POLL_S = 0.5
"""Interval of `JobWaiters.poll` in seconds."""

_RETRY_S = 1.0


class JobWaiters:
    """The waiting callers. Belongs to one event loop.

    Args:
        store: reads it.
        limit: largest number of waiting callers; one principal may have half of them.
    """

    def __init__(self, store: Store, limit: int) -> None:
        self._store = store
        self._limit = limit
        self._waiting: dict[str, set[JobEnd]] = {}
        self._waits_of: Counter[str] = Counter()
        self._closed = False

    @contextlib.contextmanager
    def watch(self, job_id: str, principal: str) -> Iterator[JobEnd]:
        """Yields a future that is done when a job ends; read the job after this call.

        Raises:
            QueueFullError: too many callers wait.
        """
        self._check_room(principal)
        end: JobEnd = asyncio.get_running_loop().create_future()
        if self._closed:
            end.set_result(None)
        self._waits_of[principal] += 1
        others = self._waiting.setdefault(job_id, set())
        others.add(end)
        try:
            yield end
        finally:
            self._waits_of[principal] -= 1
            if not self._waits_of[principal]:
                del self._waits_of[principal]
            others.discard(end)
            if not others and self._waiting.get(job_id) is others:
                del self._waiting[job_id]

    def _check_room(self, principal: str) -> None:
        if self._waits_of.total() >= self._limit:
            full = f"{self._limit} callers wait for answers to jobs, this gateway's limit (jobs.waiting_limit)"
        elif 2 * self._waits_of[principal] >= max(self._limit, 2):
            full = f"You wait for {counted(self._waits_of[principal], 'answer')} to jobs, half of jobs.waiting_limit"
        else:
            return
        raise QueueFullError(
            f"{full}; ask without waiting, or retry after the time given with this error.", retry_after_s=_RETRY_S
        )

    def notify(self, job_id: str) -> None:
        """Wakes the callers that wait for a job, which has ended or was deleted."""
        for end in self._waiting.get(job_id, ()):
            if not end.done():
                end.set_result(None)

    def close(self) -> None:
        """Wakes all callers."""
        self._closed = True
        for job_id in tuple(self._waiting):
            self.notify(job_id)

    async def poll(self) -> None:
        """Wakes the callers whose jobs have ended in another replica.

        Raises:
            StoreUnavailableError: the store refuses, or does not answer.
        """
        awaited = tuple(self._waiting)
        if awaited:
            running = await self._store.read(partial(records.running, job_ids=awaited))
            for job_id in awaited:
                if job_id not in running:
                    self.notify(job_id)
