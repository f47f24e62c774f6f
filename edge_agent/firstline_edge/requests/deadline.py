"""A deadline on the clock that the rest of the agent lives by."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import TypeVar

from firstline_core.clock import Clock, first_of
from firstline_core.errors import DeadlineExceededError

T = TypeVar("T")


async def within(clock: Clock, deadline_s: float, work: Awaitable[T], late: str) -> T:
    """Awaits `work` until the deadline, and cancels it then.

    Args:
        clock: whose monotonic time `deadline_s` is on; simulated in tests, which `asyncio.timeout` cannot be.
        deadline_s: a point in time, not a duration.
        work: what to wait for.
        late: the sentence for when the deadline comes first.

    Raises:
        DeadlineExceededError: the deadline came first.
    """
    task = asyncio.ensure_future(work)
    try:
        await first_of(asyncio.wait({task}), clock.sleep(max(0.0, deadline_s - clock.monotonic_s())))
        if task.done():
            return task.result()
        raise DeadlineExceededError(late)
    finally:
        task.cancel()
