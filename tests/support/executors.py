"""Several executors in simulated time, and the dispatcher that gives them batches."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Sequence
from contextlib import asynccontextmanager
from typing import TypeVar

import numpy as np
from support.executor import ExecutorWithoutFiles, run_earliest
from support.gateway import served_as
from support.waiting import result_of

from firstline_core.clock import SimulatedClock
from firstline_core.errors import FirstlineError, InferenceError, InvalidTensorError
from firstline_core.types import PROBABILITIES, Array, Arrays, ModelKey, row_count
from firstline_gateway.executors.base import ExecutorReport, ModelOnExecutor, Outcome
from firstline_gateway.executors.dispatch.dispatcher import Dispatcher
from firstline_gateway.executors.dispatch.member import Member
from firstline_gateway.models.repository import ServedModel

T = TypeVar("T")


SERVED = served_as(ModelKey("m", 1))
M, N = SERVED.key, ModelKey("n", 1)


def row(value: float) -> Arrays:
    """What one request of one row asks."""
    return {"x": np.array([[value]], np.float32)}


class Timed(ExecutorWithoutFiles):
    """Takes a time for each row, in as many slots as it has; may fail, or say nothing."""

    def __init__(self, clock: SimulatedClock, row_s: float, slots: int = 1) -> None:
        super().__init__(slots)
        self._clock = clock
        self._free = asyncio.Semaphore(slots)
        self._goes_on = asyncio.Event()
        self._goes_on.set()
        self.row_s = row_s
        self.error: FirstlineError | None = None
        self.errors_of: dict[ModelKey, FirstlineError] = {}
        self.values_that_fail: set[float] = set()
        self.batches: list[int] = []
        self.dropped: list[ModelKey] = []

    def seconds(self, rows: int) -> float:
        """What a batch takes."""
        return rows * self.row_s

    def stop(self) -> None:
        self._goes_on.clear()

    def go_on(self) -> None:
        self._goes_on.set()

    async def run(self, key: ModelKey, inputs: Sequence[Arrays], deadlines_s: Sequence[float | None]) -> list[Outcome]:
        rows = sum(map(row_count, inputs))
        self.batches.append(rows)
        async with self._free:
            await self._clock.sleep(self.seconds(rows))
            await self._goes_on.wait()
        if (error := self.errors_of.get(key, self.error)) is not None:
            raise error
        return [self._outcome(each["x"]) for each in inputs]

    def _outcome(self, values: Array) -> Outcome:
        if (values < 0).any():
            return InvalidTensorError("negative")
        if self.values_that_fail.intersection(values.flat):
            return InferenceError("no kernel")
        return {PROBABILITIES: (values * 2).astype(np.float32)}

    async def drop(self, key: ModelKey) -> None:
        self.dropped.append(key)


class Site:
    """Executors by their names, and the dispatcher that gives them batches."""

    def __init__(self, row_s: dict[str, float], **found: dict[str, float]) -> None:
        self.clock = SimulatedClock()
        slots = found.get("slots", {})
        self.executors = {name: Timed(self.clock, each, int(slots.get(name, 1))) for name, each in row_s.items()}
        self.members = {
            name: Member(
                name,
                executor,
                sessions=0,
                profiled=lambda _, name=name: {1: row_s[name]} if "unknown" not in found else {},
            )
            for name, executor in self.executors.items()
        }
        for member in self.members.values():
            member.place(SERVED, member.profiled(SERVED))
        self.dispatcher = Dispatcher(list(self.members.values()), clock=self.clock)
        self.late: list[float] = []

    async def until(self, awaited: Awaitable[T], step_s: float = 0.001) -> T:
        return await result_of(awaited, self.clock, step_s)

    def add(self, *others: ServedModel) -> None:
        """More models, on every executor."""
        for member in self.members.values():
            for served in others:
                member.place(served, member.profiled(served))

    async def ask(self, *values: float, timeout_s: float | None = None, key: ModelKey = M) -> list[Outcome]:
        inputs = [row(value) for value in values]
        due_s = None if timeout_s is None else self.clock.monotonic_s() + timeout_s
        return await run_earliest(self.dispatcher, key, inputs, [due_s] * len(inputs))

    async def go(self, seconds: float, clients: int = 2) -> list[float]:
        """Has clients ask without a pause for `seconds`; returns what each request took. Checks each answer."""
        end_s, took_s = self.clock.monotonic_s() + seconds, []

        async def client(value: float) -> None:
            while (now_s := self.clock.monotonic_s()) < end_s:
                (outcome,) = await self.ask(value)
                assert not isinstance(outcome, FirstlineError), outcome
                assert outcome["probabilities"].tolist() == [[2 * value]]
                took_s.append(self.clock.monotonic_s() - now_s)

        await self.until(asyncio.gather(*(client(float(number)) for number in range(clients))))
        return took_s

    def shares(self) -> dict[str, float]:
        """Of the rows since the last look."""
        rows = {name: sum(each.batches) for name, each in self.executors.items()}
        for each in self.executors.values():
            each.batches.clear()
        return {name: count / max(1, sum(rows.values())) for name, count in rows.items()}

    async def share(self, name: str, seconds: float, clients: int = 2) -> float:
        """Returns an executor's share of the rows while clients ask for `seconds`."""
        self.shares()
        await self.go(seconds, clients)
        return self.shares()[name]

    def report(self, name: str) -> ExecutorReport:
        return next(each for each in self.dispatcher.report().executors if each.name == name)

    def pace(self, name: str, key: ModelKey) -> ModelOnExecutor:
        return next(each for each in self.report(name).paces if each.model == key.name)

    @property
    def repeats(self) -> Counter[str]:
        return Counter({why[0]: int(count) for why, count in self.dispatcher.report().repeats.items()})


@asynccontextmanager
async def site(row_s: dict[str, float], **found: dict[str, float]) -> AsyncIterator[Site]:
    new_site = Site(row_s, **found)
    await new_site.dispatcher.start()
    yield new_site
    assert await new_site.until(new_site.dispatcher.close(0))
    assert not any(member.running for member in new_site.members.values())
