"""Attempts on one executor: the slot of an abandoned one, and unexpected errors."""

import asyncio
import threading

import pytest
from support.executor import ExecutorWithoutFiles, run_earliest
from support.executors import SERVED, M, Timed, row, site
from support.gateway import Doubler

from firstline_core.clock import SimulatedClock
from firstline_core.types import Arrays, ModelKey
from firstline_gateway.executors.base import Deadlines, Inputs, Outcome
from firstline_gateway.executors.dispatch.dispatcher import Dispatcher
from firstline_gateway.executors.dispatch.member import Member
from firstline_gateway.executors.local import LocalExecutor


class Held(Doubler):
    """Runs until the test lets it go."""

    def __init__(self) -> None:
        super().__init__(batch_s={1: 0.01})
        self.goes_on = threading.Event()
        self.fails = False

    def run(self, rows: Arrays) -> Arrays:
        assert self.goes_on.wait(60)
        if self.fails:
            raise ValueError("dimensions")
        return super().run(rows)

    def close(self) -> None:
        pass


@pytest.mark.parametrize("fails", [False, True])
async def test_an_abandoned_thread_keeps_its_slot_until_it_ends(fails: bool) -> None:
    clock, model = SimulatedClock(), Held()
    model.fails = fails
    local = LocalExecutor({M: model}, sessions=1, max_batch_rows=32, clock=clock)
    far = Timed(clock, 0.03)
    here, there = Member("here", local, sessions=1), Member("there", far, sessions=1)
    here.place(SERVED, {1: 0.01})
    there.place(SERVED, {1: 0.03})
    dispatcher = Dispatcher([here, there], clock=clock)
    task = asyncio.ensure_future(run_earliest(dispatcher, M, [row(2.0)], [None]))
    while not task.done():
        await asyncio.sleep(0)
        await clock.advance(0.001)
    assert task.result()[0]["probabilities"].tolist() == [[4.0]]
    assert here.outcomes == {"cut_off": 1}
    assert (len(here.running), here.has_room()) == (1, False)
    await clock.advance(1.0)
    freed = asyncio.Event()
    dispatcher.subscribe(freed.set)
    model.goes_on.set()
    await asyncio.wait_for(freed.wait(), 60)
    assert (len(here.running), here.has_room()) == (0, True)
    assert here.outcomes == {"cut_off": 1}
    assert await dispatcher.close(10)


async def test_a_batch_abandoned_before_its_thread_frees_its_slot() -> None:
    clock, model = SimulatedClock(), Held()
    local = LocalExecutor({M: model}, sessions=1, max_batch_rows=32, clock=clock)
    here = Member("here", local, sessions=1)
    here.place(SERVED, {1: 0.01})
    dispatcher = Dispatcher([here], clock=clock)
    first, second = (dispatcher.run_on(here, M, [row(2.0)], [None]) for _ in range(2))
    await asyncio.sleep(0)
    assert len(here.running) == 2
    second.cancel()
    with pytest.raises(asyncio.CancelledError):
        await second
    await asyncio.sleep(0)
    assert len(here.running) == 1
    model.goes_on.set()
    assert (await first)[0]["probabilities"].tolist() == [[4.0]]
    assert model.runs == [1]
    assert await dispatcher.close(10)


@pytest.mark.parametrize("abandoned", [False, True])
def test_a_thread_may_end_after_the_event_loop(abandoned: bool, caplog: pytest.LogCaptureFixture) -> None:
    model, before = Held(), set(threading.enumerate())

    async def begin() -> LocalExecutor:
        local = LocalExecutor({M: model}, sessions=1, max_batch_rows=32)
        here = Member("here", local, sessions=1)
        here.place(SERVED, {1: 0.01})
        ran = Dispatcher([here]).run_on(here, M, [row(2.0)], [None])
        if abandoned:
            ran.cancel()
        await asyncio.sleep(0)
        return local

    local = asyncio.run(begin())
    model.goes_on.set()
    assert asyncio.run(local.close(60))
    for thread in set(threading.enumerate()) - before:
        if thread.name.startswith("session"):
            thread.join(60)
    assert model.runs == [1]
    assert not caplog.records


class Prompt(ExecutorWithoutFiles):
    """Answers when the test says so."""

    def __init__(self) -> None:
        super().__init__()
        self.runs: list[asyncio.Future[list[Outcome]]] = []

    def run(self, key: ModelKey, inputs: Inputs, deadlines_s: Deadlines) -> asyncio.Future[list[Outcome]]:
        self.runs.append(asyncio.get_running_loop().create_future())
        return self.runs[-1]

    def answer(self) -> None:
        self.runs[-1].set_result([row(2.0)])


def prompt_pair(clock: SimulatedClock) -> tuple[Dispatcher, list[Prompt], list[Member]]:
    executors = [Prompt(), Prompt()]
    members = [Member(name, each, sessions=1) for name, each in zip("ab", executors, strict=True)]
    for member in members:
        member.place(SERVED, {1: 0.01})
    return Dispatcher(members, clock=clock), executors, members


async def test_two_answers_at_the_same_moment_free_both_slots() -> None:
    clock = SimulatedClock()
    dispatcher, (first, second), members = prompt_pair(clock)
    ran = dispatcher.run_on(members[0], M, [row(1.0)], [None])
    second.answer()  # to the probe
    while len(second.runs) < 2:
        await clock.advance(0.001)
    first.answer()
    second.answer()
    await ran
    await clock.advance(1.0)
    assert [(len(member.running), member.has_room()) for member in members] == [(0, True)] * 2
    assert members[1].outcomes["answered"] == 2


async def test_a_probe_that_is_answered_at_its_limit_frees_its_slot() -> None:
    clock = SimulatedClock()
    dispatcher, (first, second), members = prompt_pair(clock)
    ran = dispatcher.run_on(members[0], M, [row(1.0)], [None])
    first.answer()
    await ran
    second.answer()
    assert await dispatcher.close(0)
    assert [(len(member.running), member.has_room()) for member in members] == [(0, True)] * 2


async def test_an_unexpected_failure_counts_against_the_executor() -> None:
    async with site({"one": 0.01, "other": 0.02}) as cluster:
        cluster.executors["one"].error = ValueError("all the input array dimensions must match")
        failures = 0
        for _ in range(20):
            try:
                await cluster.until(cluster.ask(1.0))
            except ValueError:
                failures += 1
        assert failures == 3
        assert cluster.report("one").batches["failed"] == 3
        assert cluster.report("one").batches.get("cut_off", 0) == 0
        assert cluster.report("one").problem.startswith("It failed")
        cluster.executors["one"].error = None
