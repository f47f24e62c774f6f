"""Whatever comes, leaves and expires: each request ends once, with its own rows, and nothing is left behind."""

import asyncio
from dataclasses import dataclass

from hypothesis import given, settings
from hypothesis import strategies as st
from support.gateway import GatedExecutor, pool_of, request_of

from firstline_core.clock import SimulatedClock
from firstline_core.errors import DeadlineExceededError, InvalidTensorError, QueueFullError
from firstline_core.types import PROBABILITIES, Arrays, ModelKey
from firstline_gateway.serving.scheduling.admission import Bounds
from firstline_gateway.serving.scheduling.batcher import Batcher

KEYS = (ModelKey("m", 1), ModelKey("m", 2), ModelKey("n", 1))
MAX_ROWS = 4


@dataclass
class Submit:
    rows: int
    key: int
    patience_s: int | None
    bad: bool


@dataclass
class Release:
    position: int


@dataclass
class Leave:
    position: int


@dataclass
class Advance:
    seconds: int


steps = st.one_of(
    st.builds(
        Submit,
        rows=st.integers(1, 6),
        key=st.integers(0, 2),
        patience_s=st.none() | st.integers(0, 3),
        bad=st.booleans(),
    ),
    st.builds(Release, position=st.integers(0, 3)),
    st.builds(Leave, position=st.integers(0, 20)),
    st.builds(Advance, seconds=st.integers(1, 2)),
)


@given(plan=st.lists(steps, max_size=40), slots=st.integers(1, 3))
@settings(max_examples=150, deadline=None)
def test_each_request_ends_once_with_its_own_rows(plan: list[object], slots: int) -> None:
    asyncio.run(play(plan, slots))


async def play(plan: list[object], slots: int) -> None:
    clock = SimulatedClock()
    executor = GatedExecutor(slots)
    bounds = Bounds(requests=4, size_bytes=80, seconds=20.0, batch_rows=MAX_ROWS)
    batcher = Batcher(pool_of(executor, *KEYS, clock=clock), clock=clock, bounds=bounds)
    due: dict[float, float | None] = {}
    submissions: list[tuple[Submit, list[float], asyncio.Task[Arrays]]] = []
    for step in plan:
        if isinstance(step, Submit):
            sign = -1 if step.bad else 1
            values = [sign * (len(submissions) * 10.0 + row + 1) for row in range(step.rows)]
            deadline_s = None if step.patience_s is None else clock.monotonic_s() + step.patience_s
            due[values[0]] = deadline_s
            submitted = batcher.submit(KEYS[step.key], request_of(*values, deadline_s=deadline_s))
            submissions.append((step, values, asyncio.create_task(submitted)))
        elif isinstance(step, Release) and executor.held:
            executor.release(step.position % executor.held)
        elif isinstance(step, Leave) and submissions:
            submissions[step.position % len(submissions)][2].cancel()
        elif isinstance(step, Advance):
            await clock.advance(step.seconds)
        await settle()
        assert executor.running == executor.held <= slots
        assert executor.running == slots or batcher.depth == 0  # nothing waits while a session is free
        assert clock.sleepers <= sum(not task.done() for _, _, task in submissions)  # what is answered is not timed
        for _, values, task in submissions:
            due_s = due[values[0]]
            overdue = due_s is not None and due_s <= clock.monotonic_s()
            assert task.done() or not overdue  # no request waits past the deadline
    while executor.held:
        executor.release()
        await settle()

    assert batcher.depth == 0
    for step, values, task in submissions:
        assert task.done()
        if task.cancelled():
            continue
        error = task.exception()
        if error is None:
            assert task.result()[PROBABILITIES][:, 0].tolist() == [2 * value for value in values]
            assert not step.bad
        else:
            assert isinstance(error, DeadlineExceededError | InvalidTensorError | QueueFullError)
            assert step.bad or not isinstance(error, InvalidTensorError)
    run_once = [value for _, batch in executor.batches for request in batch for value in request]
    assert len(run_once) == len(set(run_once))
    for _, batch in executor.batches:
        assert len(batch) == 1 or sum(map(len, batch)) <= MAX_ROWS


async def settle() -> None:
    for _ in range(12):
        await asyncio.sleep(0)
