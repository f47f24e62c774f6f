"""The desired version of one model and requests to roll it back, until the model's task takes them up."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Coroutine
from typing import Any, TypeVar

from firstline_core.clock import Clock, first_of
from firstline_core.errors import LinkDownError, NotReadyError
from firstline_core.fleet.twin import DesiredModel
from firstline_edge.fleet.updates.wanted import LOOK_S, is_over, is_same

_T = TypeVar("_T")


class SupersededError(LinkDownError):
    """Raised when something else is desired; the work in progress stays as it is."""

    def __init__(self) -> None:
        super().__init__("The fleet wants something else by now.")


class Wishes:
    """Of one model.

    Args:
        clock: times of the fleet's are by the wall.

    Attributes:
        wanted: by the fleet; None where it names this model no more, or was not heard yet.
        heard: whether the fleet was heard since the start.
        asked: done once the model was rolled back; None if no rollback was requested.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._news = asyncio.Event()
        self.wanted: DesiredModel | None = None
        self.heard = False
        self.asked: asyncio.Future[None] | None = None

    def desire(self, wanted: DesiredModel | None) -> None:
        """Takes the version that the fleet desires now; None if it no longer names this model."""
        self.wanted, self.heard = wanted, True
        self._news.set()

    async def roll_back(self) -> None:
        """Returns once that is done; raises what kept it from being done."""
        if self.asked is None:
            self.asked = asyncio.get_running_loop().create_future()
        self._news.set()
        await asyncio.shield(self.asked)

    def taken_in(self) -> None:
        """All that is wanted now is known."""
        self._news.clear()

    async def wait(self, wait_s: float) -> None:
        """For something new since `taken_in`, or so long."""
        await first_of(self._news.wait(), self._clock.sleep(wait_s))

    def close(self) -> None:
        """Fails requests that are still waiting."""
        if self.asked is not None and not self.asked.done():
            self.asked.set_exception(NotReadyError("The agent stops; roll back again."))

    async def while_wanted(self, work: Coroutine[Any, Any, _T], wanted: DesiredModel) -> _T:
        """Returns the result of the work; the work is cancelled when its result is not needed any more.

        Raises:
            SupersededError: the fleet desires something else, a rollback was requested, or the time is over.
        """
        task = asyncio.create_task(work)
        try:
            while not task.done():
                self.taken_in()
                if not self._still_wants(wanted):
                    raise SupersededError
                waits: list[Awaitable[Any]] = [asyncio.wait({task}), self._news.wait()]
                if self.wanted is not None and self.wanted.expires_s:
                    left_s = self.wanted.expires_s - self._clock.wall_s()
                    waits.append(self._clock.sleep(min(LOOK_S, left_s)))
                await first_of(*waits)
            return task.result()
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    def _still_wants(self, wanted: DesiredModel) -> bool:
        now = self.wanted
        return (
            self.asked is None
            and now is not None
            and not now.undone
            and is_same(now, wanted)
            and not is_over(now, self._clock.wall_s())
        )
