"""What is sent beside the queue: promises that were just made, whose callers wait for the better answer."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from types import TracebackType

from firstline_core.telemetry.logs import logger
from firstline_edge.outbox.item import OutboxItem

log = logger(__name__)


class PriorityDelivery:
    """A few seats for those who need not queue. An async context manager, whose end ends what is being sent.

    The queue looks items up on the disk in steps, and what is sent here may come and go during one: so it leaves
    alone what was sent here since its step began.

    Args:
        deliver: ends one promise, or makes it wait for its turn in the queue.
        seats: promises that are sent so at once.

    Attributes:
        under_way: request ids of what is being sent, from the queue too.
        ended: set when one of them ended since the step began.
    """

    def __init__(self, deliver: Callable[[OutboxItem], Awaitable[object]], seats: int) -> None:
        self._deliver = deliver
        self._seats = seats
        self._taken = 0
        self._lately: set[str] = set()
        self._tasks: asyncio.TaskGroup | None = None
        self.under_way: set[str] = set()
        self.ended = asyncio.Event()

    async def __aenter__(self) -> PriorityDelivery:
        self._tasks = await asyncio.TaskGroup().__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        tasks, self._tasks = self._tasks, None
        if tasks is not None:
            await tasks.__aexit__(kind, error, trace)

    def send(self, item: OutboxItem) -> None:
        """Sends it, where there is a seat; otherwise it waits for its turn."""
        request_id = item.request.request_id
        if self._tasks is not None and self._taken < self._seats and request_id not in self.under_way:
            self._taken += 1
            self.under_way.add(request_id)
            self._lately.add(request_id)
            self._tasks.create_task(self._send(item))

    def begin_step(self) -> None:
        """The queue begins to look what there is."""
        self.ended.clear()
        self._lately = set(self.under_way)

    def left_alone(self, found: list[OutboxItem]) -> list[OutboxItem]:
        """Without what was sent here: it may have ended since it was looked up."""
        return [item for item in found if item.request.request_id not in self._lately]

    @property
    def lately(self) -> frozenset[str]:
        """Request ids of what the queue is to pass over."""
        return frozenset(self._lately)

    async def _send(self, item: OutboxItem) -> None:
        try:
            await self._deliver(item)
        except Exception:  # the outermost loop of a task that must not end the others
            log.exception("outbox delivery broke", request_id=item.request.request_id)
        finally:
            self._taken -= 1
            self.ended.set()
