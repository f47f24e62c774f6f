"""Attempts on one executor: the slot of an abandoned one, and unexpected errors."""

from __future__ import annotations

import asyncio
import threading
from typing import cast

import pytest
from support.executor import run_earliest
from support.executors import SERVED, M, Timed, row, site
from support.gateway import Doubler

from firstline_core.bundle.loading import LoadedModel
from firstline_core.clock import SimulatedClock
from firstline_core.types import Arrays
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
    local = LocalExecutor({M: cast(LoadedModel, model)}, sessions=1, max_batch_rows=32, clock=clock)
    far = Timed(clock, 0.03)
    here, there = Member("here", local, sessions=1), Member("there", far, sessions=1)
    here.place(SERVED, {1: 0.01})
    there.place(SERVED, {1: 0.03})
    dispatcher = Dispatcher([here, there], clock=clock)
    asked = asyncio.ensure_future(run_earliest(dispatcher, M, [row(2.0)], [None]))
    while not asked.done():
        await asyncio.sleep(0)
        await clock.advance(0.001)
    assert asked.result()[0]["probabilities"].tolist() == [[4.0]]
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
    local = LocalExecutor({M: cast(LoadedModel, model)}, sessions=1, max_batch_rows=32, clock=clock)
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


async def test_an_unexpected_failure_counts_against_the_executor() -> None:
    async with site({"one": 0.01, "other": 0.02}) as made:
        made.executors["one"].error = ValueError("all the input array dimensions must match")  # type: ignore[assignment]
        told = 0
        for _ in range(20):
            try:
                await made.until(made.ask(1.0))
            except ValueError:
                told += 1
        assert told == 3
        assert made.report("one").batches["failed"] == 3
        assert made.report("one").batches.get("cut_off", 0) == 0
        assert made.report("one").problem.startswith("It failed")
        made.executors["one"].error = None
