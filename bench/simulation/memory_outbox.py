"""An outbox in memory, for a simulated device: a disk has no simulated time. What delivery needs of the real one."""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from itertools import islice

from firstline_core.clock import Clock
from firstline_core.types import InferResponse, ModelVersion
from firstline_edge.outbox.item import OutboxItem
from firstline_edge.outbox.timeline import Timeline


class MemoryOutbox:
    """Keeps promises until they are finished; see `firstline_edge.outbox.outbox.Outbox` for each method."""

    def __init__(self, clock: Clock) -> None:
        self._items: dict[str, OutboxItem] = {}
        self._timeline = Timeline(clock)
        self.changed = asyncio.Event()
        self.stored: asyncio.Queue[OutboxItem] = asyncio.Queue()  # always empty: no caller waits here

    @property
    def depth(self) -> int:
        return len(self._items)

    @property
    def open(self) -> set[str]:
        """The ids of those that are not kept yet."""
        return set(self._items)

    async def put(self, item: OutboxItem) -> None:
        self._items[item.request_id] = item
        self._timeline.start(item.request_id)
        self.changed.set()

    async def pending(
        self,
        limit: int,
        *,
        skip_ids: Collection[str] = (),
        skip_models: Collection[ModelVersion] = (),
        skip_reached_gateway: bool = False,
    ) -> list[OutboxItem]:
        found = (
            item
            for request_id, item in self._items.items()
            if request_id not in skip_ids
            and item.model not in skip_models
            and not (skip_reached_gateway and item.may_have_reached_gateway)
        )
        return list(islice(found, limit))

    async def overdue(self, age_s: float, limit: int) -> list[OutboxItem]:
        return [self._items[request_id] for request_id in self._timeline.at_least(age_s, limit)]

    async def finish(self, request_id: str, final: InferResponse) -> None:
        self._items.pop(request_id, None)
        self._timeline.remove(request_id)

    def age_s(self, item: OutboxItem) -> float:
        return self._timeline.age_s(item.request_id)

    def is_waiting(self, item: OutboxItem) -> bool:
        return item.request_id in self._items

    @property
    def oldest_s(self) -> float:
        return self._timeline.oldest_s()

    async def wait_pending(self) -> None:
        while not self._items:
            self.changed.clear()
            await self.changed.wait()
