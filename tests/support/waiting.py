"""Waits for a condition that gives no signal, for example one in another process."""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import Callable


async def until(condition: Callable[[], object], timeout_s: float = 20) -> None:
    """Polls until the condition is true.

    Args:
        condition: returns a truth value, or an awaitable of one.
        timeout_s: much longer than the condition takes, as the machine may be busy.

    Raises:
        TimeoutError: the condition is still false.
    """
    async with asyncio.timeout(timeout_s):
        while True:
            holds = condition()
            if inspect.isawaitable(holds):
                holds = await holds
            if holds:
                return
            await asyncio.sleep(0.002)


def wait_until(condition: Callable[[], object], timeout_s: float = 60) -> None:
    """The same without an event loop."""
    end_s = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < end_s, "the condition is still false"
        time.sleep(0.01)
