"""Requests as a gateway receives them, and executors in round robin instead of the dispatcher."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import Future

import numpy as np

from bench.hardware.scheduler.site import KEY
from bench.support.executor import ExecutorWithoutFiles, single_executor
from firstline_core.clock import SYSTEM_CLOCK
from firstline_core.errors import FirstlineError
from firstline_core.types import Arrays, InferRequest, ModelKey, Tensor
from firstline_gateway.executors.base import Outcome
from firstline_gateway.executors.dispatch.dispatcher import Dispatcher
from firstline_gateway.serving.scheduling.admission import Bounds
from firstline_gateway.serving.scheduling.batcher import Batcher

PATIENCE_S = 5.0
_SEED = 20261123
_ROW = np.array([[0.5, 0, 1, 2]], np.float32)

Ask = Callable[[float], Awaitable[None]]
"""Requests an answer for one row, with a deadline on the monotonic clock."""


def batched(engine: Dispatcher) -> Ask:
    """Returns a function that sends requests through the gateway's batcher: admission, deadline queue, batching."""
    bounds = Bounds(requests=1024, size_bytes=1 << 30, seconds=10.0, batch_rows=64)
    batcher = Batcher(engine, clock=SYSTEM_CLOCK, bounds=bounds)

    async def ask(deadline_s: float) -> None:
        await batcher.submit(KEY, InferRequest("m", (Tensor("x", _ROW),), "", deadline_s=deadline_s))

    return ask


async def play(ask: Ask, rate_per_s: float, seconds: float) -> tuple[list[float], int]:
    """Sends requests as a Poisson process; returns their latencies from when they were due, and the number lost."""
    draw = random.Random(_SEED)
    took_s: list[float] = []
    lost = 0

    async def one(due_s: float) -> None:
        nonlocal lost
        try:
            async with asyncio.timeout(PATIENCE_S):
                await ask(due_s + PATIENCE_S)
        except (FirstlineError, TimeoutError):
            lost += 1
        else:
            took_s.append(time.monotonic() - due_s)

    due_s = time.monotonic()
    end_s, tasks = due_s + seconds, []
    while (due_s := due_s + draw.expovariate(rate_per_s)) < end_s:
        await asyncio.sleep(max(0.0, due_s - time.monotonic()))
        tasks.append(asyncio.create_task(one(due_s)))
    await asyncio.gather(*tasks)
    return took_s, lost


async def answered_per_s(ask: Ask, clients: int, seconds: float = 2.0, warm_s: float = 0.5) -> float:
    """Returns the answers per second of this many clients that send requests without a pause."""
    count, began_s = 0, time.monotonic() + warm_s

    async def client() -> None:
        nonlocal count
        while (now_s := time.monotonic()) < began_s + seconds:
            await ask(now_s + 60.0)
            count += time.monotonic() >= began_s

    await asyncio.gather(*(client() for _ in range(clients)))
    return round(count / (time.monotonic() - began_s), 1)


class Turns(ExecutorWithoutFiles):
    """Uses the executors of an engine in round robin; the engine owns them."""

    def __init__(self, engine: Dispatcher) -> None:
        self._executors = [member.executor for member in engine.members]
        super().__init__(sum(each.slots for each in self._executors))
        self._count = 0

    async def run(self, key: ModelKey, inputs: Sequence[Arrays], deadlines_s: Sequence[float | None]) -> list[Outcome]:
        self._count += 1
        running = self._executors[self._count % len(self._executors)].run(key, inputs, deadlines_s)
        return await (asyncio.wrap_future(running) if isinstance(running, Future) else running)


def in_turns(engine: Dispatcher) -> Dispatcher:
    """Returns the executors of an engine as one that uses them in round robin."""
    return single_executor(Turns(engine), [placed.served for placed in engine.members[0].models.values()])
