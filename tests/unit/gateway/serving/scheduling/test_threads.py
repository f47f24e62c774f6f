"""What runs next if every thread is busy: it is decided when a thread becomes free."""

import asyncio
import queue
import threading
from collections import defaultdict
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from support.gateway import Doubler, pool_of, request_of

from firstline_core.clock import SimulatedClock
from firstline_core.types import Arrays, InferRequest, ModelKey
from firstline_gateway.executors.local import LocalExecutor
from firstline_gateway.serving.scheduling.admission import Bounds
from firstline_gateway.serving.scheduling.batcher import Batcher

M = ModelKey("m", 1)


class Held(Doubler):
    """A model that says which row it begins, and ends when the test lets it; twice the rows take it twice as long."""

    def __init__(self, row_s: float) -> None:
        super().__init__(batch_s={1: row_s, 2: 2 * row_s})
        self.begun: queue.Queue[float] = queue.Queue()
        self.may_end: defaultdict[float, threading.Event] = defaultdict(threading.Event)

    def run(self, rows: Arrays) -> Arrays:
        value = float(rows["x"][0, 0])
        self.begun.put(value)
        assert self.may_end[value].wait(10)
        return super().run(rows)

    def close(self) -> None:
        pass


class Bench:
    """A batcher over threads of its own, of a model that the test holds."""

    def __init__(self, sessions: int) -> None:
        self.clock = SimulatedClock()
        self.model = Held(0.013)
        models = {M: self.model}
        self.executor = LocalExecutor(models, sessions=sessions, max_batch_rows=4, clock=self.clock)
        self.batcher = Batcher(
            pool_of(self.executor, M, clock=self.clock),
            clock=self.clock,
            bounds=Bounds(requests=100, size_bytes=1 << 20, seconds=100.0, batch_rows=4),
        )

    async def submit(self, request: InferRequest) -> asyncio.Task[Arrays]:
        task = asyncio.create_task(self.batcher.submit(M, request))
        for _ in range(2):
            await asyncio.sleep(0)
        return task

    async def begins(self) -> float:
        return await asyncio.to_thread(self.model.begun.get, timeout=10)

    def end(self, value: float) -> None:
        self.model.may_end[value].set()


@asynccontextmanager
async def bench_of(sessions: int = 1) -> AsyncIterator[Bench]:
    bench = Bench(sessions)
    try:
        yield bench
    finally:
        for value in range(10):
            bench.end(value)
        assert await bench.executor.close(10)


async def test_a_more_urgent_request_gets_the_next_free_thread() -> None:
    async with bench_of(sessions=2) as bench:
        running = [await bench.submit(request_of(float(value))) for value in (1, 2, 3, 4)]
        assert {await bench.begins(), await bench.begins()} == {1, 2}
        running.append(await bench.submit(request_of(5, priority=1)))
        bench.end(1)
        assert await bench.begins() == 5
        bench.end(2)
        assert await bench.begins() == 3
        for value in (3, 4, 5):
            bench.end(value)
        await asyncio.gather(*running)


async def test_nothing_runs_for_a_caller_that_left() -> None:
    async with bench_of() as bench:
        first = await bench.submit(request_of(1))
        assert await bench.begins() == 1
        second = await bench.submit(request_of(2))
        second.cancel()
        await asyncio.wait([second])
        third = await bench.submit(request_of(3))
        for value in (1, 2, 3):
            bench.end(value)
        assert await bench.begins() == 3
        await asyncio.gather(first, third)
        assert bench.model.runs == [1, 1]
