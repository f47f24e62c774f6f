"""How far the event loop is behind: requests that lie in the sockets are late before anybody has read them.

Where more come than can be read, each would be read too late, and none answered in time (receive livelock: Mogul and
Ramakrishnan, 1997). What is refused from the head alone takes a tenth of the time, so that the loop catches up.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from firstline_core.errors import QueueFullError
from firstline_core.protocol.http import error_reply

REFUSED = QueueFullError("More requests come than this gateway can read; come back later.", retry_after_s=1.0)
_PERIOD_S = 0.02
LIMIT_S = 0.1
"""Behind by more, twice in a row, requests for inference are refused unread; one pause is no overload."""


def refusal() -> bytes:
    """The whole HTTP/1.1 response; the connection stays open."""
    reply = error_reply(REFUSED)
    fields = {**reply.headers, "Content-Length": str(len(reply.body))}
    lines = [f"HTTP/1.1 {reply.status} Service Unavailable", *(f"{name}: {value}" for name, value in fields.items())]
    return "\r\n".join((*lines, "", "")).encode("ascii") + reply.body


class LoopLag:
    """Measured by a timer that is due every 20 ms.

    Args:
        on_refused: told of each request that was refused for it.
    """

    def __init__(self, on_refused: Callable[[], None]) -> None:
        self.on_refused = on_refused
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
