from __future__ import annotations

import asyncio

from firstline_gateway.executors.under_way import UnderWay


async def test_the_end_is_waited_for_however_it_was_counted() -> None:
    under_way = UnderWay()
    under_way.count += 1
    with under_way:
        ended = asyncio.create_task(under_way.end())
        await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert not ended.done()
    under_way.count -= 1
    under_way.tell()
    await asyncio.wait_for(ended, 5.0)


async def test_what_came_meanwhile_is_waited_for_too() -> None:
    under_way = UnderWay()
    with under_way:
        ended = asyncio.create_task(under_way.end())
        await asyncio.sleep(0)
    with under_way:  # before the waiting one is awake
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert not ended.done()
    await asyncio.wait_for(ended, 5.0)


async def test_it_is_waited_for_no_longer_than_allowed_and_not_at_all_where_there_is_none() -> None:
    under_way = UnderWay()
    await asyncio.wait_for(under_way.end(), 5.0)
    with under_way:
        await asyncio.wait_for(under_way.end(0.0), 5.0)
