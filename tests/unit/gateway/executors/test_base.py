from __future__ import annotations

import asyncio

from firstline_gateway.executors.base import InFlight


async def test_the_end_waits_for_all_work() -> None:
    under_way = InFlight()
    with under_way:
        with under_way:
            ended = asyncio.create_task(under_way.end())
            await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert not ended.done()
    await asyncio.wait_for(ended, 5.0)


async def test_the_end_waits_for_later_work_too() -> None:
    under_way = InFlight()
    with under_way:
        ended = asyncio.create_task(under_way.end())
        await asyncio.sleep(0)
    with under_way:  # before the waiting task is awake
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert not ended.done()
    await asyncio.wait_for(ended, 5.0)


async def test_the_end_waits_no_longer_than_the_timeout() -> None:
    under_way = InFlight()
    await asyncio.wait_for(under_way.end(), 5.0)
    with under_way:
        await asyncio.wait_for(under_way.end(0.0), 5.0)
