"""Runs jobs when there is room: claims each with a lease, runs it with the lowest priority, and stores its result.

Replicas on one store share the jobs. The holder of a lease renews it. If it dies, another replica claims its jobs when
the leases expire; a gateway that has its store alone claims them when it starts. If two replicas run one job all the
same, the first result is kept.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
from functools import partial

from msgspec.structs import replace
from prometheus_client import Counter
from sqlalchemy import Connection

from firstline_core.clock import Clock, end_tasks
from firstline_core.errors import CapacityError, DeadlineExceededError, FirstlineError, LinkError
from firstline_core.ids import new_request_id
from firstline_core.protocol.http import class_labels, error_body, status_of
from firstline_core.protocol.oip import decode_request, encode_response
from firstline_core.telemetry.logs import logger
from firstline_core.telemetry.wording import counted
from firstline_core.types import InferRequest, InferResponse
from firstline_gateway.background import PeriodicTask
from firstline_gateway.jobs import records
from firstline_gateway.jobs.records import Job, JobResult
from firstline_gateway.jobs.waiters import JobWaiters
from firstline_gateway.serving.data_plane import GatewayDataPlane
from firstline_gateway.settings.settings import Jobs as JobSettings
from firstline_gateway.store.service_clock import ServiceClock
from firstline_gateway.store.store import Store

log = logger("firstline_gateway.jobs")

_LEASE_S = 30.0
_RENEW_S = 5.0
_LOOK_S = 2.0
# A job that was begun so often without a result has probably ended the gateways that ran it.
_ATTEMPTS = 5
_RETRY_S = 1.0


class JobRunner:
    """Runs the jobs of one gateway. Belongs to one event loop.

    Args:
        plane: answers jobs as it answers callers that wait.
        store: reads and writes it.
        settings: how many jobs run at the same moment, and how long results are stored.
        waiters: wakes the callers that wait for a job.
        counter: counts jobs by event.
        clock: measures deadlines.
        service: measures leases and the age of jobs.
    """

    def __init__(
        self,
        plane: GatewayDataPlane,
        store: Store,
        settings: JobSettings,
        *,
        waiters: JobWaiters,
        counter: Counter,
        clock: Clock,
        service: ServiceClock,
    ) -> None:
        self._plane = plane
        self._store = store
        self._settings = settings
        self._waiters = waiters
        self._counter = counter
        self._clock = clock
        self._service = service
        self._holder = new_request_id()
        self._running: dict[str, asyncio.Task[None]] = {}
        # Jobs whose earlier attempt had no result. One runs at a time, so that a job that crashes gateways is the only
        # one that is given up.
        self._suspects: set[str] = set()
        self._wake = asyncio.Event()
        self._tasks = (
            PeriodicTask("jobs", self._claim, interval_s=_LOOK_S, clock=clock, wake=self._wake),
            PeriodicTask("job leases", self._renew, interval_s=_RENEW_S, clock=clock),
        )
        self._started = False

    def wake(self) -> None:
        """Looks for jobs at once."""
        self._wake.set()

    async def start(self) -> None:
        """Starts to run waiting jobs, including those that the previous process left."""
        if self._store.database.dialect == "sqlite":  # no other gateway uses this store
            with contextlib.suppress(CapacityError):  # the writer logs it; the jobs' leases expire later
                await self._store.write(records.release_all)
        for task in self._tasks:
            task.start()
        self._started = True

    async def close(self) -> None:
        """Stops, and releases unfinished jobs."""
        for task in self._tasks:
            await task.close()
        running = [*self._running.values()]
        await end_tasks(*running)
        if self._started:
            self._started = False
            with contextlib.suppress(FirstlineError):
                await self._store.write(partial(records.release, holder=self._holder))

    async def _claim(self) -> None:
        """Claims as many jobs as may run now, and starts them."""
        free = self._settings.in_flight - len(self._running)
        if free <= 0:
            return
        now_s = self._service.now_s()
        # A gateway that cannot run models ends the jobs that have waited for too long, with the reason.
        submitted_by_s = math.inf if self._plane.ready() else now_s - self._settings.age_s
        if not await self._store.read(partial(records.any_unclaimed, service_s=now_s, submitted_by_s=submitted_by_s)):
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
        for job in await self._store.write(claim):
            if isinstance(job, str):
                await self._end(
                    job, _failed(job, FirstlineError("The disk has damaged what was asked; hand it in again."))
                )
            elif job.job_id not in self._running:
                task = asyncio.create_task(self._run(job))
                self._running[job.job_id] = task
                if job.attempts > 1:
                    self._suspects.add(job.job_id)
                task.add_done_callback(partial(self._done, job.job_id))

    def _done(self, job_id: str, _task: asyncio.Task[None]) -> None:
        del self._running[job_id]
        self._suspects.discard(job_id)
        self.wake()

    async def _run(self, job: Job) -> None:
        """Runs one job and stores its result; if the store refuses, the lease expires and the job is run again."""
        try:
            await self._end(job.job_id, await self._result(job))
            return
        except (CapacityError, LinkError) as error:
            now_s = self._service.now_s()
            if now_s - job.service_s < self._settings.age_s:
                until_service_s = now_s + max(_RETRY_S, error.retry_after_s or 0.0)
                with contextlib.suppress(CapacityError):
                    await self._store.write(
                        lambda connection: records.release(connection, self._holder, job.job_id, until_service_s)
                    )
                return
            failure: FirstlineError = DeadlineExceededError(
                f"The job could not be run within {self._settings.age_s:g} s (jobs.age_s). {error.message}"
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
            request, response = await self._infer(job)
            encoded = encode_response(request, response, class_labels(self._plane, request, response))
            return JobResult(200, encoded.body, encoded.header_length)
        except (CapacityError, LinkError) as error:
            if isinstance(error, DeadlineExceededError) and job.due_service_s is not None:
                return _failed(job.job_id, error)
            raise
        except FirstlineError as error:
            return _failed(job.job_id, error)

    async def _infer(self, job: Job) -> tuple[InferRequest, InferResponse]:
        """Returns the request and its response.

        Raises:
            FirstlineError: why there is no answer.
        """
        if job.attempts > _ATTEMPTS:
            raise FirstlineError(
                f"The gateway ended {counted(job.attempts - 1, 'time')} while it ran this job, so it is given up."
            )
        request = decode_request(
            job.model,
            job.content,
            job.header,
            version=job.version,
            principal=job.principal,
            trust_request_id=True,
            limits=self._plane.limits,
        )
        if job.due_service_s is not None:
            left_s = job.due_service_s - self._service.now_s()
            if left_s <= 0:
                raise DeadlineExceededError("The job's deadline passed before there was room for it; allow more time.")
            request = replace(request, deadline_s=self._clock.monotonic_s() + left_s)
        return request, await self._plane.infer(request)

    async def _end(self, job_id: str, result: JobResult) -> None:
        service_s = self._service.now_s()
        if await self._store.write(lambda connection: records.end(connection, job_id, result, service_s)):
            self._counter.labels("answered" if result.status == 200 else "failed").inc()
            log.info("job ended", request_id=job_id, status=result.status)
        self._waiters.notify(job_id)

    async def _renew(self) -> None:
        """Renews the leases of running jobs, and deletes old results."""
        await self._store.write(partial(self._renewed, list(self._running)))

    def _renewed(self, running: list[str], connection: Connection) -> None:
        now_s = self._service.now_s()
        if running:
            records.renew(connection, self._holder, running, now_s, _LEASE_S)
        records.remove_ended(connection, now_s - self._settings.age_s)


def _failed(job_id: str, error: FirstlineError) -> JobResult:
    error.request_id = job_id
    return JobResult(status_of(error), error_body(error), None)
