import asyncio
import random
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from support.escalations import request, response, settle

from firstline_core import errors
from firstline_core.clock import SimulatedClock
from firstline_core.types import InferResponse, Status
from firstline_edge.outbox.announcer import CONCURRENCY, Announce, Announcer
from firstline_edge.outbox.database import Receiver
from firstline_edge.outbox.outbox import Outbox, OutboxItem


class Broker:
    """Hears what is published while `up`; fails with `error`, or hangs."""

    def __init__(self) -> None:
        self.up = asyncio.Event()
        self.up.set()
        self.error: errors.FirstlineError | None = None
        self.hanging = False
        self.tries = 0
        self.heard: list[str] = []

    async def wait_connected(self) -> None:
        await self.up.wait()

    async def publish(self, corrections: Sequence[InferResponse]) -> None:
        (correction,) = corrections
        self.tries += 1
        if self.hanging:
            await asyncio.Event().wait()
        if self.error is not None:
            raise self.error
        self.heard.append(correction.answer.request_id)


class Fleet:
    """Counts the answers in reports, of which the first ones fail with `problems`."""

    def __init__(self, *problems: errors.FirstlineError) -> None:
        self.problems = list(problems)
        self.reports: list[list[str]] = []

    async def report(self, answers: Sequence[InferResponse]) -> None:
        self.reports.append([answer.answer.request_id for answer in answers])
        if self.problems:
            raise self.problems.pop()


