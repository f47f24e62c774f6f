"""What is wanted of a model, left for its one task to find."""

from __future__ import annotations

import asyncio

import pytest
from msgspec.structs import replace

from firstline_core.clock import SimulatedClock
from firstline_core.errors import NotReadyError
from firstline_core.fleet.twin import DesiredModel
from firstline_edge.fleet.updates.wishes import SupersededError, Wishes

WANTED = DesiredModel("digits", 2, "a" * 64)


@pytest.fixture
def clock() -> SimulatedClock:
    return SimulatedClock()


@pytest.fixture
def wishes(clock: SimulatedClock) -> Wishes:
    return Wishes(clock)


async def settled() -> None:
    """Whatever may run has run."""
    for _ in range(20):
        await asyncio.sleep(0)


async def test_news_end_the_wait_and_are_news_once(wishes: Wishes, clock: SimulatedClock) -> None:
    assert not wishes.heard
    wishes.desire(WANTED)
    assert wishes.heard and wishes.wanted == WANTED
    await wishes.wait(60)
    wishes.taken_in()
    waiting = asyncio.create_task(wishes.wait(60))
    await settled()
    assert not waiting.done()
    await clock.advance(60)
    await waiting
    wishes.desire(None)
    assert wishes.heard and wishes.wanted is None
    await wishes.wait(60)


async def test_who_goes_back_hears_how_it_went(wishes: Wishes) -> None:
    asking = [asyncio.create_task(wishes.roll_back()) for _ in range(2)]
    await wishes.wait(60)
    assert wishes.asked is not None
    wishes.asked.set_result(None)
    await asyncio.gather(*asking)


async def test_who_asked_and_left_takes_the_wish_back_from_nobody(wishes: Wishes) -> None:
    leaving, staying = (asyncio.create_task(wishes.roll_back()) for _ in range(2))
    await settled()
    leaving.cancel()
    await settled()
    assert wishes.asked is not None and not wishes.asked.done()
    wishes.asked.set_result(None)
    await staying


async def test_an_agent_that_stops_says_so_to_who_waits(wishes: Wishes) -> None:
    asking = asyncio.create_task(wishes.roll_back())
    await settled()
    wishes.close()
    wishes.close()
    with pytest.raises(NotReadyError, match="roll back again"):
        await asking


async def test_work_that_stays_wanted_is_done(wishes: Wishes, clock: SimulatedClock) -> None:
    async def work() -> int:
        await clock.sleep(300)
        return 7

    wishes.desire(replace(WANTED, expires_s=clock.wall_s() + 1000))
    doing = asyncio.create_task(wishes.while_wanted(work(), WANTED))
    await settled()
    wishes.desire(replace(WANTED, not_before_s=5))  # the same update, at another time
    await clock.advance(299)
    assert not doing.done()
    await clock.advance(1)
    assert await doing == 7


async def test_what_work_raises_is_raised(wishes: Wishes) -> None:
    async def work() -> None:
        raise OSError("no room")

    wishes.desire(WANTED)
    with pytest.raises(OSError, match="no room"):
        await wishes.while_wanted(work(), WANTED)


@pytest.mark.parametrize("other", [None, replace(WANTED, version=3), replace(WANTED, undone=True)])
async def test_work_ends_where_something_else_is_wanted(wishes: Wishes, other: DesiredModel | None) -> None:
    ended = asyncio.Event()

    async def work() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    wishes.desire(WANTED)
    doing = asyncio.create_task(wishes.while_wanted(work(), WANTED))
    await settled()
    assert not doing.done()
    wishes.desire(other)
    with pytest.raises(SupersededError):
        await doing
    assert ended.is_set(), "it was left as it is, and is not under way any more"


async def test_work_ends_where_somebody_goes_back(wishes: Wishes) -> None:
    wishes.desire(WANTED)
    doing = asyncio.create_task(wishes.while_wanted(asyncio.Event().wait(), WANTED))
    await settled()
    asking = asyncio.create_task(wishes.roll_back())
    with pytest.raises(SupersededError):
        await doing
    wishes.close()
    with pytest.raises(NotReadyError):
        await asking


async def test_work_ends_when_its_time_is_over(wishes: Wishes, clock: SimulatedClock) -> None:
    wishes.desire(replace(WANTED, expires_s=clock.wall_s() + 100))
    doing = asyncio.create_task(wishes.while_wanted(asyncio.Event().wait(), WANTED))
    await settled()
    for _ in range(99):  # which the wall clock is asked for once a minute at least
        await clock.advance(1)
    assert not doing.done()
    await clock.advance(1)
    with pytest.raises(SupersededError):
        await doing
