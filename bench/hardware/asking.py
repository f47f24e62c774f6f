"""A client of the real agent that asks again and again while something presses it, and counts what comes of it."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager

import httpx
from support.pressure import Client

_PAUSE_S = 0.02


class Asker:
    """Counts.

    Args:
        asks: one request; what came of it.

    Attributes:
        came: how many requests were answered by which variant or by the cache, refused as what, or lost.
        latest: of them.
        asked: once there is one.
    """

    def __init__(self, asks: Callable[[], Coroutine[None, None, str]]) -> None:
        self._asks = asks
        self.came: Counter[str] = Counter()
        self.latest = ""
        self.asked = asyncio.Event()

    async def goes_on(self) -> None:
        """Until it is cancelled."""
        while True:
            try:
                self.latest = await self._asks()
            except httpx.HTTPError:
                self.latest = "lost"
            self.came[self.latest] += 1
            self.asked.set()
            await asyncio.sleep(_PAUSE_S)


@asynccontextmanager
async def asking(client: Client, *askers: Asker) -> AsyncIterator[None]:
    """They ask meanwhile; returns once each was answered."""
    tasks = [asyncio.create_task(asker.goes_on()) for asker in askers]
    try:
        for asker in askers:
            await asker.asked.wait()
        yield
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await client.close()
