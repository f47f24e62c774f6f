"""A periodic task: it goes on after failures, logs each failure once, and can be woken."""

import asyncio

from support.logs import captured_lines

from firstline_core.clock import SimulatedClock
from firstline_core.errors import StoreUnavailableError
from firstline_gateway.background import PeriodicTask


class Work:
    """An action that fails as often as a test says."""

    def __init__(self, *failures: Exception) -> None:
        self.rounds = 0
        self._failures = [*failures]

    async def run(self) -> None:
        self.rounds += 1
        if self._failures:
            raise self._failures.pop(0)


async def let_run() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


async def test_an_action_runs_at_once_and_after_each_interval() -> None:
    work, clock = Work(), SimulatedClock()
    task = PeriodicTask("work", work.run, interval_s=10.0, clock=clock)
    await task.start()
    await let_run()
    assert work.rounds == 1
    await clock.advance(9.9)
    assert work.rounds == 1
    await clock.advance(0.2)
    assert work.rounds == 2
    await task.close()
    await clock.advance(100)
    assert work.rounds == 2


async def test_an_event_starts_the_next_round_early() -> None:
    work, clock, wake = Work(), SimulatedClock(), asyncio.Event()
    task = PeriodicTask("work", work.run, interval_s=10.0, clock=clock, wake=wake)
    await task.start()
    await let_run()
    wake.set()
    await let_run()
    assert work.rounds == 2 and not wake.is_set()
    await task.close()


async def test_a_failure_is_logged_once_and_ends_nothing() -> None:
    away = StoreUnavailableError("The store is away.")
    work, clock = Work(away, away, ValueError("broken")), SimulatedClock()
    task = PeriodicTask("work", work.run, interval_s=1.0, clock=clock)
    with captured_lines() as lines:
        await task.start()
        for _ in range(4):
            await let_run()
            await clock.advance(1.1)
        await let_run()
    await task.close()
    assert work.rounds == 5
    assert [line.get("error") for line in lines if line["event"] == "background task failed"][:1] == [away.message]
    assert len([line for line in lines if line["event"] == "background task failed"]) == 2
