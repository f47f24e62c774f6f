"""Runs jobs when there is room: each is claimed for a while, run as the least urgent request, and its answer kept.

Replicas on one store share the jobs. A claim is a lease that its holder renews; jobs of a holder that died are claimed
by another replica when the lease expires, or at once by a gateway that has its store alone. Of two who run a
job all the same, the first to say what came of it is right.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
from functools import partial
from typing import TypeVar

from msgspec.structs import replace
from prometheus_client import Counter
from sqlalchemy import Connection

from firstline_core.clock import Clock
from firstline_core.errors import CapacityError, DeadlineExceededError, FirstlineError, LinkError
from firstline_core.ids import new_request_id
from firstline_core.protocol.http import class_labels
from firstline_core.protocol.http_errors import error_body, status_of
from firstline_core.protocol.oip import decode_request, encode_response
from firstline_core.telemetry.logs import logger
from firstline_core.telemetry.wording import counted
from firstline_core.types import InferRequest, InferResponse
from firstline_gateway.background import PeriodicTask
from firstline_gateway.jobs import records, usage
from firstline_gateway.jobs.endings import Endings
from firstline_gateway.jobs.records import Ended, Job
from firstline_gateway.serving.data_plane import GatewayDataPlane
from firstline_gateway.settings.settings import Jobs as JobSettings
from firstline_gateway.store.readers import Readers
from firstline_gateway.store.service import ServiceClock
from firstline_gateway.store.writer import StoreWriter

log = logger("firstline_gateway.jobs")

_LEASE_S = 30.0
_RENEW_S = 5.0
_LOOK_S = 2.0
# Whoever began so often and said nothing died of it, more likely than beside it.
_ATTEMPTS = 5
_BACK_S = 1.0

T = TypeVar("T")


class JobRunner:
    """Belongs to one event loop.

    Args:
        plane: answers, as it does for those who wait.
        readers: of the store.
        writer: writes to it.
        settings: how many run at the same moment, and how long answers are kept.
        endings: wakes the callers that wait for a job.
        counter: counts jobs by event.
        clock: its monotonic time.
        service: by which leases run out.
    """

    def __init__(
        self,
        plane: GatewayDataPlane,
        readers: Readers,
        writer: StoreWriter,
        settings: JobSettings,
        *,
        endings: Endings,
        counter: Counter,
        clock: Clock,
        service: ServiceClock,
    ) -> None:
        self._plane = plane
        self._readers = readers
        self._writer = writer
        self._settings = settings
        self._endings = endings
        self._counter = counter
        self._clock = clock
        self._service = service
        self._holder = new_request_id()
        self._running: dict[str, asyncio.Task[None]] = {}
        # Begun before, and not heard of: one at a time, so that one that ends gateways is not given up with others.
        self._suspects: set[str] = set()
        self._wake = asyncio.Event()
        self._tasks = (
            PeriodicTask("jobs", self._take_up, interval_s=_LOOK_S, clock=clock, wake=self._wake),
            PeriodicTask("job leases", self._keep, interval_s=_RENEW_S, clock=clock),
        )
        self._recounted = False
        self._started = False

    def wake(self) -> None:
        """There may be something to do."""
        self._wake.set()

    async def start(self) -> None:
        """Starts to run waiting jobs, including those that the previous process left."""
        if self._readers.database.dialect == "sqlite":  # nobody else works on it
            with contextlib.suppress(CapacityError):  # told by the writer; then the leases run out
                await self._writer.write(records.put_back_all)
        for task in self._tasks:
            task.start()
        self._started = True

    async def close(self) -> None:
        """Stops, and releases unfinished jobs."""
        for task in self._tasks:
            await task.close()
        running = [*self._running.values()]
        for job in running:
            job.cancel()
        await asyncio.gather(*running, return_exceptions=True)
        if self._started:
            self._started = False
            with contextlib.suppress(FirstlineError):
                await self._writer.write(lambda connection: records.leave(connection, self._holder))

    async def _take_up(self) -> None:
        free = self._settings.in_flight - len(self._running)
        if free <= 0:
            return
        now_s = self._service.now_s()
        # Of a gateway that can run nothing those are ended, with the reason, that have waited for too long.
        came_by_s = math.inf if self._plane.ready() else now_s - self._settings.age_s
        if not await self._readers.ask(partial(records.any_waits, service_s=now_s, came_by_s=came_by_s)):
            return
        claim = partial(
            records.claim,
            holder=self._holder,
            count=free,
            suspects=0 if self._suspects else 1,
            service_s=now_s,
            came_by_s=came_by_s,
            lease_s=_LEASE_S,
        )
        claimed = await self._writer.write(claim)
        for found in claimed:
            if isinstance(found, str):
                error = FirstlineError("The disk has damaged what was asked; hand it in again.")
                await self._end(found, _refused(error))
            elif found.job_id not in self._running:
                task = asyncio.create_task(self._answer(found))
                self._running[found.job_id] = task
                if found.attempts > 1:
                    self._suspects.add(found.job_id)
                task.add_done_callback(partial(self._ended, found.job_id))

    def _ended(self, job_id: str, _task: asyncio.Task[None]) -> None:
        del self._running[job_id]
        self._suspects.discard(job_id)
        self.wake()

    async def _answer(self, job: Job) -> None:
        """Runs one job to its end; where that cannot be kept, the lease runs out and it is run again."""
        try:
            try:
                request, response = await self._ran(job)
                encoded = encode_response(request, response, class_labels(self._plane, request, response))
                ended = Ended(200, encoded.body, encoded.header_length)
            except DeadlineExceededError as error:
                if job.due_service_s is None:  # it had to wait for too long, and may wait longer
                    raise
                ended = _refused(error)
            except (CapacityError, LinkError):
                raise
            except FirstlineError as error:
                error.request_id = job.job_id
                ended = _refused(error)
            await self._end(job.job_id, ended)
        except (CapacityError, LinkError) as error:
            if self._service.now_s() - job.service_s >= self._settings.age_s:
                with contextlib.suppress(CapacityError):
                    await self._end(job.job_id, _refused(self._too_old(error)))
                return
            wait_s = max(_BACK_S, error.retry_after_s or 0.0)
            with contextlib.suppress(CapacityError):
                await self._writer.write(
                    lambda connection: records.put_back(
                        connection, self._holder, [job.job_id], self._service.now_s() + wait_s
                    )
                )
        except Exception:  # the outermost loop of a job
            log.exception("job failed unexpectedly", request_id=job.job_id)
            failed = FirstlineError(f"The gateway failed on this job; its log has the reason under {job.job_id}.")
            with contextlib.suppress(CapacityError):
                await self._end(job.job_id, _refused(failed))

    async def _ran(self, job: Job) -> tuple[InferRequest, InferResponse]:
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

    def _too_old(self, error: FirstlineError) -> FirstlineError:
        return DeadlineExceededError(
            f"The job could not be run within {self._settings.age_s:g} s (jobs.age_s). {error.message}"
        )

    async def _end(self, job_id: str, ended: Ended) -> None:
        service_s = self._service.now_s()
        if await self._writer.write(lambda connection: records.end(connection, job_id, ended, service_s)):
            self._counter.labels("answered" if ended.status == 200 else "failed").inc()
            log.info("job ended", request_id=job_id, status=ended.status)
        self._endings.tell(job_id)

    async def _keep(self) -> None:
        """Counts what is kept, then renews the leases, and forgets what is old."""
        if not self._recounted:
            await self._writer.write(usage.recount)
            self._recounted = True
        await self._writer.write(partial(self._renewed, list(self._running)))

    def _renewed(self, running: list[str], connection: Connection) -> None:
        now_s = self._service.now_s()
        if running:
            records.renew(connection, self._holder, running, now_s, _LEASE_S)
        records.forget(connection, now_s - self._settings.age_s)


def _refused(error: FirstlineError) -> Ended:
    return Ended(status_of(error), error_body(error), None)
