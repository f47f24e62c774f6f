"""The admission queue in a burst of requests: their order, and which are refused."""

import asyncio

import pytest

from firstline_core.clock import SYSTEM_CLOCK
from firstline_core.errors import DeadlineExceededError, QueueFullError
from firstline_edge.api import data_plane as turns
from firstline_edge.api.data_plane import AdmissionQueue


class ManualClock:
    """Time that passes where a test says so; all else is the loop's."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def monotonic_s(self) -> float:
        return self.now_s

    wall_s = monotonic_s
    sleep = SYSTEM_CLOCK.sleep
    call_at = SYSTEM_CLOCK.call_at


class Desk:
    """Requests that each take a given time, on the event loop itself."""

    def __init__(self, limit: int = 1000, work_s: float = 0.005) -> None:
        self.clock, self.work_s = ManualClock(), work_s
        self.turns = AdmissionQueue(limit, self.clock)
        self.order: list[int] = []

    async def ask(self, number: int, deadline_s: float = 1e9) -> float:
        """When it was done."""
        await self.turns.take(deadline_s)
        self.order.append(number)
        self.clock.now_s += self.work_s
        return self.clock.now_s


async def test_a_single_request_starts_at_once() -> None:
    desk = Desk()
    for _ in range(3):
        coroutine = desk.turns.take(1e9)
        with pytest.raises(StopIteration):
            coroutine.send(None)  # not even one look around
        assert desk.turns.wait_s == 0
        await asyncio.sleep(0)  # the loop comes round


async def test_a_burst_is_served_in_order_and_does_not_block_the_loop() -> None:
    desk = Desk()
    rounds = 0

    async def others() -> None:
        nonlocal rounds
        while len(desk.order) < 200:
            rounds += 1
            await asyncio.sleep(0)

    await asyncio.gather(*(desk.ask(number) for number in range(200)), others())
    assert desk.order == list(range(200))
    assert rounds >= 200 * desk.work_s / turns._SLICE_S / 2  # a slice at a time, once it knows what a turn takes


async def test_late_requests_are_refused_at_once_and_earlier_ones_served() -> None:
    desk = Desk(work_s=0.01)
    await asyncio.gather(*(desk.ask(number) for number in range(100)))  # it learns what a turn takes
    began_s = desk.clock.now_s
    deadline_s = began_s + 0.5
    done = await asyncio.gather(*(desk.ask(number, deadline_s) for number in range(500)), return_exceptions=True)
    served = [when_s for when_s in done if isinstance(when_s, float)]
    refused = [error for error in done if isinstance(error, QueueFullError)]
    assert len(served) + len(refused) == 500
    assert 45 <= len(served) <= 60
    assert max(served) <= deadline_s + 4 * turns._SLICE_S  # of a slice that began in time
    assert all(error.retry_after_s is not None and error.retry_after_s >= 1 for error in refused)
    assert len(desk.turns) == 0


async def test_requests_over_the_waiting_limit_are_refused() -> None:
    desk = Desk(limit=10, work_s=1.0)
    done = await asyncio.gather(*(desk.ask(number) for number in range(50)), return_exceptions=True)
    refused = [error for error in done if isinstance(error, QueueFullError)]
    assert len(refused) == 50 - 10 - 1
    assert "api.waiting_limit" in refused[0].message


async def test_a_cancelled_request_takes_no_turn() -> None:
    desk = Desk(work_s=1.0)
    tasks = [asyncio.create_task(desk.ask(number)) for number in range(5)]
    await asyncio.sleep(0)
    tasks[2].cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    assert desk.order == [0, 1, 3, 4]


async def test_a_passed_deadline_blames_no_other_request() -> None:
    desk = Desk()
    desk.clock.now_s = 5.0
    with pytest.raises(DeadlineExceededError, match="deadline passed while it was read") as refused:
        await desk.turns.take(4.0)
    assert refused.value.retry_after_s == 1.0
