"""One executor after the other, whatever they do: what a gateway would be without the dispatcher."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from concurrent.futures import Future

from bench.support.executor import ExecutorWithoutFiles
from firstline_core.types import ModelKey, Tensor
from firstline_gateway.executors.base import Outcome
from firstline_gateway.executors.dispatch.dispatcher import Dispatcher, single


class Turns(ExecutorWithoutFiles):
    """Of the executors of an engine, which looks after them."""

    def __init__(self, engine: Dispatcher) -> None:
        self._executors = [member.executor for member in engine.members]
        super().__init__(sum(each.slots for each in self._executors))
        self._count = 0

    async def run(self, key: ModelKey, inputs: Sequence[Tensor], deadlines_s: Sequence[float | None]) -> list[Outcome]:
        self._count += 1
        running = self._executors[self._count % len(self._executors)].run(key, inputs, deadlines_s)
        return await (asyncio.wrap_future(running) if isinstance(running, Future) else running)


def in_turns(engine: Dispatcher) -> Dispatcher:
    """Returns the executors of an engine as one, which takes them in turns."""
    return single(Turns(engine), [placed.served for placed in engine.members[0].models.values()])
