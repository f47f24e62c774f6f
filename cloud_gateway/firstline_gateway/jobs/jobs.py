"""Jobs as callers know them: handed in, looked up, given up.

A job is stored before it is acknowledged, so it outlives this process; with PostgreSQL any replica may run it and
return its result.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TypeVar

from msgspec.structs import replace
from prometheus_client import Counter
from sqlalchemy import Connection

from firstline_core.clock import Clock
from firstline_core.errors import IntegrityError, PayloadTooLargeError, StoreUnavailableError, UnknownAnswerError
from firstline_core.protocol.oip import encode_request
from firstline_core.protocol.tensors import shown
from firstline_core.types import LOWEST_PRIORITY, InferRequest, Wait
from firstline_gateway.jobs import records
from firstline_gateway.jobs.endings import Endings
from firstline_gateway.jobs.records import RUNNING, Job, Room
from firstline_gateway.settings.settings import Jobs as JobSettings
from firstline_gateway.store.readers import PATIENCE_S, Readers, silent
from firstline_gateway.store.service import ServiceClock
from firstline_gateway.store.writer import StoreWriter

T = TypeVar("T")


class Jobs:
    """Asked on one event loop.

    Args:
        readers: of the store.
        writer: writes to it.
        settings: how many are kept, and for how long.
        clock: measures deadlines.
        service: by which jobs age.
        endings: the callers that wait for jobs.
        counter: counts jobs by event.
        on_new: told that there is one more.
    """

    def __init__(
        self,
        readers: Readers,
        writer: StoreWriter,
        settings: JobSettings,
        *,
        clock: Clock,
        service: ServiceClock,
        endings: Endings,
        counter: Counter,
        on_new: Callable[[], None],
    ) -> None:
        self._readers = readers
        self._writer = writer
        self._settings = settings
        self._clock = clock
        self._service = service
        self.endings = endings
        self._counter = counter
        self._on_new = on_new

    async def submit(self, request: InferRequest) -> None:
        """Keeps a request under its id, to be run when there is room.

        Raises:
            PayloadTooLargeError: there will never be room for it.
            QueueFullError: too many are kept already.
            StoreUnavailableError: it cannot be kept; it may or may not be run.
            InvalidTensorError: its inputs cannot be kept as they are.
        """
        service_s = self._service.now_s()
        due_service_s = None
        if request.deadline_s is not None:
            due_service_s = service_s + request.deadline_s - self._clock.monotonic_s()
        kept = replace(request, deadline_s=None, wait=Wait.FINAL, priority=LOWEST_PRIORITY, audit=None, promised=False)
        encoded = encode_request(kept, traced=True)
        job = Job(
            request.request_id,
            request.principal,
            request.model,
            request.version,
            RUNNING,
            encoded.body,
            encoded.header_length,
            due_service_s,
            service_s,
        )
        room = Room(self._settings.limit, self._settings.bytes_limit)
        if 2 * len(job.content) > room.size_bytes:  # see `records.add`
            raise PayloadTooLargeError(
                f"The request has {len(job.content)} bytes, and a job may have {room.size_bytes // 2}, half of "
                "jobs.bytes_limit; send it without Prefer: respond-async."
            )
        refused = await self._write(lambda connection: records.add(connection, job, request.priority or 2, room))
        if refused is not None:
            raise refused
        self._counter.labels("submitted").inc()
        self._on_new()

    async def find(self, job_id: str, principal: str) -> Job:
        """A principal's job, whichever replica took it.

        Raises:
            UnknownAnswerError: there is none under this id, for this principal; or it is forgotten.
            StoreUnavailableError: the store cannot be asked.
        """
        try:
            found = await self._readers.ask(lambda connection: records.find(connection, job_id, principal))
        except IntegrityError as error:
            raise UnknownAnswerError(f"What was kept under {shown(job_id)} cannot be read: {error.message}") from error
        if found is None:
            raise _unknown(job_id)
        return found

    async def remove(self, job_id: str, principal: str) -> None:
        """Forgets a principal's job, and does not run it if that has not begun.

        Raises:
            UnknownAnswerError: there is none under this id, for this principal.
            StoreUnavailableError: the store refuses.
        """
        if not await self._write(lambda connection: records.remove(connection, job_id, principal)):
            raise _unknown(job_id)
        self.endings.tell(job_id)

    async def _write(self, operation: Callable[[Connection], T]) -> T:
        try:
            async with asyncio.timeout(PATIENCE_S):
                return await asyncio.wrap_future(self._writer.submit(operation))
        except TimeoutError as error:
            raise self._silent() from error

    def _silent(self) -> StoreUnavailableError:
        return silent(self._readers.database)


def _unknown(job_id: str) -> UnknownAnswerError:
    return UnknownAnswerError(
        f"No answer is kept for you under {shown(job_id)}: a gateway keeps those of jobs alone (Prefer: "
        "respond-async), for a while. For the correction of a provisional answer ask the agent of the device."
    )
