"""The jobs of one gateway: stored and acknowledged, run when there is room, looked up and deleted.

A job is stored before it is acknowledged, so it outlives this process. Replicas on one store share the jobs, and any of
them returns a result. A replica claims a job with a lease, runs it with the lowest priority, and stores its result. If
the holder of a lease dies, another replica claims its jobs when the leases expire; a gateway that has its store alone
claims them when it starts. If two replicas nevertheless run one job, the first result is kept.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
from dataclasses import InitVar, dataclass
from functools import partial

from msgspec.structs import replace
from sqlalchemy import Connection

from firstline_core.clock import Clock, end_tasks
from firstline_core.errors import (
    CapacityError,
    DeadlineExceededError,
    FirstlineError,
    IntegrityError,
    LinkError,
    PayloadTooLargeError,
    UnknownAnswerError,
)
from firstline_core.ids import new_request_id
from firstline_core.protocol.http import class_labels, error_body, status_of
from firstline_core.protocol.oip import Origin, decode_request, encode_request, encode_response
from firstline_core.protocol.tensors import shown
from firstline_core.telemetry.logs import logger
from firstline_core.telemetry.metrics import RequestMetrics
from firstline_core.telemetry.wording import counted
from firstline_core.types import DEFAULT_PRIORITY, LOWEST_PRIORITY, InferRequest, Wait
from firstline_gateway.background import PeriodicTask
from firstline_gateway.jobs import records
from firstline_gateway.jobs.records import RUNNING, Job, JobResult
from firstline_gateway.jobs.waiters import POLL_S, JobWaiters
from firstline_gateway.serving.data_plane import GatewayDataPlane
from firstline_gateway.settings.settings import JobsSection
from firstline_gateway.store.service_clock import ServiceClock
from firstline_gateway.store.store import Store

log = logger("firstline_gateway.jobs")

_LEASE_S = 30.0
_RENEW_S = 5.0
_LOOK_S = 2.0
# A job that was started this often without a result has probably crashed the gateways that ran it.
_ATTEMPTS = 5
_RETRY_S = 1.0


@dataclass(eq=False)
class Jobs:
    """The jobs of one gateway. Used on one event loop.

    Args:
        plane: answers jobs as it answers callers that wait.
        store: reads and writes it.
        settings: limits on stored and running jobs, and how long results are stored.
        metrics: gains the counter of jobs.
        clock: measures deadlines.
        service: measures leases and the age of jobs.

    Attributes:
        waiters: the callers that wait for jobs.
    """

    plane: GatewayDataPlane
    store: Store
    settings: JobsSection
    metrics: InitVar[RequestMetrics]
    clock: Clock
    service: ServiceClock

    def __post_init__(self, metrics: RequestMetrics) -> None:
        self._counter = metrics.counter("jobs_total", "Jobs, by event.", ("event",))
        self.waiters = JobWaiters(self.store, self.settings.waiting_limit)
        self._holder = new_request_id()
        self._running: dict[str, asyncio.Task[None]] = {}
        # Jobs whose earlier attempt had no result. One runs at a time, so that a job that crashes gateways is the only
        # one that is given up.
        self._suspects: set[str] = set()
        self._wake = asyncio.Event()
        self._tasks = (
            PeriodicTask("jobs", self._claim, interval_s=_LOOK_S, clock=self.clock, wake=self._wake),
            PeriodicTask("job leases", self._renew, interval_s=_RENEW_S, clock=self.clock),
            PeriodicTask("ended jobs", self.waiters.poll, interval_s=POLL_S, clock=self.clock),
        )
        self._started = False

    async def start(self) -> None:
        """Starts to run waiting jobs, including those that the previous process left."""
        if self.store.database.dialect == "sqlite":  # no other gateway uses this store
            with contextlib.suppress(CapacityError):  # the writer logs it; the jobs' leases expire later
                await self.store.change(records.release_all)
        for task in self._tasks:
            await task.start()
        self._started = True

    async def close(self) -> None:
        """Wakes the callers that wait, stops running jobs, and releases unfinished ones."""
        self.waiters.close()
        for task in self._tasks:
            await task.close()
        running = [*self._running.values()]
        await end_tasks(*running)
        if self._started:
            self._started = False
            with contextlib.suppress(FirstlineError):
                await self.store.change(partial(records.release, holder=self._holder))

    async def submit(self, request: InferRequest) -> None:
        """Stores a request under its id, to be run when there is room.

        Raises:
            PayloadTooLargeError: there will never be room for it.
            QueueFullError: too many jobs are stored already.
            StoreUnavailableError: the store refuses or does not answer; the job may or may not be run.
            InvalidTensorError: its inputs cannot be stored as they are.
        """
        service_s = self.service.now_s()
        due_service_s = None
        if request.deadline_s is not None:
            due_service_s = service_s + request.deadline_s - self.clock.monotonic_s()
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
        limit_bytes = self.settings.bytes_limit
        if 2 * len(job.content) > limit_bytes:  # see `records.add`
            raise PayloadTooLargeError(
                f"The request has {len(job.content)} bytes, and a job may have {limit_bytes // 2}, half of "
                "jobs.bytes_limit; send it without Prefer: respond-async."
            )
        priority = request.priority or DEFAULT_PRIORITY
        refusal = await self.store.change(lambda on: records.add(on, job, priority, self.settings))
        if refusal is not None:
            raise refusal
        self._counter.labels("submitted").inc()
        self._wake.set()

    async def find(self, job_id: str, principal: str) -> Job:
        """Returns a principal's job, whichever replica accepted it.

        Raises:
            UnknownAnswerError: this principal has no job of this id, or its content is damaged.
            StoreUnavailableError: the store refuses or does not answer.
        """
        try:
            job = await self.store.read(lambda connection: records.find(connection, job_id, principal))
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
        if not await self.store.change(lambda connection: records.remove(connection, job_id, principal)):
            raise _unknown(job_id)
        self.waiters.notify(job_id)

    async def _claim(self) -> None:
        """Claims as many jobs as may run now, and starts them."""
        free = self.settings.in_flight - len(self._running)
        if free <= 0:
            return
        now_s = self.service.now_s()
        # A gateway that cannot run models ends the jobs that have waited for too long, with the reason.
        submitted_by_s = math.inf if self.plane.ready() else now_s - self.settings.age_s
        if not await self.store.read(partial(records.any_unclaimed, service_s=now_s, submitted_by_s=submitted_by_s)):
            return
        claim = partial(
            records.claim,
            holder=self._holder,
            count=free,
            suspects=0 if self._suspects else 1,
            service_s=now_s,
            submitted_by_s=submitted_by_s,
            lease_s=_LEASE_S,
        )
        jobs, damaged = await self.store.write(claim)
        for job in jobs:
            if job.job_id not in self._running:
                task = asyncio.create_task(self._run(job))
                self._running[job.job_id] = task
                if job.attempts > 1:
                    self._suspects.add(job.job_id)
                task.add_done_callback(partial(self._done, job.job_id))
        for job_id in damaged:
            error = FirstlineError("The disk has damaged what was asked; hand it in again.")
            await self._end(job_id, _failed(job_id, error))

    def _done(self, job_id: str, _task: asyncio.Task[None]) -> None:
        del self._running[job_id]
        self._suspects.discard(job_id)
        self._wake.set()

    async def _run(self, job: Job) -> None:
        """Runs one job and stores its result; if the store refuses, the lease expires and the job is run again."""
        try:
            await self._end(job.job_id, await self._result(job))
            return
        except (CapacityError, LinkError) as error:
            now_s = self.service.now_s()
            if now_s - job.service_s < self.settings.age_s:
                until_service_s = now_s + max(_RETRY_S, error.retry_after_s or 0.0)
                with contextlib.suppress(CapacityError):
                    await self.store.write(
                        lambda connection: records.release(connection, self._holder, job.job_id, until_service_s)
                    )
                return
            failure: FirstlineError = DeadlineExceededError(
                f"The job could not be run within {self.settings.age_s:g} s (jobs.age_s). {error.public}"
            )
        except Exception:  # the outermost loop of a job
            log.exception("job failed unexpectedly", request_id=job.job_id)
            failure = FirstlineError(f"The gateway failed on this job; its log has the reason under {job.job_id}.")
        with contextlib.suppress(CapacityError):
            await self._end(job.job_id, _failed(job.job_id, failure))

    async def _result(self, job: Job) -> JobResult:
        """Returns the answer, or an error that another attempt would not change.

        Raises:
            CapacityError, LinkError: the job could not be run now; it may be run later.
        """
        try:
            if job.attempts > _ATTEMPTS:
                raise FirstlineError(
                    f"The gateway ended {counted(job.attempts - 1, 'time')} while it ran this job, so it is given up."
                )
            origin = Origin(principal=job.principal, trust_request_id=True, limits=self.plane.limits)
            request = decode_request(job.model, job.content, job.header, origin, version=job.version)
            if job.due_service_s is not None:
                left_s = job.due_service_s - self.service.now_s()
                if left_s <= 0:
                    raise DeadlineExceededError(
                        "The job's deadline passed before there was room for it; allow more time."
                    )
                request = replace(request, deadline_s=self.clock.monotonic_s() + left_s)
            response = await self.plane.infer(request)
            encoded = encode_response(request, response, class_labels(self.plane, request, response))
            return JobResult(200, encoded.body, encoded.header_length)
        except (CapacityError, LinkError) as error:
            if isinstance(error, DeadlineExceededError) and job.due_service_s is not None:
                return _failed(job.job_id, error)
            raise
        except FirstlineError as error:
            return _failed(job.job_id, error)

    async def _end(self, job_id: str, result: JobResult) -> None:
        service_s = self.service.now_s()
        if await self.store.write(lambda connection: records.end(connection, job_id, result, service_s)):
            self._counter.labels("answered" if result.status == 200 else "failed").inc()
            log.info("job ended", request_id=job_id, status=result.status)
        self.waiters.notify(job_id)

    async def _renew(self) -> None:
        """Renews the leases of running jobs, and deletes old results."""
        await self.store.write(partial(self._renewed, list(self._running)))

    def _renewed(self, running: list[str], connection: Connection) -> None:
        now_s = self.service.now_s()
        if running:
            records.renew(connection, self._holder, running, now_s, _LEASE_S)
        records.remove_ended(connection, now_s - self.settings.age_s)


def _failed(job_id: str, error: FirstlineError) -> JobResult:
    error.request_id = job_id
    return JobResult(status_of(error), error_body(error), None)


def _unknown(job_id: str) -> UnknownAnswerError:
    return UnknownAnswerError(
        f"There is no job {shown(job_id)} for this key, or it has expired; use an id that a request with `Prefer: "
        "respond-async` returned, with the same key. For the correction of a provisional answer ask the device's agent."
    )
