"""The batcher before several executors, in simulated time: batches wait in the queue for one that is worth it.

Batches gain by size here, as those of most models: two executors are no slower than the better one alone.
"""

import asyncio
import random
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from support.executors import Timed
from support.gateway import request_of, served_as

from firstline_core import errors
from firstline_core.clock import SimulatedClock
from firstline_core.types import Arrays, ModelKey
from firstline_gateway.executors.dispatch.dispatcher import Dispatcher
from firstline_gateway.executors.dispatch.member import Member
from firstline_gateway.executors.dispatch.placement import PoolSnapshot
from firstline_gateway.models.repository import ServedModel
from firstline_gateway.serving.scheduling.admission import Bounds
from firstline_gateway.serving.scheduling.batcher import Batcher

SERVED = served_as(ModelKey("m", 1))
OTHER = replace(SERVED, key=ModelKey("n", 1))
"""Another model."""
SIZES = (1, 2, 4, 8, 16, 32)


class Gains(Timed):
    """Takes some seconds for each batch, and some for each row; a batch that begins while it is stopped hangs."""

    def __init__(self, clock: SimulatedClock, speed: float, slots: int = 1, row_s: float = 0.002) -> None:
        super().__init__(clock, row_s, slots)
        self.speed = speed
        self.stopped = False

    def seconds(self, rows: int) -> float:
        return 1000.0 if self.stopped else (0.004 + self.row_s * rows) / self.speed


class Bench:
    """A batcher, and the dispatcher or one executor alone behind it."""

    def __init__(
        self,
        *speeds: float,
        knows: bool = True,
        rows: int = 32,
        patience_s: float = 10.0,
        sessions: int = 1,
        concurrency: int = 0,
        row_s: float = 0.002,
    ) -> None:
        self.clock = SimulatedClock()
        self.executors = [Gains(self.clock, speed, row_s=row_s) for speed in speeds]
        self.members = [
            Member(
                str(number),
                executor,
                sessions=sessions,
                profiled=lambda served, executor=executor: (
                    {size: executor.seconds(size) for size in SIZES} if knows else {}
                ),
            )
            for number, executor in enumerate(self.executors)
        ]
        for member in self.members:
            member.place(SERVED, member.profiled(SERVED))
            member.place(OTHER, member.profiled(OTHER))
        self.engine = Dispatcher(self.members, clock=self.clock)
        self.batcher = Batcher(
            self.engine,
            clock=self.clock,
            bounds=Bounds(requests=1000, size_bytes=1 << 30, seconds=patience_s, batch_rows=rows),
            concurrency=concurrency,
        )

    async def submit(
        self, value: float = 1.0, served: ServedModel = SERVED, *, rows: int = 1, **fields: object
    ) -> asyncio.Task[Arrays]:
        task = asyncio.create_task(self.batcher.submit(served.key, request_of(*[value] * rows, **fields)))
        for _ in range(5):
            await asyncio.sleep(0)
        return task

    async def until(self, *tasks: asyncio.Task[Arrays]) -> None:
        while not all(task.done() for task in tasks):
            await self.clock.advance(0.001)

    async def load(self, rate_per_s: float, seconds: float) -> list[float]:
        """Requests as a Poisson process; what each took, in order of size. All are answered."""
        draw, took_s, tasks = random.Random(7), [], []
        due_s = self.clock.monotonic_s()
        end_s = due_s + seconds

        async def one() -> None:
            began_s = self.clock.monotonic_s()
            await self.batcher.submit(SERVED.key, request_of(1.0))
            took_s.append(self.clock.monotonic_s() - began_s)

        while (due_s := due_s + draw.expovariate(rate_per_s)) < end_s:
            await self.clock.advance(max(0.0, due_s - self.clock.monotonic_s()))
            tasks.append(asyncio.create_task(one()))
            await asyncio.sleep(0)
        while not all(task.done() for task in tasks):
            await self.clock.advance(0.001)
        for task in tasks:
            task.result()
        return sorted(took_s)


async def answered_per_s(bench: Bench, clients: int, seconds: float = 3.0) -> float:
    """What clients are answered that ask without a pause, once all is known."""
    answered = 0

    async def client() -> None:
        nonlocal answered
        while True:
            await bench.batcher.submit(SERVED.key, request_of(1.0))
            answered += 1

    async def played(for_s: float) -> int:
        before = answered
        await bench.clock.advance(for_s)
        return answered - before

    await bench.until(await bench.submit())  # an unmeasured model admits nothing while others wait
    tasks = [asyncio.create_task(client()) for _ in range(clients)]
    await played(2.0)
    try:
        return await played(seconds) / seconds
    finally:
        for task in tasks:
            task.cancel()


