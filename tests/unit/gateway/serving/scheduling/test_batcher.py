import asyncio
from collections.abc import Mapping
from typing import Literal

import numpy as np
import pytest
from msgspec.structs import replace
from support.escalations import settle
from support.executor import single_executor
from support.gateway import GatedExecutor, request_of, served_as

from firstline_core.clock import SimulatedClock
from firstline_core.errors import DeadlineExceededError, InvalidTensorError, NotReadyError, QueueFullError
from firstline_core.telemetry.trace import CURRENT, received
from firstline_core.types import Arrays, AuditNote, InferRequest, ModelKey, TraceContext
from firstline_gateway.executors.base import Outcome
from firstline_gateway.serving.scheduling.admission import Bounds
from firstline_gateway.serving.scheduling.batcher import Batcher

M, N = ModelKey("m", 1), ModelKey("n", 1)


class Bench:
    """A batcher over a gated executor on a simulated clock."""

    def __init__(
        self,
        slots: int = 1,
        rows: int = 4,
        requests: int = 100,
        size_bytes: int = 1 << 20,
        *,
        concurrency_of: Mapping[str, int] | None = None,
        batch: Literal[1] | None = None,
    ) -> None:
        self.clock = SimulatedClock()
        self.executor = GatedExecutor(slots)
        self.rows_run: list[int] = []
        self.late = 0
        self.batcher = Batcher(
            single_executor(self.executor, [served_as(key, batch=batch) for key in (M, N)], clock=self.clock),
            clock=self.clock,
            bounds=Bounds(requests=requests, size_bytes=size_bytes, seconds=100.0, batch_rows=rows),
            concurrency_of=concurrency_of or {},
            on_batch=self.rows_run.append,
            on_late=self._count,
        )

    def _count(self) -> None:
        self.late += 1

    async def submit(self, request: InferRequest, key: ModelKey = M) -> asyncio.Task[Arrays]:
        task = asyncio.create_task(self.batcher.submit(key, request))
        await settle()
        return task

    async def warm(self, *sizes: int) -> None:
        """Has batches of these sizes run, so that the gain by batching is known."""
        for rows in sizes:
            task = await self.submit(request_of(*[0.0] * rows))
            await self.release()
            await task
        self.executor.batches.clear()
        self.rows_run.clear()

    async def release(self, position: int = 0, error: BaseException | None = None) -> None:
        self.executor.release(position, error)
        await settle()

    async def complete(self, seconds: float) -> None:
        """The oldest batch ends after some time."""
        await self.clock.advance(seconds)
        await self.release()

    @property
    def batches(self) -> list[list[list[float]]]:
        return [rows for _, rows in self.executor.batches]


@pytest.fixture
def bench() -> Bench:
    return Bench()


async def test_lone_request_on_an_idle_server_needs_no_timer(bench: Bench) -> None:
    task = await bench.submit(request_of(1, 2))
    assert bench.batches == [[[1, 2]]]
    assert bench.clock.sleepers == 0
    await bench.release()
    assert (await task)["probabilities"].tolist() == [[2], [4]]
    assert bench.batcher.depth == 0


async def test_waiting_requests_are_the_next_batch_in_order() -> None:
    bench = Bench(rows=4)
    await bench.warm(1, 2, 4)
    first = await bench.submit(request_of(1))
    rest = [await bench.submit(request_of(float(n))) for n in range(2, 8)]
    assert bench.batcher.depth == 6
    await bench.release()
    assert (await first)["probabilities"].tolist() == [[2]]
    assert bench.batches[1] == [[2], [3], [4], [5]]
    await bench.release()
    assert bench.batches[2] == [[6], [7]]
    await bench.release()
    assert [(await task)["probabilities"].tolist() for task in rest] == [[[2 * n]] for n in range(2, 8)]
    assert bench.rows_run == [1, 4, 2]


async def test_requests_of_a_model_that_runs_row_by_row_are_not_gathered() -> None:
    bench = Bench(rows=4, batch=1)
    await bench.warm(1, 2, 4)
    tasks = [await bench.submit(request_of(float(n))) for n in range(5)]
    for _ in tasks:
        await bench.release()
    assert [(await task)["probabilities"].tolist() for task in tasks] == [[[2 * n]] for n in range(5)]
    assert bench.rows_run == [1] * 5


async def test_batch_takes_whole_requests_and_a_large_one_alone() -> None:
    bench = Bench(rows=4)
    await bench.warm(1, 2, 4)
    await bench.submit(request_of(0))
    await bench.submit(request_of(1, 1, 1))
    await bench.submit(request_of(2, 2))
    await bench.submit(request_of(3, 3, 3, 3, 3, 3))
    for _ in range(4):
        await bench.release()
    assert [[len(rows) for rows in batch] for batch in bench.batches] == [[1], [3], [2], [6]]


