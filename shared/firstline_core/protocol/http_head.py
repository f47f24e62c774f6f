"""How long and how large a request's head may be, before anybody knows who sends it. Free of any web framework."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

HEAD_LIMIT_BYTES = 65_536
HEAD_TIMEOUT_S = 20.0


class HeadTimer:
    """Ends a connection whose next head was begun and does not become whole.

    The clock runs from the first byte and is not set back by another: a client that sends one a minute would
    otherwise keep its connection for ever. What comes after a request was answered early counts too.

    Args:
        end: closes the connection.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, end: Callable[[], None]) -> None:
        self._loop = loop
        self._end = end
        self._running: asyncio.TimerHandle | None = None

    def heard(self, *, working: bool) -> None:
        """Bytes came and were parsed.

        Args:
            working: whether a request is being answered, so that its head is whole.
        """
        if working:
            self.cancel()
        elif self._running is None:
            self._running = self._loop.call_later(HEAD_TIMEOUT_S, self._end)

    def cancel(self) -> None:
        if self._running is not None:
            self._running.cancel()
            self._running = None