def eject(member: Member, key: ModelKey) -> None:
    for _ in range(3):
        member.models[key].health.failed(0.0)


def p99(took_s: Sequence[float]) -> float:
    return float(np.quantile(took_s, 0.99))


@pytest.mark.parametrize("knows", [True, False])
@pytest.mark.parametrize("rate_per_s", [60.0, 300.0])
async def test_two_executors_are_not_slower_than_the_better_one(rate_per_s: float, knows: bool) -> None:
    alone = await Bench(1.0).load(rate_per_s, 5.0)
    both = await Bench(1.0, 0.5, knows=knows).load(rate_per_s, 5.0)
    assert p99(both) <= p99(alone)
    assert np.mean(both) <= np.mean(alone)


async def test_two_executors_carry_a_load_that_one_cannot() -> None:
    """One that is full answers 470 rows a second with batches of 32, both 700."""
    bench = Bench(1.0, 0.5)
    took_s = await bench.load(560.0, 5.0)
    assert p99(took_s) < 0.2
    assert sum(bench.executors[1].batches) > 0.15 * len(took_s)


@pytest.mark.parametrize(("speed", "waiting"), [(0.1, 3), (0.05, 10)])
async def test_a_slow_executor_idles_if_the_fast_one_completes_all_earlier(speed: float, waiting: int) -> None:
    bench = Bench(1.0, speed)
    tasks = [await bench.submit() for _ in range(1 + waiting)]
    assert bench.batcher.depth == waiting
    await bench.until(*tasks)
    assert [executor.batches for executor in bench.executors] == [[1, waiting], [1]], "and one copy to learn by"


async def test_a_backlog_is_split_if_both_executors_complete_it_earlier() -> None:
    bench = Bench(1.0, 1.0)
    first = [await bench.submit(), await bench.submit()]
    waiting = [await bench.submit() for _ in range(20)]
    await bench.until(*first, *waiting)
    assert all(9 <= executor.batches[-1] <= 12 for executor in bench.executors)


async def test_a_batch_without_gain_from_splitting_stays_whole() -> None:
    """As many rows take what one takes."""
    bench = Bench(1.0, 1.0, row_s=0.0)
    tasks = [await bench.submit() for _ in range(20)]
    await bench.until(*tasks)
    assert sorted(rows for executor in bench.executors for rows in executor.batches)[-1] >= 18


async def test_a_batch_is_not_split_at_a_concurrency_of_one() -> None:
    bench = Bench(1.0, 1.0, concurrency=1)
    tasks = [await bench.submit() for _ in range(9)]
    await bench.until(*tasks)
    assert bench.executors[0].batches[:2] == [1, 8] or bench.executors[1].batches[-1] == 8


async def test_a_batch_is_not_split_while_another_model_waits() -> None:
    bench = Bench(1.0, 1.0)
    first = [await bench.submit(), await bench.submit(served=OTHER)]
    waiting = [await bench.submit(served=served) for served in (SERVED, OTHER) for _ in range(8)]
    await bench.until(*first, *waiting)
    assert all(executor.batches[-1] >= 8 for executor in bench.executors)


async def test_two_busy_executors_nearly_double_the_throughput() -> None:
    alone_per_s, both_per_s = await answered_per_s(Bench(1.0), 16), await answered_per_s(Bench(1.0, 1.0), 32)
    assert both_per_s >= 0.9 * 2 * alone_per_s


async def test_two_rows_are_tried_although_only_one_is_predicted_in_time() -> None:
    """Otherwise they are predicted to gain nothing, and no measurement corrects that."""
    bench = Bench(1.0, 0.4)
    slow = bench.members[1]
    slow.place(SERVED, {1: bench.executors[1].seconds(1)})
    await bench.until(await bench.submit())
    await bench.clock.advance(0.1)  # a copy of it has ended, too
    tasks = [await bench.submit() for _ in range(4)]  # three of them would be done by the quick one after 16 ms
    await bench.until(*tasks)
    assert bench.executors[1].batches == [1, 2]
    assert slow.models[SERVED.key].forecast.has_tried(2) and not slow.models[SERVED.key].forecast.has_tried(4)