async def test_every_session_is_used_and_never_more() -> None:
    bench = Bench(slots=2)
    await bench.warm(1, 2, 4)
    for n in range(5):
        await bench.submit(request_of(float(n)))
    assert bench.batches == [[[0]], [[1]]]
    await bench.release(1)
    assert bench.batches[2] == [[2], [3], [4]]
    assert bench.executor.most_running == 2


async def test_an_expired_request_is_dropped_before_it_runs(bench: Bench) -> None:
    await bench.warm(1)
    await bench.submit(request_of(0))
    late = await bench.submit(request_of(1, deadline_s=1.0))
    in_time = await bench.submit(request_of(2, deadline_s=9.0))
    await bench.complete(1.0)
    with pytest.raises(DeadlineExceededError, match="deadline passed"):
        await late
    assert bench.batches[1:] == [[[2]]]
    await bench.release()
    assert (await in_time)["probabilities"].tolist() == [[4]]
    assert bench.late == 1
    with pytest.raises(DeadlineExceededError):
        await bench.batcher.submit(M, request_of(1, deadline_s=0.5))
    assert bench.late == 1  # it was never admitted


async def test_an_admitted_request_is_answered_by_its_deadline(bench: Bench) -> None:
    await bench.warm(1)
    running = await bench.submit(request_of(0, deadline_s=0.5))
    late = await bench.submit(request_of(1, deadline_s=1.0))
    patient = await bench.submit(request_of(2, deadline_s=9.0))
    assert bench.clock.sleepers == 3
    await bench.clock.advance(0.4)
    assert not running.done()
    await bench.clock.advance(0.1)
    with pytest.raises(DeadlineExceededError, match="deadline passed"):
        await running
    await bench.clock.advance(0.5)
    with pytest.raises(DeadlineExceededError, match="deadline passed"):
        await late
    assert (bench.late, bench.batcher.depth) == (2, 1)
    await bench.release()
    await bench.release()
    assert (await patient)["probabilities"].tolist() == [[4]]
    assert bench.clock.sleepers == 0
    assert bench.batches == [[[0]], [[2]]]


async def test_a_request_that_cannot_complete_in_time_is_not_started(bench: Bench) -> None:
    first = await bench.submit(request_of(0))
    await bench.complete(1.0)
    await first  # 1 second a row
    await bench.submit(request_of(1))
    hopeless = await bench.submit(request_of(2, deadline_s=4.0))
    await bench.complete(2.5)
    with pytest.raises(DeadlineExceededError):
        await hopeless
    assert bench.batches == [[[0]], [[1]]]
    assert bench.late == 1


async def test_a_leaving_caller_cancels_its_timer(bench: Bench) -> None:
    await bench.submit(request_of(0))
    leaving = await bench.submit(request_of(1, deadline_s=5.0))
    assert bench.clock.sleepers == 1
    leaving.cancel()
    await settle()
    assert bench.clock.sleepers == 0


async def test_abandon_answers_at_once_without_waiting_for_batches(bench: Bench) -> None:
    tasks = [await bench.submit(request_of(float(n), deadline_s=9.0), key) for n, key in enumerate((M, M, N))]
    bench.batcher.abandon(NotReadyError("Shutting down."))
    outcomes = await asyncio.gather(*tasks, return_exceptions=True)
    assert [type(outcome) for outcome in outcomes] == [NotReadyError] * 3
    assert (bench.batcher.depth, bench.executor.held, bench.clock.sleepers) == (0, 1, 0)
    await bench.release()
    assert bench.batches == [[[0]]]


async def test_a_new_request_starts_after_all_waiting_ones_expired(bench: Bench) -> None:
    await bench.submit(request_of(0))
    late = [await bench.submit(request_of(1, deadline_s=1.0), key) for key in (M, N)]
    await bench.complete(2)
    assert [type(error) for error in await asyncio.gather(*late, return_exceptions=True)] == [DeadlineExceededError] * 2
    await bench.submit(request_of(3))
    assert bench.batches[1:] == [[[3]]]


async def test_a_full_queue_refuses_with_the_time_that_it_needs_to_empty() -> None:
    bench = Bench(rows=1, requests=2)
    first = await bench.submit(request_of(0))
    await bench.complete(1.5)
    await first
    for _ in range(3):
        await bench.submit(request_of(1))
    with pytest.raises(QueueFullError, match="Model 'm' has 2 requests waiting") as caught:
        await bench.batcher.submit(M, request_of(1))
    assert caught.value.retry_after_s == pytest.approx(4.5)  # one runs, two wait
    await bench.submit(request_of(1), N)  # another model has room
    await bench.release()
    await bench.submit(request_of(1))


