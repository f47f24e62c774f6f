from __future__ import annotations

import asyncio

from firstline_core.clock import SYSTEM_CLOCK, SimulatedClock


async def test_simulated_time_wakes_sleepers_in_order_and_only_when_due() -> None:
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


def test_the_system_clock_does_not_go_backwards() -> None:
    first = SYSTEM_CLOCK.monotonic_s()
    assert SYSTEM_CLOCK.monotonic_s() >= first
    assert SYSTEM_CLOCK.wall_s() > 1_600_000_000