async def test_a_more_urgent_request_goes_first() -> None:
    bench = Bench(1.0, 0.1, rows=1)
    first = await bench.submit(1.0)
    waits, urgent = await bench.submit(2.0), await bench.submit(3.0, priority=1)
    await bench.until(first, urgent)
    assert not waits.done()
    await bench.until(waits)


async def test_failures_of_all_executors_are_reported_and_nothing_hangs() -> None:
    bench = Bench(1.0, 0.5)
    for executor in bench.executors:
        executor.error = errors.LinkDownError("gone")
    for _ in range(6):
        tasks = [await bench.submit() for _ in range(3)]
        await bench.until(*tasks)
        assert all(isinstance(task.exception(), errors.EngineUnavailableError | errors.LinkDownError) for task in tasks)
    for executor in bench.executors:
        executor.error = None
    await bench.clock.advance(30.0)
    for _ in range(4):
        await bench.until(task := await bench.submit())
    assert not task.exception()


async def test_a_model_without_executor_is_refused_although_others_wait() -> None:
    bench = Bench(1.0, 1.0, rows=1)
    bench.members[1].displace(SERVED.key)
    for member in bench.members:
        member.displace(OTHER.key)
    running = [await bench.submit()]
    refused = await bench.submit(2.0, OTHER)
    assert isinstance(refused.exception(), errors.EngineUnavailableError)
    await bench.until(*running)


