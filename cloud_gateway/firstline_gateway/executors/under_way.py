"""What is under way, and the wait for its end when the gateway closes."""

from __future__ import annotations

import asyncio
from typing import Self


class UnderWay:
    """Counts those within its `with`; belongs to one event loop.

    Attributes:
        count: of those that are. Where a `with` costs too much it is changed by hand; who lowers it then calls `tell`,
            at least once anybody may wait for the end.
    """

    def __init__(self) -> None:
        self.count = 0
        self._none: asyncio.Event | None = None

    def __enter__(self) -> Self:
        self.count += 1
        return self

    def __exit__(self, *_: object) -> None:
        self.count -= 1
        if self._none is not None:
            self.tell()

    def tell(self) -> None:
        """Where none is left, whoever waits for that goes on."""
        if not self.count and self._none is not None:
            self._none.set()

    async def end(self, timeout_s: float | None = None) -> None:
        """Returns when there are none, or when that took too long."""
        self._none = self._none or asyncio.Event()
        try:
            async with asyncio.timeout(timeout_s):
                while self.count:
                    self._none.clear()
                    await self._none.wait()
        except TimeoutError:
            pass
