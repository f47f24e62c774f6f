"""Quick models on the event loop: batches of the requests of one turn, which do not block the loop."""

import asyncio
from collections.abc import Mapping, Sequence

import pytest
from support.escalations import settle
from support.gateway import GatedExecutor, doubled, request_of, served_as
from support.waiting import until

from firstline_core.clock import SimulatedClock
from firstline_core.errors import DeadlineExceededError, InvalidTensorError, NotReadyError
from firstline_core.runtime.batch_times import LoopTimes
from firstline_core.types import Arrays, AuditNote, ModelKey, row_count
from firstline_gateway.executors.base import Outcome
from firstline_gateway.executors.dispatch.dispatcher import Dispatcher
from firstline_gateway.executors.dispatch.member import Member
from firstline_gateway.serving.scheduling.admission import Bounds
from firstline_gateway.serving.scheduling.batcher import TURN_S, WAITING_S, Batcher

M, N = ModelKey("m", 1), ModelKey("n", 1)


class Breaking(LoopTimes):
    """Times that cannot be read while they are broken."""

    is_broken = False

    def quick_s(self, rows: int) -> float | None:
        if self.is_broken:
            raise ZeroDivisionError
        return super().quick_s(rows)


class Here(GatedExecutor):
    """Runs at once what is asked of it so; a batch takes what the test says."""

    def __init__(self, clock: SimulatedClock, measured: dict[ModelKey, Mapping[int, float]]) -> None:
        super().__init__()
        self.clock = clock
        self.times = {key: Breaking(found, 0.0) for key, found in measured.items()}
        self.takes_s = 0.0
        self.here: list[tuple[ModelKey, list[float]]] = []
        self.breaks = False

    def run_on_loop(
        self, key: ModelKey, inputs: Sequence[Arrays], deadlines_s: Sequence[float | None]
    ) -> list[Outcome]:
        if self.breaks:
            raise ZeroDivisionError
        self.here.append((key, [value for each in inputs for value in each["x"][:, 0].tolist()]))
        self.clock._now_s += self.takes_s
        self.times[key].observe(sum(map(row_count, inputs)), self.takes_s, self.clock.monotonic_s())
        return [InvalidTensorError("negative") if (each["x"] < 0).any() else doubled(each) for each in inputs]

    def loop_times(self, key: ModelKey) -> LoopTimes:
        return self.times.get(key) or LoopTimes({}, 0.0)

    def loaded_model(self, key: ModelKey) -> None:
        return None


class Bench:
    """A batcher over one such executor.

    Args:
        measured: the seconds of batches on the event loop, by model and rows.
        rows: the most of one batch.
    """

    def __init__(self, measured: dict[ModelKey, Mapping[int, float]] | None = None, rows: int = 8) -> None:
        self.clock = SimulatedClock()
        self.executor = Here(self.clock, {M: {1: 20e-6, 8: 30e-6}} if measured is None else measured)
        self.late = 0
        self.cannot_count = False
        member = Member("", self.executor, sessions=1)
        for key in {*self.executor.times, M, N}:
            member.place(served_as(key), {})
        self.batcher = Batcher(
            Dispatcher([member], clock=self.clock),
            clock=self.clock,
            bounds=Bounds(requests=100, size_bytes=1 << 20, seconds=100.0, batch_rows=rows),
            on_batch=self._count_rows,
            on_late=self._count,
        )

    def _count(self) -> None:
        self.late += 1

    def _count_rows(self, rows: int) -> None:
        if self.cannot_count:
            raise ZeroDivisionError

    async def ask(self) -> None:
        """Asks once; a batch in a thread ends at once."""
        task = asyncio.create_task(self.batcher.submit(M, request_of(1.0)))
        while not task.done():
            if self.executor.held:
                self.executor.release()
            await asyncio.sleep(0)

    async def submitted(self, key: ModelKey, *values: float) -> asyncio.Task[Arrays]:
        """Submits a request and lets all tasks run."""
        task = asyncio.create_task(self.batcher.submit(key, request_of(*values)))
        await settle()
        return task


@pytest.fixture
def bench() -> Bench:
    return Bench()


async def test_a_lone_request_is_answered_within_the_turn_of_the_loop(bench: Bench) -> None:
    task = asyncio.create_task(bench.batcher.submit(M, request_of(3.0)))
    await asyncio.sleep(0)  # it asks
    await asyncio.sleep(0)  # and runs
    assert bench.executor.here == [(M, [3.0])]
    assert (await task)["probabilities"].tolist() == [[6.0]]


