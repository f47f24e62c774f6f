"""Threads for calls that would block the event loop, with a bounded queue."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import Any, TypeVar

from firstline_core.clock import SYSTEM_CLOCK, Clock
from firstline_core.errors import DeadlineExceededError, QueueFullError

A = TypeVar("A")
R = TypeVar("R")

_STEP = 1.05
_END_S = 1.0  # for calls in progress when the agent ends


class Workers:
    """A thread pool with a bounded queue, which refuses calls instead of delaying them.

    Args:
        threads: calls at once.
        queue_limit: calls that may wait for a thread.
        clock: of the deadlines.
    """

    def __init__(self, threads: int, queue_limit: int, clock: Clock = SYSTEM_CLOCK) -> None:
        self._clock = clock
        self._limit = threads + queue_limit
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="model")
        self._threads = threads
        self._expected_s: dict[Future[Any], float] = {}  # of the calls that run or wait
        self._slowness = 1.0  # how much longer than expected calls take, while the machine is busy

    @property
    def wait_s(self) -> float:
        """Seconds until a thread is free for one more call, by the expected times of the calls before it."""
        free = len(self._expected_s) < self._threads
        return 0.0 if free else self._slowness * sum(self._expected_s.values()) / self._threads

    @property
    def busy(self) -> float:
        """The share of the threads that are busy."""
        return min(1.0, len(self._expected_s) / self._threads)

    @property
    def waiting(self) -> int:
        """The number of calls that wait for a thread."""
        return max(0, len(self._expected_s) - self._threads)

    async def run(
        self, call: Callable[[A], R], argument: A, deadline_s: float = math.inf, expected_s: float = 0.0
    ) -> R:
        """Calls in a thread, unless the deadline has passed before one is free.

        Args:
            call: a blocking call.
            argument: of the call.
            deadline_s: on the clock.
            expected_s: the expected time of the call, for `wait_s`.

        Raises:
            QueueFullError: too many calls wait, or the wait would be too long.
            DeadlineExceededError: no thread was free in time; nothing was called.
        """
        wait_s = self.wait_s
        ends_s = self._clock.monotonic_s() + wait_s + self._slowness * expected_s
        if wait_s and deadline_s <= ends_s < math.inf:  # a call that was never measured may be quick
            raise QueueFullError(
                f"This device's model is taken for {wait_s:.1f} s, and the request's deadline would pass; try again.",
                retry_after_s=max(1.0, wait_s),
            )
        pending = len(self._expected_s)
        if pending >= self._limit:
            raise QueueFullError(
                f"{pending} runs wait for this device's model, its limit; try again, or raise "
                "models.workers or models.queue_limit.",
                retry_after_s=1.0,
            )
        future = self._pool.submit(self._call, call, argument, deadline_s, expected_s)
        self._expected_s[future] = expected_s
        loop = asyncio.get_running_loop()
        # A caller who leaves does not end a run that has begun: it counts until its thread is free.
        future.add_done_callback(lambda done: None if loop.is_closed() else loop.call_soon_threadsafe(self._done, done))
        return await asyncio.wrap_future(future)

    def close(self) -> None:
        """Drops the calls that wait, and gives those in progress a second: no thread can be made to stop."""
        self._pool.shutdown(wait=False, cancel_futures=True)
        wait(self._expected_s, timeout=_END_S)

    @property
    def ended(self) -> bool:
        """Whether no call is in progress, so that what the calls use may be freed."""
        return all(future.done() for future in self._expected_s)

    def _call(self, call: Callable[[A], R], argument: A, deadline_s: float, expected_s: float) -> R:
        if self._clock.monotonic_s() >= deadline_s:
            raise DeadlineExceededError("The request's deadline passed before this device's model was free for it.")
        began_s = self._clock.monotonic_s()
        result = call(argument)
        # Towards the median, and never below 1. Lost updates of two threads do no harm.
        slower = expected_s > 0 and self._clock.monotonic_s() - began_s > self._slowness * expected_s
        self._slowness = max(1.0, self._slowness * (_STEP if slower else 1 / _STEP))
        return result

    def _done(self, future: Future[Any]) -> None:
        del self._expected_s[future]
