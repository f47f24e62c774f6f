"""An outbox on a disk that may refuse (full, read-only or gone): nothing is promised then, and requests continue."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable
from pathlib import Path

from firstline_core.clock import Clock
from firstline_core.errors import CapacityError, ConfigError
from firstline_core.storage.files import erase
from firstline_core.telemetry.logs import logger
from firstline_core.telemetry.metrics import RequestMetrics
from firstline_core.types import InferResponse
from firstline_edge.outbox.database import count_promises
from firstline_edge.outbox.item import OutboxItem
from firstline_edge.outbox.outbox import Completions, Outbox
from firstline_edge.settings.settings import EdgeSettings
from firstline_edge.state import open_seal

log = logger(__name__)

_RETRY_S = 30.0
_STORED = 64
_EXPIRE_EVERY_S = 3600.0


class ReopeningOutbox:
    """An `Outbox` that is opened as soon as the disk permits.

    Args:
        path: of the outbox.
        make: opens the outbox.
        clock: says when to try again.

    Attributes:
        completions: wakes callers that wait for a promise to end.
        stored: the promises that were just stored, for their delivery.

    Raises:
        ConfigError: a newer version wrote it.
    """

    def __init__(
        self,
        path: Path,
        make: Callable[[Completions], Outbox],
        clock: Clock,
    ) -> None:
        self._path = path
        self._make = make
        self.completions = Completions()
        self.stored: asyncio.Queue[OutboxItem] = asyncio.Queue(_STORED)
        self._opening = threading.Lock()
        self._unopened_counts = (0, 0)
        self._clock = clock
        self._outbox: Outbox | None = None
        self._closed = False
        self._unopened_problem = ""
        self._try()

    @property
    def problem(self) -> str:
        """Why the outbox is not open, or refuses to be written or read now, in sentences; "" if it works."""
        return self._outbox.problem if self._outbox is not None else self._unopened_problem

    @property
    def depth(self) -> int:
        """Number of promises that wait."""
        return self._outbox.depth if self._outbox is not None else self._unopened_counts[0]

    @property
    def size_bytes(self) -> int:
        """Size of the waiting promises in bytes."""
        return self._outbox.size_bytes if self._outbox is not None else self._unopened_counts[1]

    @property
    def oldest_s(self) -> float:
        """Age of the oldest waiting promise in seconds; 0 if there are no promises, or the outbox is not open."""
        return self._outbox.oldest_s if self._outbox is not None else 0.0

    @property
    def damage(self) -> str:
        """Describes damage to stored records, in sentences; "" if none is known."""
        return self._outbox.damage if self._outbox is not None else ""

    async def opened(self) -> Outbox:
        """Returns the outbox once it is open; retries until then.

        Raises:
            ConfigError: as above, found only now.
        """
        while self._outbox is None:
            await self._clock.sleep(_RETRY_S)
            await asyncio.to_thread(self._try)  # which looks at the whole file, while requests go on
        return self._outbox

    def current(self) -> Outbox:
        """Returns the outbox.

        Raises:
            CapacityError: it is not open.
        """
        if self._outbox is None:
            raise CapacityError(self._unopened_problem, retry_after_s=_RETRY_S)
        return self._outbox

    async def put(self, item: OutboxItem) -> None:
        """Stores a promise; returns once it is on the disk. See `Outbox.put`.

        Raises:
            CapacityError: the outbox is full, or cannot be used now.
        """
        await self.current().put(item)
        if not self.stored.full():  # otherwise it is delivered in its turn
            self.stored.put_nowait(item)

    async def answer(self, request_id: str, principal: str) -> InferResponse:
        """Returns the answer that was promised a correction: provisional until that came, final or expired after.

        Raises:
            UnknownAnswerError: nothing was promised to this principal under this id.
            CapacityError: the outbox is not open, or the disk refuses.
        """
        return await self.current().answer(request_id, principal)

    async def purge(self) -> None:
        """See `Outbox.purge`; of an outbox that cannot be opened the files are erased.

        Raises:
            OSError, CapacityError: the disk refuses.
        """
        if self._outbox is None and await asyncio.to_thread(self._erase_unopened):
            return
        await self.current().purge()

    async def keep_expiring(self) -> None:
        """Deletes old answers every hour, also while no promise is made, until it is cancelled.

        Reads one promise too, so that `problem` is that of now: without promises nothing else reads.
        """
        while True:
            with contextlib.suppress(CapacityError):  # `problem` reports it; the next call tries again
                await self.current().delete_old_answers()
            with contextlib.suppress(CapacityError):
                await self.current().pending(1)
            await self._clock.sleep(_EXPIRE_EVERY_S)

    def close(self) -> None:
        """See `Outbox.close`."""
        self._closed = True
        if self._outbox is not None:
            self._outbox.close()

    def _erase_unopened(self) -> bool:
        """Erases the files if no outbox is open; returns whether it did."""
        with self._opening:
            if self._outbox is not None:  # meanwhile
                return False
            erase(self._path)
            self._unopened_counts = (0, 0)
        self._try()
        return True

    def _try(self) -> None:
        with self._opening:
            if self._outbox is None:
                self._open()

    def _open(self) -> None:
        try:
            outbox = self._make(self.completions)
        except CapacityError as error:
            if not self._unopened_problem:
                self._unopened_counts = count_promises(self._path)
                log.error("outbox unavailable; no correction promised", error=error.message)
            # An error about a setting says itself what to do; all other errors come from the disk.
            disk = "" if isinstance(error.__cause__, ConfigError) else " Free space, or correct who may write there."
            self._unopened_problem = f"{error.message}{disk} Until then nothing is promised."
        else:
            if self._closed:  # meanwhile
                outbox.close()
                return
            if self._unopened_problem:
                log.info("outbox restored", items=outbox.depth)
            self._outbox, self._unopened_problem = outbox, ""


def open_outbox(
    settings: EdgeSettings, path: Path, clock: Clock, reporting: asyncio.Event | None, completions: Completions
) -> Outbox:
    """Returns the outbox on disk.

    Args:
        settings: of the agent.
        path: of the database.
        clock: for ages.
        reporting: set while answers are reported to the fleet; None for a device without a fleet.
        completions: see `Outbox`.

    Raises:
        CapacityError: the disk refuses, or there is no key.
        ConfigError: a newer version wrote it.
    """
    has_broker = any(link.kind == "mqtt" for link in settings.links)
    return Outbox(
        path,
        settings.outbox,
        announcing=lambda: has_broker or (reporting is not None and reporting.is_set()),
        completions=completions,
        seal=open_seal(settings.encryption),
        clock=clock,
    )


def register_metrics(metrics: RequestMetrics, outbox: ReopeningOutbox) -> None:
    """Registers the number and the size of the promises that wait."""
    metrics.gauge("outbox_items", "Promised corrections that are still to come.", lambda: outbox.depth)
    metrics.gauge("outbox_bytes", "Payload in the outbox.", lambda: outbox.size_bytes)