async def test_other_bounds_apply_to_new_requests() -> None:
    bench = Bench(rows=1, requests=2)
    await bench.warm(1)
    for _ in range(3):
        await bench.submit(request_of(1))
    bench.batcher.adopt(Bounds(requests=3, size_bytes=1 << 20, seconds=100.0, batch_rows=1))
    await bench.submit(request_of(1))
    with pytest.raises(QueueFullError, match="Model 'm' has 3 requests waiting"):
        await bench.batcher.submit(M, request_of(1))


async def test_requests_of_one_turn_wait_only_for_slots_that_are_taken() -> None:
    cold = Bench()
    tasks = [asyncio.create_task(cold.batcher.submit(M, request_of(1, deadline_s=50.0))) for _ in range(4)]
    await settle()
    # Nothing is known of the model: one runs, and one with a deadline may wait.
    assert [isinstance(task.done() and task.exception(), QueueFullError) for task in tasks] == [
        False,
        False,
        True,
        True,
    ]
    short = Bench(slots=4, rows=1, requests=4)
    tasks = [asyncio.create_task(short.batcher.submit(key, request_of(1))) for key in [M] * 9 + [N] * 5]
    await settle()
    refused = [isinstance(task.done() and task.exception(), QueueFullError) for task in tasks]
    assert refused == [*[False] * 8, True, *[False] * 4, True]  # four run, and four wait for each model


async def test_a_refusal_does_not_date_later_decisions() -> None:
    bench = Bench(rows=1)
    first = await bench.submit(request_of(0))
    await bench.complete(2.0)
    await first  # 2 seconds a row
    await bench.submit(request_of(1))
    await bench.clock.advance(0.1)
    with pytest.raises(QueueFullError, match="work before this request"):
        await bench.batcher.submit(M, request_of(2, deadline_s=bench.clock.monotonic_s() + 2.5))
    await bench.clock.advance(1.8)  # 0.1 seconds are left of the batch that runs
    in_time = await bench.submit(request_of(3, deadline_s=bench.clock.monotonic_s() + 4.5))
    await bench.release()
    await bench.release()
    assert (await in_time)["probabilities"].tolist() == [[6]]


async def test_audits_leave_half_of_the_room_to_escalations() -> None:
    note = AuditNote(propensity=0.1, epsilon=0.05, threshold=0.9, edge_digest="0" * 64)
    bench = Bench(requests=4)
    await bench.submit(request_of(0))
    for _ in range(2):
        await bench.submit(request_of(1, audit=note))
    with pytest.raises(QueueFullError, match="2 requests wait"):
        await bench.batcher.submit(M, request_of(1, audit=note))
    for _ in range(2):
        await bench.submit(request_of(1))
    with pytest.raises(QueueFullError, match="4 requests wait"):
        await bench.batcher.submit(M, request_of(1))
    small = Bench(size_bytes=16)
    for _ in range(3):
        await small.submit(request_of(1))  # one runs, and 8 bytes wait
    with pytest.raises(QueueFullError, match="8 bytes of requests wait"):
        await small.batcher.submit(M, request_of(1, audit=note))
    await small.submit(request_of(1))


async def test_the_queue_is_bounded_in_bytes_over_all_models() -> None:
    bench = Bench(size_bytes=12)
    await bench.submit(request_of(*range(100)))  # runs at once, however large: nothing waits
    await bench.submit(request_of(1, 2))
    with pytest.raises(QueueFullError, match="8 bytes of requests wait") as caught:
        await bench.batcher.submit(N, request_of(1, 2))
    assert caught.value.retry_after_s is not None
    await bench.submit(request_of(1), N)


async def test_a_bad_request_fails_alone_in_its_batch(bench: Bench) -> None:
    await bench.warm(1, 2, 4)
    await bench.submit(request_of(0))
    tasks = [await bench.submit(request_of(value)) for value in (1.0, -1.0, 3.0)]
    await bench.release()
    await bench.release()
    good, bad, also_good = await asyncio.gather(*tasks, return_exceptions=True)
    assert isinstance(bad, InvalidTensorError)
    assert np.array_equal(good["probabilities"], [[2]])
    assert np.array_equal(also_good["probabilities"], [[6]])


