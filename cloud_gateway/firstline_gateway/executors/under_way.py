"""Counts work under way, and waits for its end when the gateway closes."""

from __future__ import annotations

import asyncio
from typing import Self


class UnderWay:
    """Counts the work within its `with`; belongs to one event loop.

    Attributes:
        count: of the work under way.
    """

    def __init__(self) -> None:
        self.count = 0
        self._none: asyncio.Event | None = None

    def __enter__(self) -> Self:
        self.count += 1
        return self

    def __exit__(self, *_: object) -> None:
        self.count -= 1
        if not self.count and self._none is not None:
            self._none.set()

    async def end(self, timeout_s: float | None = None) -> None:
        """Returns when there is none, or after the timeout."""
        self._none = self._none or asyncio.Event()
        try:
            async with asyncio.timeout(timeout_s):
                while self.count:
                    self._none.clear()
                    await self._none.wait()
        except TimeoutError:
            pass
