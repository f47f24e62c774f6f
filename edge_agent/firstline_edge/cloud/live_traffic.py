"""Counts the escalations in progress: background transfers wait for them."""

from __future__ import annotations

import asyncio
from types import TracebackType


class LiveTraffic:
    """Counts live escalations; a context manager for the time of each.

    Args:
        room: audits wait while as many are under way.
    """

    def __init__(self, room: int = 4) -> None:
        self._room = room
        self._under_way = 0
        self._quiet = asyncio.Event()
        self._quiet.set()

    @property
    def busy(self) -> bool:
        return self._under_way >= self._room

    def __enter__(self) -> None:
        self._under_way += 1
        if self.busy:
            self._quiet.clear()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._under_way -= 1
        if not self.busy:
            self._quiet.set()

    async def wait_quiet(self) -> None:
        """Returns once there is room; at once if so already."""
        await self._quiet.wait()
