"""Batches under way at an engine elsewhere, and the wait for their end when the gateway closes."""

from __future__ import annotations

import asyncio
from typing import Self


class UnderWay:
    """Counts those within its `with`; belongs to one event loop."""

    def __init__(self) -> None:
        self._count = 0
        self._none = asyncio.Event()

    def __enter__(self) -> Self:
        self._count += 1
        return self

    def __exit__(self, *_: object) -> None:
        self._count -= 1
        if not self._count:
            self._none.set()

    async def end(self, timeout_s: float) -> None:
        """Returns when there are none, or when that took too long."""
        try:
            async with asyncio.timeout(timeout_s):
                while self._count:
                    self._none.clear()
                    await self._none.wait()
        except TimeoutError:
            pass
