"""Waits for a condition that gives no signal, for example one in another process."""

import asyncio
import inspect
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

from firstline_core.clock import SimulatedClock

T = TypeVar("T")


def work_for(seconds: float) -> None:
    """Keeps this thread's processor busy for `seconds` of its time."""
    end_s = time.thread_time() + seconds
    while time.thread_time() < end_s:
        pass


def _pause_s(began_s: float) -> float:
    """A pause between two looks at a condition: what has taken long is looked at less often."""
    return min(0.05, 0.002 + (time.monotonic() - began_s) / 10)


async def until(condition: Callable[[], object], timeout_s: float = 20) -> None:
    """Polls until the condition is true.

    Args:
        condition: returns a truth value, or an awaitable of one.
        timeout_s: much longer than the condition takes, as the machine may be busy.

    Raises:
        TimeoutError: the condition is still false.
    """
    began_s = time.monotonic()
    async with asyncio.timeout(timeout_s):
        while True:
            holds = condition()
            if is_costly := inspect.isawaitable(holds):
                holds = await holds
            if holds:
                return
            await asyncio.sleep(_pause_s(began_s) if is_costly else 0.002)


def wait_until(condition: Callable[[], object], timeout_s: float = 60) -> None:
    """The same without an event loop."""
    began_s = time.monotonic()
    while not condition():
        assert time.monotonic() < began_s + timeout_s, "the condition is still false"
        time.sleep(_pause_s(began_s))


async def result_of(awaited: Awaitable[T], clock: SimulatedClock, step_s: float = 0.001) -> T:
    """Lets simulated time pass until the result is there, in steps or from one sleeper of the clock to the next."""
    future = asyncio.ensure_future(awaited)
    for _ in range(10):
        await asyncio.sleep(0)
    while not future.done():
        next_s = clock._sleepers[0][0] if clock._sleepers else 0.0
        await clock.advance(max(step_s, next_s - clock.monotonic_s()))
        for _ in range(3):
            await asyncio.sleep(0)
    return future.result()