class Counted:
    """Counts the calls of one method."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, owner: type, name: str) -> None:
        self.calls = 0
        real = getattr(owner, name)

        def counted(*args: object, **named: object) -> object:
            self.calls += 1
            return real(*args, **named)

        monkeypatch.setattr(owner, name, counted)


async def test_a_backlog_for_a_busy_executor_is_placed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench(1.0, 1.0, rows=1)
    bench.members[1].displace(SERVED.key)
    tasks = [await bench.submit() for _ in range(50)]
    placed = Counted(monkeypatch, PoolSnapshot, "place")
    other = await bench.submit(2.0, OTHER)
    assert placed.calls < 10
    await bench.until(other)
    assert bench.clock.monotonic_s() < 0.02
    await bench.until(*tasks)


@pytest.mark.parametrize("order", [1, -1])
async def test_no_backlog_goes_piecemeal_to_a_slow_executor(order: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """New requests are due last or first; the slow executor takes as long as 200 requests on the fast one."""
    bench = Bench(1.0, 0.005, rows=1)
    await bench.until(await bench.submit(), await bench.submit(2.0, OTHER))
    while bench.members[1].running:
        await bench.clock.advance(0.1)
    placed = Counted(monkeypatch, PoolSnapshot, "place")
    now_s = bench.clock.monotonic_s()
    tasks = [
        await bench.submit(1.0, (SERVED, OTHER)[number % 2], deadline_s=now_s + 50 + order * number)
        for number in range(40)
    ]
    assert placed.calls < 10 * 40
    assert bench.batcher.depth == 39
    await bench.until(*tasks)
    assert sum(bench.executors[0].batches) == 42


async def test_a_new_request_behind_all_others_costs_a_few_placements(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench(1.0, 0.005, rows=1)
    await bench.until(await bench.submit())
    while bench.members[1].running:
        await bench.clock.advance(0.1)
    tasks = [await bench.submit() for _ in range(10)]
    placed = Counted(monkeypatch, PoolSnapshot, "place")
    tasks += [await bench.submit() for _ in range(100)]
    assert placed.calls <= 3 * 100
    tasks += [await bench.submit() for _ in range(100)]
    assert sum(bench.executors[1].batches) == 2  # now the slow executor completes earlier
    await bench.until(*tasks)


async def test_admission_cost_does_not_grow_with_models_that_nothing_waits_for(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench(1.0, 0.5)
    for number in range(100):
        for member in bench.members:
            member.place(replace(SERVED, key=ModelKey(f"k{number}", 1)), member.profiled(SERVED))
    tasks = [await bench.submit() for _ in range(3)]
    checks = Counted(monkeypatch, Member, "problem_with")
    tasks.append(await bench.submit())
    assert checks.calls < 30
    await bench.until(*tasks)


async def test_earlier_backlog_sends_other_models_to_a_free_executor() -> None:
    """The backlog runs on the quick executor alone; the slow one takes 60 ms for what the quick one does in 6."""
    bench = Bench(1.0, 0.1, rows=1)
    bench.members[1].displace(SERVED.key)
    await bench.until(await bench.submit(), await bench.submit(2.0, OTHER))
    backlog = [await bench.submit(deadline_s=8.0) for _ in range(30)]
    copies = len(bench.executors[1].batches)
    urgent = await bench.submit(2.0, OTHER, deadline_s=bench.clock.monotonic_s() + 0.05)
    await bench.until(urgent)
    assert not urgent.exception()
    assert len(bench.executors[1].batches) == copies
    patient = await bench.submit(2.0, OTHER, deadline_s=9.0)
    await bench.until(patient)
    assert len(bench.executors[1].batches) == copies + 1
    assert not backlog[-1].done()
    await bench.until(*backlog)


async def test_an_ejected_executor_is_tried_for_a_model_only_it_runs() -> None:
    bench = Bench(1.0, 1.0, sessions=0)
    bench.members[0].displace(OTHER.key)
    bench.members[1].displace(SERVED.key)
    eject(bench.members[1], OTHER.key)
    bench.executors[0].stopped = True
    busy, waits = await bench.submit(), await bench.submit()
    alone = await bench.submit(2.0, OTHER)
    await bench.until(alone)
    assert not alone.exception()
    assert not busy.done() and not waits.done()


async def test_an_ejected_executor_is_tried_while_it_runs_other_models() -> None:
    bench = Bench(1.0, 1.0, sessions=0)
    bench.members[0].displace(OTHER.key)
    bench.executors[1] = bench.members[1].executor = Gains(bench.clock, 0.001, slots=2)
    eject(bench.members[1], OTHER.key)
    inputs = request_of(1.0).arrays
    long = bench.engine.run_on(bench.members[1], SERVED.key, [inputs], [None])
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    bench.executors[1].speed = 1.0
    alone = [await bench.submit(2.0, OTHER, deadline_s=0.1) for _ in range(2)]
    assert bench.executors[1].batches == [1, 1], "one at a time"
    await bench.until(*alone)
    assert not any(task.exception() for task in alone)
    long.cancel()


async def test_backlog_of_other_executors_does_not_count() -> None:
    """Each model has an executor of its own: of the first a second's work waits, of the other a request runs."""
    bench = Bench(1.0, 1.0, rows=1)
    bench.members[0].displace(OTHER.key)
    bench.members[1].displace(SERVED.key)
    await bench.until(await bench.submit(), await bench.submit(2.0, OTHER))
    backlog = [await bench.submit() for _ in range(150)]
    due_s = bench.clock.monotonic_s() + 0.04
    mine = [await bench.submit(2.0, OTHER, deadline_s=due_s) for _ in range(2)]
    await bench.until(*mine)
    assert not any(task.exception() for task in mine)
    assert not backlog[-1].done()
    await bench.until(*backlog)


async def test_a_hanging_executor_does_not_delay_other_models() -> None:
    """The first model runs on both executors, the other on the one that hangs."""
    bench = Bench(1.0, 1.0, rows=1)
    bench.members[0].displace(OTHER.key)
    await bench.until(await bench.submit(), await bench.submit(2.0, OTHER))
    bench.executors[1].stopped = True
    hangs = [await bench.submit(2.0, OTHER) for _ in range(3)]
    await bench.clock.advance(20.0)
    for _ in range(5):
        due_s = bench.clock.monotonic_s() + 1.0
        mine = [await bench.submit(deadline_s=due_s) for _ in range(5)]
        await bench.until(*mine)
        assert not any(task.exception() for task in mine)
    assert not hangs[0].done()


async def test_work_that_executors_share_counts_in_part() -> None:
    """The first model runs on both executors, the other on one of them."""
    bench = Bench(1.0, 1.0)
    bench.members[0].displace(OTHER.key)
    look = bench.engine.snapshot()
    assert look.part(OTHER.key, SERVED.key) == 0.5
    assert look.part(SERVED.key, OTHER.key) == 1.0
    completions = [look.completion(key, 8) for key in (OTHER.key, SERVED.key)]
    assert [len(each.lanes) for each in completions if each is not None] == [1, 2]