async def test_requests_of_one_turn_are_one_batch_per_model() -> None:
    bench = Bench({M: {1: 20e-6}, N: {1: 20e-6}})
    submitted = [bench.batcher.submit(key, request_of(value)) for value, key in ((1.0, M), (2.0, N), (3.0, M))]
    answers = await asyncio.gather(*submitted)
    assert bench.executor.here == [(M, [1.0, 3.0]), (N, [2.0])]
    assert [answer["probabilities"].tolist() for answer in answers] == [[[2.0]], [[4.0]], [[6.0]]]


async def test_a_batch_takes_no_more_rows_than_it_may() -> None:
    bench = Bench({M: {1: 20e-6, 2: 22e-6, 4: 25e-6}}, rows=4)
    await asyncio.gather(*(bench.batcher.submit(M, request_of(float(value))) for value in range(10)))
    assert [len(rows) for _, rows in bench.executor.here] == [4, 4, 2]


async def test_loop_batches_fill_the_limit_although_rows_gain_nothing() -> None:
    bench = Bench({M: {1: 100e-6, 2: 200e-6}}, rows=32)
    await asyncio.gather(*(bench.batcher.submit(M, request_of(float(value))) for value in range(12)))
    assert [len(rows) for _, rows in bench.executor.here] == [8, 4]


async def test_a_wrong_request_fails_alone(bench: Bench) -> None:
    good, bad = await asyncio.gather(
        *(bench.batcher.submit(M, request_of(value)) for value in (1.0, -1.0)), return_exceptions=True
    )
    assert isinstance(bad, InvalidTensorError)
    assert good["probabilities"].tolist() == [[2.0]]


async def test_models_that_are_large_or_were_not_measured_go_to_the_threads() -> None:
    for measured in ({M: {1: 0.013}}, {}):
        bench = Bench(measured)
        task = asyncio.create_task(bench.batcher.submit(M, request_of(1.0)))
        await until(lambda bench=bench: bench.executor.held)
        bench.executor.release()
        await task
        assert bench.executor.here == []


async def test_batches_of_a_large_model_are_sized_from_its_loading_on() -> None:
    bench = Bench({M: {1: 0.013, 2: 0.026}})
    tasks = [asyncio.create_task(bench.batcher.submit(M, request_of(float(value)))) for value in range(8)]
    while not all(task.done() for task in tasks):
        if bench.executor.held:
            bench.executor.release()
        await asyncio.sleep(0)
    assert [len(batch) for _, batch in bench.executor.batches] == [1] * 8


async def test_more_than_may_wait_on_the_loop_queues_for_the_threads() -> None:
    bench = Bench({M: {1: 900e-6}})
    tasks = [asyncio.create_task(bench.batcher.submit(M, request_of(1.0))) for _ in range(20)]
    await asyncio.sleep(0)
    assert bench.batcher.depth == 20
    await asyncio.sleep(0)
    assert sum(len(rows) for _, rows in bench.executor.here) == int(WAITING_S / 900e-6)
    assert bench.batcher.depth < 20 - int(WAITING_S / 900e-6)
    while bench.executor.held or not all(task.done() for task in tasks):
        if bench.executor.held:
            bench.executor.release()
        await asyncio.sleep(0)
    assert [task.result()["probabilities"].tolist() for task in tasks] == [[[2.0]]] * 20


async def test_other_work_of_the_loop_has_its_turn_between_batches() -> None:
    """An inline model must not starve the loop: what is due meanwhile runs after `TURN_S` at the latest."""
    keys = [ModelKey("m", version) for version in range(8)]
    bench = Bench({key: {1: 100e-6} for key in keys})
    bench.executor.takes_s = 0.6 * TURN_S
    ran_before: list[int] = []

    async def others() -> None:
        while len(bench.executor.here) < len(keys):
            ran_before.append(len(bench.executor.here))
            await asyncio.sleep(0)

    tasks = [asyncio.create_task(bench.batcher.submit(key, request_of(1.0))) for key in keys]
    await asyncio.gather(others(), *tasks)
    steps = [after - before for before, after in zip(ran_before, [*ran_before[1:], len(keys)], strict=True)]
    assert max(steps) <= 2


