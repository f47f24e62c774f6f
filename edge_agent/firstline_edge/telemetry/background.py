"""Tasks that run as long as the agent. A task that ends unexpectedly is logged, and is a problem in `status`."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from typing import Any, TypeAlias

from firstline_core.telemetry.logs import logger

log = logger(__name__)


Work: TypeAlias = Callable[[], Coroutine[Any, Any, None]]
"""Works until it is cancelled, or until it has nothing more to do."""


class Background:
    """One agent's.

    Attributes:
        problems: tasks that ended, by name, each with the reason in a sentence.
    """

    def __init__(self) -> None:
        self.problems: dict[str, str] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}

    def start(self, name: str, *works: Work) -> None:
        """Starts a task that runs until `close`, or ends when it has nothing more to do.

        Args:
            name: of its purpose, for people.
            works: run together; an error of one, which is always unexpected, ends all.
        """
        task = self._tasks[name] = asyncio.create_task(_together(works), name=name)
        task.add_done_callback(partial(self._report_end, name))

    async def close(self, name: str) -> None:
        """Cancels a task, and raises its earlier error: a process that lost a part does not end cleanly."""
        task = self._tasks.pop(name)
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task

    def _report_end(self, name: str, task: asyncio.Task[None]) -> None:
        """Reports an error at once, not when the agent is stopped."""
        if task.cancelled() or (error := task.exception()) is None:
            return
        why = _first(error)
        reason = f"{type(why).__name__}: {why}" if str(why) else type(why).__name__
        self.problems[name] = f"The agent's {name} ended ({reason}), and does nothing until the agent is started again."
        log.error("background task failed", part=name, exc_info=error)


def _first(error: BaseException) -> BaseException:
    """Tasks of a group say what went wrong within a group of errors."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


async def _together(works: Sequence[Work]) -> None:
    async with asyncio.TaskGroup() as tasks:
        for work in works:
            tasks.create_task(work())