class House:
    def __init__(self, path: Path) -> None:
        self.path = path
        self.clock = SimulatedClock()
        self.broker = Broker()

    @asynccontextmanager
    async def running(self, report: Announce | None = None) -> AsyncIterator[Outbox]:
        receivers = [Receiver.APPLICATIONS] if report is None else list(Receiver)
        outbox = Outbox(self.path, announcing=lambda: receivers, clock=self.clock)
        common = (self.clock, random.Random(1))
        announcers = [
            Announcer(outbox, Receiver.APPLICATIONS, self.broker.publish, self.broker.wait_connected, *common)
        ]
        if report is not None:
            announcers.append(Announcer(outbox, Receiver.FLEET, report, settle, *common, together=CONCURRENCY))
        tasks = [asyncio.create_task(announcer.run()) for announcer in announcers]
        yield outbox
        assert not any(task.done() for task in tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        outbox.close()

    async def until(self, count: int, *, step_s: float = 0.0) -> None:
        async with asyncio.timeout(5):
            while len(self.broker.heard) < count:
                await self.clock.advance(step_s)
                await asyncio.sleep(0.0005)

    async def until_noted(self, outbox: Outbox, *, step_s: float = 0.0) -> None:
        async with asyncio.timeout(5):
            while any([await outbox.unannounced(receiver, 9) for receiver in Receiver]):
                await self.clock.advance(step_s)
                await settle()


async def corrected(outbox: Outbox) -> str:
    infer_request = request()
    await outbox.put(OutboxItem(infer_request, (0,), response(infer_request, Status.PROVISIONAL), 0.0))
    await outbox.finish(infer_request.request_id, response(infer_request))
    return infer_request.request_id


@pytest.fixture
def house(tmp_path: Path) -> House:
    return House(tmp_path / "outbox" / "outbox.db")


async def test_each_correction_is_announced_once(house: House) -> None:
    async with house.running() as outbox:
        request_ids = [await corrected(outbox) for _ in range(20)]
        await house.until(20)
        await house.until_noted(outbox)
    assert house.broker.heard == request_ids
    async with house.running() as outbox:
        last = await corrected(outbox)
        await house.until(21)
    assert house.broker.heard[20:] == [last]


async def test_missed_corrections_are_announced_after_a_reconnection(house: House) -> None:
    house.broker.up.clear()
    async with house.running() as outbox:
        request_ids = [await corrected(outbox) for _ in range(3)]
        await settle()
        assert house.broker.tries == 0
        house.broker.up.set()
        await house.until(3)
    assert house.broker.heard == request_ids


async def test_the_next_process_announces_the_remaining_answers(house: House) -> None:
    before = Outbox(house.path, announcing=lambda: [Receiver.APPLICATIONS], clock=house.clock)
    request_id = await corrected(before)
    before.close()  # killed between the answer and its announcement
    async with house.running():
        await house.until(1)
    assert house.broker.heard == [request_id]


async def test_a_device_that_announces_nothing_leaves_nothing_to_announce(house: House) -> None:
    silent = Outbox(house.path, clock=house.clock)
    await corrected(silent)
    silent.close()
    again = Outbox(house.path, announcing=lambda: list(Receiver), clock=house.clock)
    assert [await again.unannounced(receiver, 9) for receiver in Receiver] == [[], []]
    again.close()


@pytest.mark.parametrize("hanging", [True, False])
async def test_announcements_back_off_while_the_broker_fails(house: House, hanging: bool) -> None:
    house.broker.hanging = hanging
    house.broker.error = errors.LinkDownError("lost")
    async with house.running() as outbox:
        request_id = await corrected(outbox)
        await outbox.answer(request_id, "local")  # it hangs on nothing here
        tries = []
        for _ in range(2):
            before = house.broker.tries
            for _ in range(100):
                await house.clock.advance(1.0)
                await asyncio.sleep(0.001)
            tries.append(house.broker.tries - before)
        assert 0 < tries[1] < 25
        house.broker.hanging, house.broker.error = False, None
        await house.until(1, step_s=1.0)
        await house.until_noted(outbox)
    assert house.broker.heard == [request_id]


async def test_a_correction_the_broker_refuses_is_given_up(house: House) -> None:
    house.broker.error = errors.PayloadTooLargeError("too large for the broker")
    async with house.running() as outbox:
        await corrected(outbox)
        await house.until_noted(outbox)
        assert house.broker.heard == []


async def test_a_missing_permission_is_retried(house: House) -> None:
    house.broker.error = errors.UnauthorizedError("not on this topic")
    async with house.running() as outbox:
        request_id = await corrected(outbox)
        async with asyncio.timeout(5):
            while house.broker.tries < 2:
                await house.clock.advance(1.0)
                await asyncio.sleep(0.0005)
        house.broker.error = None
        await house.until(1, step_s=1.0)
    assert house.broker.heard == [request_id]


async def test_answers_are_reported_to_the_fleet_until_a_report_arrives(house: House) -> None:
    fleet = Fleet(errors.LinkDownError("lost"), errors.CapacityError("full"))
    async with house.running(fleet.report) as outbox:
        request_id = await corrected(outbox)
        await house.until_noted(outbox, step_s=1.0)
    assert fleet.reports == 3 * [[request_id]]
    assert house.broker.heard == [request_id]


async def test_reports_that_fail_repeat_and_delay_no_publication(house: House) -> None:
    fleet = Fleet(*(20 * [errors.LinkDownError("lost")]))
    async with house.running(fleet.report) as outbox:
        request_ids = [await corrected(outbox) for _ in range(2 * CONCURRENCY)]
        await house.until_noted(outbox, step_s=1.0)
    assert house.broker.heard == request_ids
    assert len(fleet.reports) > 20
    assert Counter(one for report in fleet.reports[20:] for one in report) == Counter(request_ids)


@pytest.mark.parametrize("connected", [True, False])
async def test_publications_that_fail_repeat_and_delay_no_report(house: House, connected: bool) -> None:
    fleet = Fleet()
    house.broker.error = errors.LinkDownError("lost")
    if not connected:
        house.broker.up.clear()
    async with house.running(fleet.report) as outbox:
        request_ids = [await corrected(outbox) for _ in range(2 * CONCURRENCY)]
        async with asyncio.timeout(5):
            while sum(map(len, fleet.reports)) < len(request_ids):
                await settle()
        house.broker.error = None
        house.broker.up.set()
        await house.until_noted(outbox, step_s=1.0)
    assert Counter(one for report in fleet.reports for one in report) == Counter(request_ids)
    assert house.broker.heard == request_ids
