"""Callers that wait for a job to end, so that they need not poll.

A job that ends in this process wakes them at once. Those that other replicas end are looked for in the store: one query
for all awaited jobs, and no query without waiters.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import Collection, Iterator
from functools import partial

from sqlalchemy import Connection, select

from firstline_core.clock import Clock
from firstline_core.errors import CapacityError, QueueFullError
from firstline_core.telemetry.logs import logger
from firstline_core.telemetry.wording import counted
from firstline_gateway.jobs.records import RUNNING
from firstline_gateway.jobs.tables import JOBS
from firstline_gateway.store.readers import Readers

log = logger("firstline_gateway.jobs")

Ending = asyncio.Future[None]
"""Done once a job has ended or is gone, or nobody will tell any more; which of them, the store knows."""

LOOK_S = 0.5
_RETRY_S = 1.0


class Endings:
    """Belongs to one event loop.

    Args:
        readers: of the store.
        clock: by which it is looked at.
        limit: the most waiters; one principal may have half of them.
    """

    def __init__(self, readers: Readers, clock: Clock, limit: int) -> None:
        self._readers = readers
        self._clock = clock
        self._limit = limit
        self._waiting: dict[str, set[Ending]] = {}
        self._waits_of: Counter[str] = Counter()
        self._looking: asyncio.Task[None] | None = None
        self._closed = False

    @contextlib.contextmanager
    def watched(self, job_id: str, principal: str) -> Iterator[Ending]:
        """Returns a future that is done when a job ends; read the job after this call.

        Raises:
            QueueFullError: too many wait.
        """
        self._check_room(principal)
        ending: Ending = asyncio.get_running_loop().create_future()
        if self._closed:
            ending.set_result(None)
        self._waits_of[principal] += 1
        others = self._waiting.setdefault(job_id, set())
        others.add(ending)
        if self._looking is None and not self._closed:
            self._looking = asyncio.create_task(self._look())
        try:
            yield ending
        finally:
            self._waits_of[principal] -= 1
            if not self._waits_of[principal]:
                del self._waits_of[principal]
            others.discard(ending)
            if not others and self._waiting.get(job_id) is others:
                del self._waiting[job_id]

    def _check_room(self, principal: str) -> None:
        if self._waits_of.total() >= self._limit:
            full = f"{self._limit} callers wait for answers to jobs, this gateway's limit (jobs.waiting_limit)"
        elif 2 * self._waits_of[principal] >= max(self._limit, 2):
            full = f"You wait for {counted(self._waits_of[principal], 'answer')} to jobs, half of jobs.waiting_limit"
        else:
            return
        raise QueueFullError(f"{full}; ask without waiting, or come back later.", retry_after_s=_RETRY_S)

    def tell(self, job_id: str) -> None:
        """A job has ended, or is gone."""
        for ending in self._waiting.get(job_id, ()):
            if not ending.done():
                ending.set_result(None)

    async def close(self) -> None:
        """Ends all waits."""
        self._closed = True
        for job_id in tuple(self._waiting):
            self.tell(job_id)
        if self._looking is not None:
            self._looking.cancel()
            await asyncio.gather(self._looking, return_exceptions=True)
            self._looking = None

    async def _look(self) -> None:
        while self._waiting:
            await self._clock.sleep(LOOK_S)
            waited = tuple(self._waiting)
            try:
                running = await self._readers.ask(partial(_running, job_ids=waited))
            except CapacityError:
                continue  # the store, which says so
            except Exception:  # the outermost loop of a task that must not end while somebody waits
                log.exception("ended jobs not read")
                continue
            for job_id in waited:
                if job_id not in running:
                    self.tell(job_id)
        self._looking = None


def _running(connection: Connection, job_ids: Collection[str]) -> set[str]:
    """Which of these jobs have not ended."""
    query = select(JOBS.c.job_id).where(JOBS.c.job_id.in_(job_ids), JOBS.c.status == RUNNING)
    return set(connection.execute(query).scalars())
