"""Time as a parameter, so that every policy can be replayed on a simulated clock."""

from __future__ import annotations

import asyncio
import heapq
import time
from collections.abc import Awaitable, Callable
from typing import Any, Protocol

EARLIEST_PLAUSIBLE_WALL_S = 1_767_225_600.0  # 2026-01-01
"""A wall clock that shows an earlier time was never set."""


class Timer(Protocol):
    """The handle that `Clock.call_at` returns."""

    def cancel(self) -> object:
        """Cancels the call; no effect after the call."""
        ...


class Clock(Protocol):
    """The source of time.

    Durations within a process use `monotonic_s`. `wall_s` is for times that outlive the process or that two machines
    compare: the periods of budgets, the end of a brake, update windows, expiry, and ages in the disk cache. It may
    jump; `docs/reference/storage.md` lists what changes then.
    """

    def monotonic_s(self) -> float:
        """Returns the seconds since an arbitrary start; never goes backwards."""
        ...

    def wall_s(self) -> float:
        """Returns the seconds since the Unix epoch by this machine's clock."""
        ...

    async def sleep(self, seconds: float) -> None: ...

    def call_at(self, when_s: float, call: Callable[[], None]) -> Timer:
        """Schedules a call on the running event loop for the time `when_s` of `monotonic_s`."""
        ...


class SystemClock:
    """The clocks of the machine."""

    # Not wrapped in methods: a request reads the clock several times.
    monotonic_s = staticmethod(time.monotonic)
    wall_s = staticmethod(time.time)

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

    def call_at(self, when_s: float, call: Callable[[], None]) -> Timer:
        return asyncio.get_running_loop().call_later(max(0.0, when_s - self.monotonic_s()), call)


class SimulatedClock:
    """A clock that moves only when `advance` is called, and wakes sleepers in order."""

    def __init__(self, start_s: float = 0.0, wall_start_s: float = 1_800_000_000.0) -> None:
        self._now_s = start_s
        self._wall_offset_s = wall_start_s - start_s
        self._sleepers: list[tuple[float, int, asyncio.Future[None]]] = []
        self._order = 0

    def monotonic_s(self) -> float:
        return self._now_s

    def wall_s(self) -> float:
        return self._now_s + self._wall_offset_s

    def set_wall_s(self, wall_s: float) -> None:
        """Sets the wall clock."""
        self._wall_offset_s = wall_s - self._now_s

    async def sleep(self, seconds: float) -> None:
        await self._wake_at(self._now_s + seconds)

    def call_at(self, when_s: float, call: Callable[[], None]) -> Timer:
        woken = self._wake_at(when_s)
        woken.add_done_callback(lambda ended: None if ended.cancelled() else call())
        return woken

    def _wake_at(self, when_s: float) -> asyncio.Future[None]:
        woken: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._order += 1
        heapq.heappush(self._sleepers, (when_s, self._order, woken))
        return woken

    @property
    def sleepers(self) -> int:
        """Returns the number of tasks and timers that wait on this clock."""
        return sum(not woken.done() for _, _, woken in self._sleepers)

    async def advance(self, seconds: float) -> None:
        """Moves time forward, and wakes each sleeper at its time."""
        end_s = self._now_s + seconds
        while self._sleepers and self._sleepers[0][0] <= end_s:
            when_s, _, woken = heapq.heappop(self._sleepers)
            if woken.done():  # cancelled
                continue
            self._now_s = max(self._now_s, when_s)
            woken.set_result(None)
            # A woken task may sleep again before `end_s`; let it run until it waits.
            for _ in range(10):
                await asyncio.sleep(0)
        self._now_s = end_s


SYSTEM_CLOCK = SystemClock()


async def first_of(*waits: Awaitable[Any]) -> None:
    """Returns when the first of several awaitables is done; cancels the others and waits until they have ended.

    Results and exceptions of the awaitables are discarded: pass a task and read it afterwards to see them.
    """
    tasks = [asyncio.ensure_future(wait) for wait in waits]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        await end_tasks(*tasks)


async def end_tasks(*tasks: asyncio.Future[Any] | None) -> None:
    """Cancels tasks and waits until they have ended; discards their results and exceptions, and ignores None."""
    begun = [task for task in tasks if task is not None]
    for task in begun:
        task.cancel()
    await asyncio.gather(*begun, return_exceptions=True)
