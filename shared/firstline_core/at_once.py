"""A coroutine run at once, in its caller's turn of the event loop, for as far as it gets without waiting.

Most requests never wait for anything, and for them a task, with its two turns of the loop, would cost more than what
it does. (Python 3.12 has eager tasks for this; this works from 3.11 on.)
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Generator
from contextvars import Context, copy_context
from types import coroutine
from typing import Any, NamedTuple


class Left(NamedTuple):
    """A coroutine that waits, to be awaited on by a task in its own context.

    Args:
        work: as far as it got.
        waits_for: what it waits for.
        context: that it ran in.
    """

    work: Coroutine[Any, Any, None]
    waits_for: object
    context: Context

    async def rest(self) -> None:
        """What is left of it."""
        await self._resumed()

    @coroutine  # which a task takes since Python 3.12 only from within an `async def`
    def _resumed(self) -> Generator[Any, Any, None]:
        waits_for = self.waits_for
        try:
            while True:
                try:
                    found = yield waits_for
                except BaseException as error:  # noqa: BLE001 (handed on, as `await` does)
                    waits_for = self.work.throw(error)
                else:
                    waits_for = self.work.send(found)
        except StopIteration:
            return


def at_once(work: Coroutine[Any, Any, None]) -> Left | None:
    """Runs a coroutine until it ends, or waits.

    Until then there is no current task; what needs one (`asyncio.timeout`) begins with `in_task`.

    Returns:
        None where it has ended.
    """
    context = copy_context()
    try:
        return Left(work, context.run(work.send, None), context)
    except StopIteration:
        return None


async def in_task() -> None:
    """Returns in a task."""
    if asyncio.current_task() is None:
        await asyncio.sleep(0)