async def test_a_failing_engine_fails_its_batch_and_not_the_next(bench: Bench) -> None:
    first = await bench.submit(request_of(0))
    second = await bench.submit(request_of(1))
    await bench.release(error=OSError("gone"))
    with pytest.raises(OSError, match="gone"):
        await first
    await bench.release()
    assert (await second)["probabilities"].tolist() == [[2]]


async def test_a_caller_that_leaves_takes_its_request_along(bench: Bench) -> None:
    await bench.submit(request_of(0))
    leaving = await bench.submit(request_of(1))
    staying = await bench.submit(request_of(2))
    leaving.cancel()
    await settle()
    assert bench.batcher.depth == 1
    await bench.release()
    assert bench.batches[1] == [[2]]
    await bench.release()
    assert (await staying)["probabilities"].tolist() == [[4]]


async def test_a_caller_may_leave_while_its_request_runs(bench: Bench) -> None:
    leaving = await bench.submit(request_of(0))
    leaving.cancel()
    staying = await bench.submit(request_of(2))
    await bench.release()
    await bench.release()
    assert leaving.cancelled()
    assert (await staying)["probabilities"].tolist() == [[4]]


async def test_a_batch_is_filled_by_level_and_then_in_order() -> None:
    bench = Bench(rows=2)
    await bench.warm(1, 2)
    tasks = [await bench.submit(request_of(1))]
    tasks += [
        await bench.submit(request_of(value, priority=level)) for value, level in ((2, 3), (3, 0), (4, 3), (5, 1))
    ]
    for _ in range(3):
        await bench.release()
    assert bench.batches == [[[1]], [[5], [3]], [[2], [4]]]
    await asyncio.gather(*tasks)


@pytest.mark.parametrize(("principals", "order"), [("aaaaab", [0, 1, 5, 2, 3, 4]), ("aaabbb", [0, 1, 3, 2, 4, 5])])
async def test_without_deadlines_clients_take_turns(principals: str, order: list[int]) -> None:
    bench = Bench(rows=1, batch=1)
    measured = await bench.submit(request_of(0))
    await bench.complete(1.0)
    await measured
    for position, principal in enumerate(principals):
        await bench.submit(replace(request_of(float(position)), principal=principal))
    for _ in principals:
        await bench.complete(1.0)
    assert [batch[0][0] for batch in bench.batches[1:]] == order


@pytest.mark.parametrize(("clients", "order"), [(9, [1, 2]), (10, [2, 1])])
async def test_without_a_deadline_an_equal_part_is_due(clients: int, order: list[int]) -> None:
    """After the running request come 0.1 s for each client. The other request is due after 1.05 s."""
    bench = Bench(rows=1, batch=1)
    for client in range(clients):
        measured = await bench.submit(replace(request_of(0), principal=f"{client}"))
        await bench.complete(0.1)
        await measured
    await bench.submit(replace(request_of(0), principal="0"))
    await bench.submit(replace(request_of(1), principal="0"))
    due_s = bench.clock.monotonic_s() + 1.05
    await bench.submit(replace(request_of(2, deadline_s=due_s), principal="1"))
    for _ in range(3):
        await bench.complete(0.1)
    assert [batch[0][0] for batch in bench.batches[-2:]] == order


async def test_a_model_at_its_limit_leaves_slots_to_others() -> None:
    bench = Bench(slots=3, concurrency_of={M.name: 1})
    first, second = await bench.submit(request_of(1)), await bench.submit(request_of(2))
    other = await bench.submit(request_of(3), N)
    assert [key for key, _ in bench.executor.batches] == [M, N]
    await bench.release(1)
    assert (await other)["probabilities"].tolist() == [[6.0]]
    assert bench.batcher.depth == 1
    await bench.release()
    assert (await first)["probabilities"].tolist() == [[2.0]]
    await bench.release()
    assert (await second)["probabilities"].tolist() == [[4.0]]


async def test_a_batch_runs_under_one_of_its_requests_traces(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench(rows=4)
    await bench.warm(1, 2, 4)
    under: list[TraceContext | None] = []
    run = bench.executor.run

    async def noting(*arguments: object) -> list[Outcome]:
        under.append(CURRENT.get())
        return await run(*arguments)

    monkeypatch.setattr(bench.executor, "run", noting)
    trace = received("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01")
    tasks = [await bench.submit(request_of(1.0))]
    tasks += [await bench.submit(request_of(2.0, trace=each)) for each in (None, trace, None)]
    for _ in range(2):
        await bench.release()
    tasks.append(await bench.submit(request_of(3.0)))
    await bench.release()
    await asyncio.gather(*tasks)
    assert under == [None, trace, None]
    assert CURRENT.get() is None