async def test_a_fast_executor_admits_what_a_slow_one_cannot() -> None:
    bench = Bench(1.0, 0.1, rows=1)
    await bench.load(150.0, 2.0)
    now_s = bench.clock.monotonic_s()
    in_time, too_late = await bench.submit(deadline_s=now_s + 0.008), await bench.submit(deadline_s=now_s + 0.005)
    await bench.until(in_time)
    assert not in_time.exception()
    assert isinstance(too_late.exception(), errors.DeadlineExceededError)


async def test_backlog_does_not_block_other_models_on_an_idle_executor() -> None:
    """The backlog waits for one that hangs; the other is idle, and alone runs the second model."""
    bench = Bench(1.0, 1.0, rows=1)
    bench.members[0].displace(OTHER.key)
    eject(bench.members[1], SERVED.key)
    bench.executors[0].stopped = True
    backlog = [await bench.submit() for _ in range(4)]
    other = await bench.submit(2.0, OTHER)
    await bench.until(other)
    assert bench.clock.monotonic_s() < 0.02
    assert not other.exception()
    assert not any(task.done() for task in backlog)


async def test_a_hanging_executor_is_left_out_of_predictions() -> None:
    """A quick executor runs the model too; the slow one takes as long as twenty requests on the quick one."""
    bench = Bench(1.0, 1.0, 0.05, rows=1)
    for member in bench.members[1:]:
        member.displace(OTHER.key)
    bench.executors[0].stopped = True
    hangs = await bench.submit(2.0, OTHER)
    await bench.clock.advance(20.0)
    await bench.until(await bench.submit())
    while bench.members[2].running:
        await bench.clock.advance(0.01)
    tasks = [await bench.submit() for _ in range(28)]
    assert bench.executors[2].batches == [1, 1], "a copy, and what the quick one would be done with later"
    await bench.until(*tasks)
    assert not hangs.done()


def of_two_slots(bench: Bench) -> Gains:
    """Returns the only executor of both models, with two slots, ejected for the first model."""
    for served in (SERVED, OTHER):
        bench.members[0].displace(served.key)
    bench.executors[1] = bench.members[1].executor = Gains(bench.clock, 1.0, slots=2)
    eject(bench.members[1], SERVED.key)
    return bench.executors[1]


async def test_a_hanging_batch_leaves_the_other_slot_to_other_models() -> None:
    bench = Bench(1.0, 1.0, rows=1, sessions=0)
    executor = of_two_slots(bench)
    executor.stopped = True
    hanging = await bench.submit()
    executor.stopped = False
    waits, other = await bench.submit(), await bench.submit(2.0, OTHER)
    await bench.until(other)
    assert bench.clock.monotonic_s() < 0.02
    assert not hanging.done()
    await bench.until(waits)


async def test_a_waiting_request_completes_before_later_ones_of_another_model() -> None:
    bench = Bench(1.0, 1.0, rows=1, sessions=1)
    of_two_slots(bench)
    before = [await bench.submit(2.0, OTHER) for _ in range(3)]
    waiting = await bench.submit()
    behind = [await bench.submit(2.0, OTHER) for _ in range(20)]
    await bench.until(waiting)
    assert not waiting.exception()
    assert not behind[5].done()
    await bench.until(*before, *behind)


async def test_a_hanging_batch_does_not_slow_the_other_slots() -> None:
    bench = Bench(1.0, 1.0, rows=1, sessions=4)
    for served in (SERVED, OTHER):
        bench.members[0].displace(served.key)
    bench.executors[1] = bench.members[1].executor = Gains(bench.clock, 1.0, slots=4)
    bench.executors[1].stopped = True
    hangs = await bench.submit()
    await bench.clock.advance(10.0)
    bench.executors[1].stopped = False
    busy = [await bench.submit() for _ in range(3)]
    mine = await bench.submit(deadline_s=bench.clock.monotonic_s() + 1.0)
    await bench.until(mine, *busy)
    assert not mine.exception()
    assert not hangs.done()


async def test_hanging_executors_are_not_taken_for_a_slow_model() -> None:
    bench = Bench(1.0, 1.0, rows=1)
    bench.members[0].displace(SERVED.key)
    bench.executors[1].stopped = True
    hangs = await bench.submit()
    await bench.clock.advance(10.0)
    refused = await bench.submit(deadline_s=bench.clock.monotonic_s() + 1.0)
    assert isinstance(refused.exception(), errors.QueueFullError)
    assert not hangs.done()