async def test_a_late_request_is_refused(bench: Bench) -> None:
    bench.executor.takes_s = 0.5
    submitted = bench.batcher.submit(M, request_of(1.0, deadline_s=bench.clock.monotonic_s() + 0.1))
    with pytest.raises(DeadlineExceededError):
        await submitted
    assert bench.late == 1


async def test_slow_model_leaves_the_loop_and_is_retried_later(bench: Bench) -> None:
    bench.executor.takes_s = 0.1
    for _ in range(40):
        await bench.ask()
    slow = len(bench.executor.here)
    assert slow < 40
    await bench.clock.advance(60.0)
    bench.executor.takes_s = 0.0
    for _ in range(2):
        await bench.ask()
    assert len(bench.executor.here) > slow


async def test_a_batch_that_blocks_the_loop_is_the_last_for_a_while(bench: Bench) -> None:
    bench.executor.takes_s = 0.5
    await bench.batcher.submit(M, request_of(1.0))
    task = asyncio.create_task(bench.batcher.submit(M, request_of(1.0)))
    await until(lambda: bench.executor.held)
    bench.executor.release()
    await task
    assert len(bench.executor.here) == 1


async def test_an_audit_gives_way_on_the_loop_too() -> None:
    note = AuditNote(propensity=0.1, epsilon=0.05, threshold=0.5, edge_digest="e")
    bench = Bench()
    alone = asyncio.create_task(bench.batcher.submit(M, request_of(1.0, audit=note)))
    assert (await alone)["probabilities"].tolist() == [[2.0]]
    assert len(bench.executor.here) == 1
    tasks = [asyncio.create_task(bench.batcher.submit(M, request_of(2.0, audit=audit))) for audit in (None, note)]
    await until(lambda: bench.executor.held)
    assert bench.executor.here[1:] == [(M, [2.0])]
    bench.executor.release()
    await asyncio.gather(*tasks)


async def test_a_caller_that_leaves_takes_its_request_along(bench: Bench) -> None:
    task = asyncio.create_task(bench.batcher.submit(M, request_of(1.0)))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert bench.executor.here == []


async def test_an_unexpected_error_reaches_its_requests() -> None:
    on_loop, counted_there, counted_in_thread = Bench(), Bench(), Bench({})
    on_loop.executor.breaks = counted_there.cannot_count = counted_in_thread.cannot_count = True
    for bench in (on_loop, counted_there, counted_in_thread):
        with pytest.raises(ZeroDivisionError):
            await bench.batcher.submit(M, request_of(1.0))


async def test_abandon_answers_waiting_requests(bench: Bench) -> None:
    task = asyncio.create_task(bench.batcher.submit(M, request_of(1.0)))
    await asyncio.sleep(0)
    bench.batcher.abandon(NotReadyError("ends"))
    with pytest.raises(NotReadyError):
        await task


async def test_while_requests_come_one_at_a_time_each_runs_at_once(bench: Bench) -> None:
    await bench.batcher.submit(M, request_of(1.0))  # nothing was known of the turn before
    await asyncio.sleep(0)
    alone = bench.batcher.submit(M, request_of(2.0))
    with pytest.raises(StopIteration) as ended:  # without one turn of the loop
        alone.send(None)
    assert ended.value.value["probabilities"].tolist() == [[4.0]]
    waits = [asyncio.create_task(bench.batcher.submit(M, request_of(value))) for value in (3.0, 4.0, 5.0)]
    await asyncio.gather(*waits)
    assert [values for _, values in bench.executor.here[2:]] == [[3.0], [4.0, 5.0]]
    await asyncio.gather(*(bench.batcher.submit(M, request_of(value)) for value in (6.0, 7.0)))
    assert bench.executor.here[-1][1] == [6.0, 7.0]  # they had come together the last time


async def test_a_request_expires_though_its_placement_failed(bench: Bench) -> None:
    errors: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: errors.append(context["exception"]))
    late = asyncio.create_task(bench.batcher.submit(M, request_of(1.0, deadline_s=5.0)))
    await asyncio.sleep(0)  # it is admitted
    bench.executor.times[M].is_broken = True
    await settle()
    assert [type(error) for error in errors] == [ZeroDivisionError]
    bench.executor.times[M].is_broken = False
    await bench.clock.advance(5.0)
    with pytest.raises(DeadlineExceededError):
        await late
    assert (await bench.batcher.submit(M, request_of(2.0)))["probabilities"].tolist() == [[4.0]]
