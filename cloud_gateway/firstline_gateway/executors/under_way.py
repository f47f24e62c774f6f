"""What is under way, and the wait for its end when the gateway closes."""

from __future__ import annotations

import asyncio
from typing import Self


class UnderWay:
    """Counts those within its `with`, or between `count += 1` and `leave`; belongs to one event loop.

    Attributes:
        count: of those that are.
    """

    def __init__(self) -> None:
        self.count = 0
        self._none = asyncio.Event()

    def __enter__(self) -> Self:
        self.count += 1
        return self

    def __exit__(self, *_: object) -> None:
        self.leave()

    def leave(self) -> None:
        """One has ended."""
        self.count -= 1
        if not self.count:
            self._none.set()

    async def end(self, timeout_s: float | None = None) -> None:
        """Returns when there are none, or when that took too long."""
        try:
            async with asyncio.timeout(timeout_s):
                while self.count:
                    self._none.clear()
                    await self._none.wait()
        except TimeoutError:
            pass
