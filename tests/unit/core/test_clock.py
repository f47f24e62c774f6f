import asyncio
from collections.abc import Callable

from firstline_core.clock import SYSTEM_CLOCK, SimulatedClock, end_tasks


async def test_simulated_time_wakes_sleepers_in_order() -> None:
    clock = SimulatedClock()
    woken: list[tuple[str, float]] = []

    async def sleeper(name: str, *naps_s: float) -> None:
        for nap_s in naps_s:
            await clock.sleep(nap_s)
            woken.append((name, clock.monotonic_s()))

    async with asyncio.TaskGroup() as group:
        group.create_task(sleeper("slow", 3.0))
        group.create_task(sleeper("twice", 1.0, 1.5))
        await asyncio.sleep(0)
        assert clock.sleepers == 2
        await clock.advance(0.9)
        assert woken == []
        await clock.advance(10.0)
    assert woken == [("twice", 1.0), ("twice", 2.5), ("slow", 3.0)]
    assert clock.monotonic_s() == 10.9


async def test_simulated_time_makes_calls_when_due() -> None:
    clock = SimulatedClock(start_s=5.0)
    calls: list[tuple[str, float]] = []

    def note(name: str) -> Callable[[], None]:
        return lambda: calls.append((name, clock.monotonic_s()))

    clock.call_at(7.0, note("second"))
    clock.call_at(6.0, note("first"))
    clock.call_at(3.0, note("overdue"))
    clock.call_at(6.5, note("cancelled")).cancel()
    assert clock.sleepers == 3
    await clock.advance(1.0)
    assert calls == [("overdue", 5.0), ("first", 6.0)]
    await clock.advance(5.0)
    assert calls[2:] == [("second", 7.0)]


async def test_the_system_clock_makes_calls_when_due() -> None:
    called = asyncio.Event()
    due_s = SYSTEM_CLOCK.monotonic_s() + 0.01
    SYSTEM_CLOCK.call_at(due_s - 0.005, called.clear).cancel()
    SYSTEM_CLOCK.call_at(due_s, called.set)
    await asyncio.wait_for(called.wait(), 5)
    assert SYSTEM_CLOCK.monotonic_s() >= due_s - 0.005  # the loop's clock is coarser


def test_the_system_clock_does_not_go_backwards() -> None:
    first = SYSTEM_CLOCK.monotonic_s()
    assert SYSTEM_CLOCK.monotonic_s() >= first
    assert SYSTEM_CLOCK.wall_s() > 1_600_000_000


async def test_ended_tasks_are_cancelled_and_their_results_are_discarded() -> None:
    async def fail() -> None:
        raise ValueError("a bug")

    waiting, failing = asyncio.create_task(asyncio.sleep(3600)), asyncio.create_task(fail())
    await asyncio.sleep(0)
    await end_tasks(waiting, failing, None)
    assert waiting.cancelled()
    assert failing.done()
