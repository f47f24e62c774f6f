"""Admits as many requests as fit a moment of the event loop, in order of arrival.

Work of less than a millisecond runs on the event loop itself. A burst of requests would block the loop: timers,
arrivals and the gateway's answers would wait, and the last requests would miss their deadlines. So requests line up,
and the loop looks around after each slice of time. A request that cannot be in time is
refused as soon as that is certain, while sending it again, or elsewhere, may still help. Not sooner: refusing costs a
third of answering, so that an agent which refuses on suspicion has less time for those whom it lets wait.
"""

from __future__ import annotations

import asyncio
import math
from collections import deque

from firstline_core.clock import Clock
from firstline_core.errors import QueueFullError
from firstline_core.telemetry.wording import counted

_SLICE_S = 0.02
_FIRST_GUESS_S = 0.002
_STEP = 1.05
_HOPE = 0.5  # the share of what the line is expected to take that it takes for certain


class AdmissionQueue:
    """The line of requests that have come and not begun.

    Args:
        limit: of requests in it.
        clock: of the deadlines.
    """

    def __init__(self, limit: int, clock: Clock) -> None:
        self._limit = limit
        self._clock = clock
        self._line: deque[tuple[asyncio.Future[None], float]] = deque()
        self._begun = 0  # since the loop last came round
        self._began_s = 0.0  # when the first of those did
        self._turn_s = _FIRST_GUESS_S

    def __len__(self) -> int:
        """How many wait."""
        return len(self._line)

    @property
    def wait_s(self) -> float:
        """Seconds that the line is expected to take."""
        return len(self._line) * self._turn_s

    def _take_now(self, deadline_s: float, now_s: float) -> bool:
        """Lets the request begin if no other waits and the slice has room; returns whether it did."""
        if self._line or deadline_s <= now_s or (self._begun and now_s >= self._began_s + _SLICE_S):
            return False
        if self._begun:
            self._begun += 1
        else:
            self._begin(now_s)
        return True

    async def take(self, deadline_s: float) -> None:
        """Returns when the request may begin: at once if no other waits and the slice has room.

        Raises:
            QueueFullError: it cannot be in time, or too many wait.
        """
        now_s = self._clock.monotonic_s()
        if self._take_now(deadline_s, now_s):
            return
        if deadline_s <= now_s + _HOPE * self.wait_s:
            raise self._full("its deadline passes before its turn")
        if len(self._line) >= self._limit:
            raise self._full("no more may wait (api.waiting_limit)")
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._line.append((turn, deadline_s))
        await turn

    def _begin(self, now_s: float) -> None:
        if not self._begun:
            self._began_s = now_s
            asyncio.get_running_loop().call_soon(self._next)
        self._begun += 1

    def _next(self) -> None:
        """The loop has come round: notes how long that took, and lets the next ones begin."""
        now_s = self._clock.monotonic_s()
        # Towards the median: an average would take the round in which five hundred others came for a slow one.
        self._turn_s *= _STEP if now_s - self._began_s > self._begun * self._turn_s else 1 / _STEP
        self._begun = 0
        while self._line and self._begun * self._turn_s < _SLICE_S:
            turn, deadline_s = self._line.popleft()
            if turn.done():  # its caller has left
                continue
            if deadline_s <= now_s:
                turn.set_exception(self._full("its deadline passed before its turn"))
                continue
            turn.set_result(None)
            self._begin(now_s)

    def _full(self, why: str) -> QueueFullError:
        return QueueFullError(
            f"This agent is busy with {counted(len(self._line) + 1, 'request')} that came before this one, "
            f"and {why}; try again.",
            retry_after_s=max(1.0, math.ceil(self.wait_s)),
        )
