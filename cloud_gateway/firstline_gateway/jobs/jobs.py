"""Jobs as callers see them: submitted, looked up and deleted.

A job is stored before it is acknowledged, so it outlives this process; with PostgreSQL any replica may run it and
return its result.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TypeVar

from msgspec.structs import replace
from sqlalchemy import Connection

from firstline_core.clock import Clock
from firstline_core.errors import IntegrityError, PayloadTooLargeError, UnknownAnswerError
from firstline_core.protocol.oip import encode_request
from firstline_core.protocol.tensors import shown
from firstline_core.telemetry.metrics import RequestMetrics
from firstline_core.types import LOWEST_PRIORITY, InferRequest, Wait
from firstline_gateway.jobs import records
from firstline_gateway.jobs.records import RUNNING, Job, JobLimits
from firstline_gateway.jobs.runner import JobRunner
from firstline_gateway.jobs.waiters import JobWaiters
from firstline_gateway.serving.data_plane import GatewayDataPlane
from firstline_gateway.settings.settings import Jobs as JobSettings
from firstline_gateway.store.service_clock import ServiceClock
from firstline_gateway.store.store import PATIENCE_S, Store, unresponsive

_DEFAULT_PRIORITY = 2

T = TypeVar("T")


class Jobs:
    """The jobs of one gateway. Used on one event loop.

    Args:
        plane: answers jobs as it answers callers that wait.
        store: reads and writes it.
        settings: limits on stored and running jobs.
        metrics: gains the counter of jobs.
        clock: measures deadlines.
        service: measures the age of jobs.

    Attributes:
        waiters: the callers that wait for jobs.
    """

    def __init__(
        self,
        plane: GatewayDataPlane,
        store: Store,
        settings: JobSettings,
        *,
        metrics: RequestMetrics,
        clock: Clock,
        service: ServiceClock,
    ) -> None:
        self._store = store
        self._settings = settings
        self._clock = clock
        self._service = service
        self._counter = metrics.counter("jobs_total", "Jobs, by what became of them.", ("event",))
        self.waiters = JobWaiters(store, clock, settings.waiting_limit)
        self._runner = JobRunner(
            plane,
            store,
            settings,
            waiters=self.waiters,
            counter=self._counter,
            clock=clock,
            service=service,
        )

    async def start(self) -> None:
        """Starts to run waiting jobs, including those that the previous process left."""
        await self._runner.start()

    async def close(self) -> None:
        """Wakes the callers that wait, stops running jobs, and releases unfinished ones."""
        await self.waiters.close()
        await self._runner.close()

    async def submit(self, request: InferRequest) -> None:
        """Stores a request under its id, to be run when there is room.

        Raises:
            PayloadTooLargeError: there will never be room for it.
            QueueFullError: too many jobs are stored already.
            StoreUnavailableError: the store refuses or does not answer; the job may or may not be run.
            InvalidTensorError: its inputs cannot be stored as they are.
        """
        service_s = self._service.now_s()
        due_service_s = None
        if request.deadline_s is not None:
            due_service_s = service_s + request.deadline_s - self._clock.monotonic_s()
        stored = replace(
            request,
            deadline_s=None,
            wait=Wait.FINAL,
            priority=LOWEST_PRIORITY,
            audit=None,
            edge_outputs={},
            promised=False,
        )
        encoded = encode_request(stored, traced=True)
        job = Job(
            job_id=request.request_id,
            principal=request.principal,
            model=request.model,
            version=request.version,
            status=RUNNING,
            content=encoded.body,
            header=encoded.header_length,
            due_service_s=due_service_s,
            service_s=service_s,
        )
        limits = JobLimits(self._settings.limit, self._settings.bytes_limit)
        if 2 * len(job.content) > limits.size_bytes:  # see `records.add`
            raise PayloadTooLargeError(
                f"The request has {len(job.content)} bytes, and a job may have {limits.size_bytes // 2}, half of "
                "jobs.bytes_limit; send it without Prefer: respond-async."
            )
        priority = request.priority or _DEFAULT_PRIORITY
        refusal = await self._write(lambda connection: records.add(connection, job, priority, limits))
        if refusal is not None:
            raise refusal
        self._counter.labels("submitted").inc()
        self._runner.wake()

    async def find(self, job_id: str, principal: str) -> Job:
        """Returns a principal's job, whichever replica accepted it.

        Raises:
            UnknownAnswerError: this principal has no job of this id, or its content is damaged.
            StoreUnavailableError: the store refuses or does not answer.
        """
        try:
            job = await self._store.read(lambda connection: records.find(connection, job_id, principal))
        except IntegrityError as error:
            raise UnknownAnswerError(f"What was kept under {shown(job_id)} cannot be read: {error.message}") from error
        if job is None:
            raise _unknown(job_id)
        return job

    async def remove(self, job_id: str, principal: str) -> None:
        """Deletes a principal's job; a job that waits is not run.

        Raises:
            UnknownAnswerError: this principal has no job of this id.
            StoreUnavailableError: the store refuses or does not answer.
        """
        if not await self._write(lambda connection: records.remove(connection, job_id, principal)):
            raise _unknown(job_id)
        self.waiters.notify(job_id)

    async def _write(self, operation: Callable[[Connection], T]) -> T:
        try:
            async with asyncio.timeout(PATIENCE_S):
                return await self._store.write(operation)
        except TimeoutError as error:
            raise unresponsive(self._store.database) from error


def _unknown(job_id: str) -> UnknownAnswerError:
    return UnknownAnswerError(
        f"No answer is kept for you under {shown(job_id)}: a gateway keeps those of jobs alone (Prefer: "
        "respond-async), for a while. For the correction of a provisional answer ask the agent of the device."
    )
