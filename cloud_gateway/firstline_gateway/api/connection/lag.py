"""How far the event loop is behind: requests that lie in the sockets are late before anybody has read them."""

from __future__ import annotations

import asyncio

_PERIOD_S = 0.02
LIMIT_S = 0.1
"""Behind by more, twice in a row, more comes than can be read; one pause is no overload."""


class LoopLag:
    """Measured by a timer that is due every 20 ms."""

    def __init__(self) -> None:
        self._behind_s = (0.0, 0.0)
        self._due_s: float | None = None

    @property
    def is_long(self) -> bool:
        return min(self._behind_s) > LIMIT_S

    def watch(self, loop: asyncio.AbstractEventLoop) -> None:
        """Begins to measure; harmless where it does."""
        if self._due_s is None:
            self._measure(loop)

    def _measure(self, loop: asyncio.AbstractEventLoop) -> None:
        now_s = loop.time()
        if self._due_s is not None:
            self._behind_s = (self._behind_s[1], now_s - self._due_s)
        self._due_s = now_s + _PERIOD_S
        loop.call_later(_PERIOD_S, self._measure, loop)
