"""Work that repeats for as long as the process runs."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from firstline_core.clock import Clock, end_tasks
from firstline_core.errors import FirstlineError
from firstline_core.telemetry.logs import logger

log = logger(__name__)


@dataclass(eq=False)
class PeriodicTask:
    """Runs an action at once, then after every interval or when it is woken. Belongs to one event loop.

    A failure is logged once until the action succeeds or fails for another reason, and never ends the task.

    Args:
        name: names the action in the log.
        action: the work of one round.
        interval_s: seconds between the end of one round and the start of the next.
        clock: measures the interval.
        wake: starts the next round early when it is set; cleared here.
    """

    name: str
    action: Callable[[], Awaitable[object]]
    interval_s: float
    clock: Clock
    wake: asyncio.Event = field(default_factory=asyncio.Event)

    def __post_init__(self) -> None:
        self._failure = ""
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Starts the first round."""
        self._task = asyncio.create_task(self._run())

    async def close(self) -> None:
        """Cancels the round in progress and ends the task."""
        task, self._task = self._task, None
        await end_tasks(task)

    async def _run(self) -> None:
        while True:
            try:
                await self.action()
                self._failure = ""
            except FirstlineError as error:
                if error.message != self._failure:
                    log.error("background task failed", task=self.name, error=error.message)
                self._failure = error.message
            except Exception:
                log.exception("background task failed", task=self.name)
            timer = self.clock.call_at(self.clock.monotonic_s() + self.interval_s, self.wake.set)
            await self.wake.wait()
            timer.cancel()
            self.wake.clear()
