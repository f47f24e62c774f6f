"""What is wanted of a model, left for its one task to find."""

from __future__ import annotations

import asyncio

import pytest
from msgspec.structs import replace

from firstline_core.clock import SimulatedClock
from firstline_core.errors import NotReadyError
from firstline_core.fleet.twin import DesiredModel
from firstline_edge.fleet.updates.state_machine import Inbox, SupersededError

WANTED = DesiredModel("digits", 2, "a" * 64)


@pytest.fixture
def clock() -> SimulatedClock:
    return SimulatedClock()


@pytest.fixture
def inbox(clock: SimulatedClock) -> Inbox[DesiredModel]:
    return Inbox(clock)


async def settled() -> None:
    """Whatever may run has run."""
    for _ in range(20):
        await asyncio.sleep(0)


async def test_news_end_the_wait_and_are_news_once(inbox: Inbox[DesiredModel], clock: SimulatedClock) -> None:
    assert not inbox.received
    inbox.desire(WANTED)
    assert inbox.received and inbox.desired == WANTED
    await inbox.wait(60)
    inbox.clear()
    waiting = asyncio.create_task(inbox.wait(60))
    await settled()
    assert not waiting.done()
    await clock.advance(60)
    await waiting
    inbox.desire(None)
    assert inbox.received and inbox.desired is None
    await inbox.wait(60)


async def test_who_goes_back_hears_how_it_went(inbox: Inbox[DesiredModel]) -> None:
    asking = [asyncio.create_task(inbox.roll_back()) for _ in range(2)]
    await inbox.wait(60)
    assert inbox.rollback is not None
    inbox.rollback.set_result(None)
    await asyncio.gather(*asking)


async def test_who_asked_and_left_takes_the_wish_back_from_nobody(inbox: Inbox[DesiredModel]) -> None:
    leaving, staying = (asyncio.create_task(inbox.roll_back()) for _ in range(2))
    await settled()
    leaving.cancel()
    await settled()
    assert inbox.rollback is not None and not inbox.rollback.done()
    inbox.rollback.set_result(None)
    await staying


async def test_an_agent_that_stops_says_so_to_who_waits(inbox: Inbox[DesiredModel]) -> None:
    asking = asyncio.create_task(inbox.roll_back())
    await settled()
    inbox.close()
    inbox.close()
    with pytest.raises(NotReadyError, match="roll back again"):
        await asking


async def test_work_that_stays_wanted_is_done(inbox: Inbox[DesiredModel], clock: SimulatedClock) -> None:
    async def work() -> int:
        await clock.sleep(300)
        return 7

    inbox.desire(replace(WANTED, expires_s=clock.wall_s() + 1000))
    doing = asyncio.create_task(inbox.while_desired(work(), WANTED))
    await settled()
    inbox.desire(replace(WANTED, not_before_s=5))  # the same update, at another time
    await clock.advance(299)
    assert not doing.done()
    await clock.advance(1)
    assert await doing == 7


async def test_what_work_raises_is_raised(inbox: Inbox[DesiredModel]) -> None:
    async def work() -> None:
        raise OSError("no room")

    inbox.desire(WANTED)
    with pytest.raises(OSError, match="no room"):
        await inbox.while_desired(work(), WANTED)


@pytest.mark.parametrize("other", [None, replace(WANTED, version=3), replace(WANTED, undone=True)])
async def test_work_ends_where_something_else_is_wanted(inbox: Inbox[DesiredModel], other: DesiredModel | None) -> None:
    ended = asyncio.Event()

    async def work() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    inbox.desire(WANTED)
    doing = asyncio.create_task(inbox.while_desired(work(), WANTED))
    await settled()
    assert not doing.done()
    inbox.desire(other)
    with pytest.raises(SupersededError):
        await doing
    assert ended.is_set(), "it was left as it is, and is not under way any more"


async def test_work_ends_where_somebody_goes_back(inbox: Inbox[DesiredModel]) -> None:
    inbox.desire(WANTED)
    doing = asyncio.create_task(inbox.while_desired(asyncio.Event().wait(), WANTED))
    await settled()
    asking = asyncio.create_task(inbox.roll_back())
    with pytest.raises(SupersededError):
        await doing
    inbox.close()
    with pytest.raises(NotReadyError):
        await asking


async def test_work_ends_when_its_time_is_over(inbox: Inbox[DesiredModel], clock: SimulatedClock) -> None:
    inbox.desire(replace(WANTED, expires_s=clock.wall_s() + 100))
    doing = asyncio.create_task(inbox.while_desired(asyncio.Event().wait(), WANTED))
    await settled()
    for _ in range(99):  # which the wall clock is asked for once a minute at least
        await clock.advance(1)
    assert not doing.done()
    await clock.advance(1)
    with pytest.raises(SupersededError):
        await doing
