"""What runs next if every thread is busy: it is decided when a thread becomes free."""

from __future__ import annotations

import asyncio
import queue
import threading
from collections import defaultdict
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import cast

import pytest
from support.gateway import Doubler, pool_of, request_of

from firstline_core.bundle.loading import LoadedModel
from firstline_core.clock import SimulatedClock
from firstline_core.errors import DeadlineExceededError, NotReadyError
from firstline_core.types import Arrays, InferRequest, ModelKey
from firstline_gateway.executors.local import LocalExecutor
from firstline_gateway.serving.scheduling.admission import Bounds
from firstline_gateway.serving.scheduling.batcher import Batcher

M, N = ModelKey("m", 1), ModelKey("n", 1)


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
    """A batcher over threads of its own, all of one model that the test holds."""

    def __init__(self, sessions: int, concurrency: int) -> None:
        self.clock = SimulatedClock()
        self.model = Held(0.013)
        loaded = cast(LoadedModel, self.model)
        self.executor = LocalExecutor({M: loaded, N: loaded}, sessions=sessions, max_batch_rows=4, clock=self.clock)
        self.rows_run: list[int] = []
        self.batcher = Batcher(
            pool_of(self.executor, M, N, clock=self.clock),
            clock=self.clock,
            bounds=Bounds(requests=100, size_bytes=1 << 20, seconds=100.0, batch_rows=4),
            concurrency_of={M.name: concurrency},
            on_batch=self.rows_run.append,
        )

    async def submit(self, request: InferRequest, key: ModelKey = M) -> asyncio.Task[Arrays]:
        task = asyncio.create_task(self.batcher.submit(key, request))
        for _ in range(2):
            await asyncio.sleep(0)
        return task

    async def begins(self) -> float:
        return await asyncio.to_thread(self.model.begun.get, timeout=10)

    def end(self, value: float) -> None:
        self.model.may_end[value].set()


@asynccontextmanager
async def bench_of(sessions: int = 1, concurrency: int = 0) -> AsyncIterator[Bench]:
    bench = Bench(sessions, concurrency)
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


async def test_a_later_request_that_is_due_earlier_goes_first() -> None:
    async with bench_of() as bench:
        running = [await bench.submit(request_of(1))]
        assert await bench.begins() == 1
        running += [await bench.submit(request_of(2)), await bench.submit(request_of(3, priority=1))]
        for value in (1, 3, 2):
            bench.end(value)
        assert [await bench.begins() for _ in range(2)] == [3, 2]
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


async def test_a_request_that_expires_before_a_thread_is_free_never_starts() -> None:
    async with bench_of() as bench:
        first = await bench.submit(request_of(1))
        assert await bench.begins() == 1
        second = await bench.submit(request_of(2, deadline_s=bench.clock.monotonic_s() + 60))
        await bench.clock.advance(61)
        with pytest.raises(DeadlineExceededError):
            await second
        bench.end(1)
        await first
        assert bench.model.runs == [1]


async def test_a_model_keeps_its_limit_of_concurrent_batches() -> None:
    async with bench_of(sessions=2, concurrency=1) as bench:
        tasks = [await bench.submit(request_of(1)), await bench.submit(request_of(2), N)]
        assert sorted([await bench.begins(), await bench.begins()]) == [1, 2]
        tasks.append(await bench.submit(request_of(3)))
        bench.end(2)
        await tasks[1]
        assert bench.model.begun.empty()
        bench.end(1)
        assert await bench.begins() == 3
        bench.end(3)
        await asyncio.gather(*tasks)


async def test_a_shutdown_answers_waiting_batches() -> None:
    async with bench_of() as bench:
        tasks = [await bench.submit(request_of(float(value))) for value in (1, 2)]
        assert await bench.begins() == 1
        bench.batcher.abandon(NotReadyError("later"))
        assert [type(found) for found in await asyncio.gather(*tasks, return_exceptions=True)] == [NotReadyError] * 2
        bench.end(1)
        assert await bench.executor.close(10)
        assert bench.model.runs == [1]
