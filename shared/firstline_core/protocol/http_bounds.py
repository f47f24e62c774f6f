"""What a server bears of one connection, before anybody knows whose it is: so many bytes, requests and seconds.

Free of any web framework: both tiers hold their connections to it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

HEAD_LIMIT_BYTES = 65_536
HEAD_TIMEOUT_S = 20.0
# Requests that wait for the answer of the one before; clients that send ahead at all send a few.
PIPELINE_LIMIT = 16
TOO_MANY_AHEAD = f"More than {PIPELINE_LIMIT} requests came ahead of their answers; send fewer at once."
# How long an answer waits for a client that does not read it.
WRITE_TIMEOUT_S = 30.0


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


class IdleTimer:
    """Of one connection.

    Args:
        loop: the connection's.
        patience_s: how long a connection may be idle.
        end: closes it.
    """

    __slots__ = ("_end", "_loop", "_patience_s", "_since_s", "_timer")

    def __init__(self, loop: asyncio.AbstractEventLoop, patience_s: float, end: Callable[[], None]) -> None:
        self._loop = loop
        self._patience_s = patience_s
        self._end = end
        self._timer: asyncio.TimerHandle | None = None
        self._since_s: float | None = None  # None while a request comes or is answered

    def busy(self) -> None:
        """A request comes."""
        self._since_s = None

    def rest(self) -> None:
        """The last was answered."""
        self._since_s = self._loop.time()
        if self._timer is None:
            self._timer = self._loop.call_later(self._patience_s, self._look)

    def cancel(self) -> None:
        """The connection has ended."""
        if self._timer is not None:
            self._timer.cancel()

    def _look(self) -> None:
        self._timer = None
        if self._since_s is None:  # the next answer begins anew
            return
        left_s = self._since_s + self._patience_s - self._loop.time()
        if left_s > 0:
            self._timer = self._loop.call_later(left_s, self._look)
        else:
            self._end()


class StallTimer:
    """Ends a connection whose client does not read what it is sent.

    Args:
        loop: the connection's.
        end: closes it.
    """

    __slots__ = ("_end", "_loop", "_running")

    def __init__(self, loop: asyncio.AbstractEventLoop, end: Callable[[], None]) -> None:
        self._loop = loop
        self._end = end
        self._running: asyncio.TimerHandle | None = None

    def stalled(self) -> None:
        """More is written than the client takes."""
        self._running = self._loop.call_later(WRITE_TIMEOUT_S, self._end)

    def cancel(self) -> None:
        """It has taken it, or has left."""
        if self._running is not None:
            self._running.cancel()
            self._running = None
