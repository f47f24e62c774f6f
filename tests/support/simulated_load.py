"""A gateway's scheduling under a load, on simulated time: only the model is not the real thing."""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from support.executor import ExecutorWithoutFiles
from support.gateway import doubled, request_of, served_as

from firstline_core.clock import Clock, SimulatedClock
from firstline_core.errors import DeadlineExceededError, FirstlineError, QueueFullError
from firstline_core.types import Arrays, AuditNote, ModelKey, row_count
from firstline_gateway.executors.base import Outcome
from firstline_gateway.executors.dispatch.dispatcher import Dispatcher
from firstline_gateway.executors.dispatch.member import Member
from firstline_gateway.serving.scheduling.admission import Bounds
from firstline_gateway.serving.scheduling.batcher import Batcher

NOTE = AuditNote(propensity=0.1, epsilon=0.05, threshold=0.9, edge_digest="0" * 64)


class TimedExecutor(ExecutorWithoutFiles):
    """Takes a fixed time and some for each row, by model, as often side by side as it has slots."""

    def __init__(
        self, clock: Clock, seconds: Mapping[ModelKey, tuple[float, float]], slots: int = 1, slowness: float = 1.0
    ) -> None:
        super().__init__(slots)
        self._clock = clock
        self._free = asyncio.Semaphore(slots)
        self._seconds = seconds
        self.slowness = slowness
        self.rows: list[int] = []

    async def run(self, key: ModelKey, inputs: Sequence[Arrays], deadlines_s: Sequence[float | None]) -> list[Outcome]:
        fixed_s, row_s = self._seconds[key]
        rows = sum(map(row_count, inputs))
        self.rows.append(rows)
        async with self._free:
            await self._clock.sleep(self.slowness * (fixed_s + row_s * rows))
        return [doubled(each) for each in inputs]


def several(executors: Sequence[TimedExecutor], clock: Clock) -> Dispatcher:
    """One engine of several executors, of which nothing is known but what their batches show."""
    members = [Member(str(number), executor, sessions=executor.slots) for number, executor in enumerate(executors)]
    for member, executor in zip(members, executors, strict=True):
        for key in executor._seconds:
            served = served_as(key)
            member.place(served, member.profiled(served))
    return Dispatcher(members, clock=clock)


@dataclass(frozen=True)
class Asked:
    """One request: when, of whom, of what."""

    at_s: float
    key: ModelKey
    rows: int = 1
    timeout_s: float | None = None
    principal: str = ""
    priority: int = 0
    audit: bool = False


@dataclass(frozen=True)
class Ended:
    """Its outcome: `error` is None after an answer."""

    asked: Asked
    seconds: float
    error: FirstlineError | None

    @property
    def refused(self) -> bool:
        """At once, before it cost anything."""
        return self.error is not None and not self.late

    @property
    def late(self) -> bool:
        """Admitted, and not answered in time."""
        return isinstance(self.error, DeadlineExceededError) and self.seconds > 0 and not self.asked.audit


class Load:
    """Sends requests at their times and notes how they end.

    Args:
        seconds: by model, of a batch and of each of its rows.
        slots: of the executor.
        others: other executors of the same models: how many times as long each takes, and its slots.
        bounds: other than usual.
    """

    def __init__(
        self,
        seconds: Mapping[ModelKey, tuple[float, float]],
        slots: int = 1,
        others: Sequence[tuple[float, int]] = (),
        **bounds: float,
    ) -> None:
        self.clock = SimulatedClock()
        self.executor = TimedExecutor(self.clock, seconds, slots)
        defaults = {"requests": 1000, "size_bytes": 1 << 30, "seconds": 10.0, "batch_rows": 32}
        executors = [self.executor, *(TimedExecutor(self.clock, seconds, many, slow) for slow, many in others)]
        self.batcher = Batcher(
            several(executors, self.clock),
            clock=self.clock,
            bounds=Bounds(**(defaults | bounds)),
        )

    async def warm(self, *sizes: int) -> None:
        """Lets it learn how long batches of these sizes take."""
        for key in self.executor._seconds:
            for rows in sizes:
                await self.play([Asked(0.0, key, rows)])
        self.executor.rows.clear()
        await self.clock.advance(20.0)  # and to forget who asked

    async def play(self, plan: Sequence[Asked]) -> list[Ended]:
        """Sends the plan, ordered by time from now on; returns when all have ended, in the plan's order."""
        start_s = self.clock.monotonic_s()
        tasks = []
        for planned in plan:
            await self.clock.advance(start_s + planned.at_s - self.clock.monotonic_s())
            tasks.append(asyncio.create_task(self._ask(planned)))
            await self._settle()
        ending = asyncio.gather(*tasks)
        while not ending.done():
            await self._settle()
            await self.clock.advance(0.01)
        return ending.result()

    @staticmethod
    async def _settle() -> None:
        """Lets what can run without time run."""
        for _ in range(4):
            await asyncio.sleep(0)

    async def _ask(self, planned: Asked) -> Ended:
        began_s = self.clock.monotonic_s()
        request = request_of(
            *range(planned.rows),
            deadline_s=None if planned.timeout_s is None else began_s + planned.timeout_s,
            principal=planned.principal,
            priority=planned.priority,
            audit=NOTE if planned.audit else None,
        )
        error = None
        try:
            await self.batcher.submit(planned.key, request)
        except (DeadlineExceededError, QueueFullError) as refused:
            error = refused
        return Ended(planned, self.clock.monotonic_s() - began_s, error)
