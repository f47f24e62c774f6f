import asyncio
import itertools
import random
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest
from support.escalations import ScriptedLink, request, response, settle

from firstline_core import errors
from firstline_core.clock import SimulatedClock
from firstline_core.types import InferRequest, InferResponse, Reason, Status
from firstline_edge.links.breaker import BreakerSettings, CircuitBreaker
from firstline_edge.links.chain import LinkChain
from firstline_edge.outbox.delivery import Delivery, DeliverySettings
from firstline_edge.outbox.item import expire
from firstline_edge.outbox.store import Outbox, OutboxItem

DOWN = errors.LinkDownError("refused")


def merge(provisional: InferResponse, rows: tuple[int, ...], correction: InferResponse, _digest: str) -> InferResponse:
    assert rows == (0, 2)
    assert provisional.output("probabilities").shape[0] == 3
    return correction


class House:
    """A delivery between a real outbox and a real chain over one scripted link, on a simulated clock."""

    def __init__(self, path: Path) -> None:
        self.clock = SimulatedClock()
        self.link = ScriptedLink("link")
        breaker = CircuitBreaker(self.clock, random.Random(1), BreakerSettings(failure_threshold=1, open_s=1.0))
        self.chain = LinkChain([self.link], [breaker], self.clock)
        self.outbox = Outbox(path, clock=self.clock)
        self.announced: list[InferResponse] = []
        self.deaf = False
        self.delivery = Delivery(
            self.outbox,
            self.chain,
            merge,
            self.clock,
            random.Random(2),
            on_correction=self.announce,
            max_age_s=3600.0,
            settings=DeliverySettings(concurrency=2, refusals=3),
        )

    async def announce(self, answer: InferResponse) -> None:
        if self.deaf:
            raise DOWN
        self.announced.append(answer)

    def cut(self) -> None:
        self.link.error = self.link.probe_error = DOWN

    def mend(self) -> None:
        self.link.error = self.link.probe_error = None

    async def promise(self) -> str:
        asked = request(2)
        provisional = response(asked, Status.PROVISIONAL, rows=3)
        await self.outbox.put(OutboxItem(asked, (0, 2), provisional, self.clock.wall_s()))
        return asked.request_id

    async def until_empty(self, step_s: float = 5.0, steps: int = 200) -> None:
        """Lets time pass until nothing waits; the disk's threads run in real time, so they are given some."""
        for _ in range(steps):
            if self.outbox.depth == 0:
                return
            await self.clock.advance(step_s)
            await self.outbox.pending(1)  # one trip through the reader's thread
            await settle()
        pytest.fail("the outbox did not drain")

    async def until_calls(self, count: int) -> None:
        async with asyncio.timeout(5):
            while len(self.link.calls) < count:
                await self.outbox.pending(1)
                await settle()

    async def until_asleep(self) -> None:
        """Until delivery waits for time to pass; only where the link's prober does not."""
        async with asyncio.timeout(5):
            while not self.clock.sleepers:
                await self.outbox.pending(1)
                await settle()

    async def status(self, request_id: str) -> Status:
        found = await self.outbox.answer(request_id, "local")
        assert found.answer is not None
        return found.answer.status


@pytest.fixture
async def house(tmp_path: Path) -> AsyncIterator[House]:
    built = House(tmp_path / "outbox" / "outbox.db")
    await built.chain.start()
    task = asyncio.create_task(built.delivery.run())
    yield built
    assert not task.done()
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    await built.chain.close()
    built.outbox.close()


async def test_what_waits_is_sent_and_its_answer_stored_and_announced(house: House) -> None:
    promised = [await house.promise() for _ in range(5)]
    await house.until_empty()
    assert [asked.request_id for asked, _ in house.link.calls] == promised
    for request_id in promised:
        assert await house.status(request_id) is Status.FINAL
    assert sorted(answer.answer.request_id for answer in house.announced if answer.answer) == sorted(promised)
    for answer in house.announced:
        assert answer.answer is not None
        assert [attempt.outcome for attempt in answer.answer.attempts] == ["ok"]


async def test_offline_nothing_is_tried_and_everything_follows_on_reconnect(house: House) -> None:
    house.cut()
    promised = [await house.promise() for _ in range(3)]
    await house.until_calls(1)  # the breaker opens at the first
    calls = len(house.link.calls)
    await house.clock.advance(600.0)
    assert len(house.link.calls) == calls
    assert house.outbox.depth == 3
    house.mend()
    await house.until_empty()
    for request_id in promised:
        assert await house.status(request_id) is Status.FINAL
    assert {asked.request_id for asked, _ in house.link.calls} == set(promised)


async def test_a_promise_expires_by_age_also_while_the_link_is_down(house: House) -> None:
    house.cut()
    request_id = await house.promise()
    await house.until_calls(1)
    await house.until_empty(step_s=400.0, steps=20)
    found = await house.outbox.answer(request_id, "local")
    assert found.answer is not None
    assert (found.answer.status, found.answer.reason) == (Status.EXPIRED, Reason.LINK_DOWN)
    assert {row.status for row in found.answer.rows} == {Status.EXPIRED}
    assert [answer.answer.status for answer in house.announced if answer.answer] == [Status.EXPIRED]


async def test_a_permanent_refusal_ends_at_once_as_a_cloud_error(house: House) -> None:
    house.link.error = errors.ModelMismatchError("another bundle")
    request_id = await house.promise()
    await house.until_empty()
    found = await house.outbox.answer(request_id, "local")
    assert found.answer is not None
    assert (found.answer.status, found.answer.reason) == (Status.EXPIRED, Reason.CLOUD_ERROR)
    assert len(house.link.calls) == 1


async def test_a_model_that_fails_is_tried_a_few_times(house: House) -> None:
    house.link.error = errors.InferenceError("broken")
    request_id = await house.promise()
    await house.until_empty()
    assert await house.status(request_id) is Status.EXPIRED
    assert len(house.link.calls) == 3


@pytest.mark.parametrize(
    "passing", [errors.QueueFullError("later", retry_after_s=7.0), errors.UnauthorizedError("a new token is coming")]
)
async def test_what_may_pass_is_tried_again_with_the_same_id(house: House, passing: errors.FirstlineError) -> None:
    house.link.error = passing
    request_id = await house.promise()
    for _ in range(8):
        await house.until_asleep()
        await house.clock.advance(60.0)
    assert len(house.link.calls) > 3
    assert house.outbox.depth == 1
    house.link.error = None
    await house.until_empty()
    assert await house.status(request_id) is Status.FINAL
    assert {asked.request_id for asked, _ in house.link.calls} == {request_id}


async def test_retry_after_is_respected(house: House) -> None:
    house.link.error = errors.QueueFullError("later", retry_after_s=50.0)
    await house.promise()
    await house.until_asleep()
    await house.clock.advance(49.0)
    await settle()
    assert house.clock.sleepers == 1
    house.link.error = None
    await house.clock.advance(1.5)
    await house.until_calls(2)


async def test_failures_in_a_row_are_spaced_ever_further(house: House) -> None:
    house.link.error = errors.QueueFullError("later")
    await house.promise()
    moments: list[float] = []

    async def note(_asked: InferRequest, _timeout_s: float) -> InferResponse:
        moments.append(house.clock.monotonic_s())
        raise errors.QueueFullError("later")

    house.link.answer = note
    while len(moments) < 20:
        await house.until_asleep()
        await house.clock.advance(0.5)
    gaps = [after - before for before, after in itertools.pairwise(moments)]
    assert max(gaps) <= 60.5
    assert sum(gaps[:5]) < 32.0 < sum(gaps[-5:])


async def test_an_answer_that_cannot_be_merged_does_not_block_the_others(house: House) -> None:
    bad = await house.promise()

    async def spoil(asked: InferRequest, _timeout_s: float) -> InferResponse:
        if asked.request_id == bad:
            raise ValueError("a bug")
        return response(asked)

    house.link.answer = spoil
    good = [await house.promise() for _ in range(4)]
    await house.until_empty()
    assert await house.status(bad) is Status.EXPIRED
    for request_id in good:
        assert await house.status(request_id) is Status.FINAL


async def test_an_announcement_that_fails_costs_nothing(house: House) -> None:
    house.deaf = True
    request_id = await house.promise()
    await house.until_empty()
    assert await house.status(request_id) is Status.FINAL


async def test_an_idle_delivery_does_nothing_at_all(house: House) -> None:
    await settle()
    sleepers = house.clock.sleepers
    await house.clock.advance(100_000.0)
    assert house.clock.sleepers == sleepers == 0
    assert house.link.calls == []


def test_only_rows_that_waited_expire() -> None:
    asked = request(3)
    provisional = response(asked, Status.PROVISIONAL)
    assert provisional.answer is not None
    final = response(asked).answer
    assert final is not None
    mixed = (*provisional.answer.rows[:1], *final.rows[1:])
    mixed_answer = replace(provisional, answer=replace(provisional.answer, rows=mixed))
    answer = expire(mixed_answer, Reason.CLOUD_ERROR).answer
    assert answer is not None
    assert [row.status for row in answer.rows] == [Status.EXPIRED, Status.FINAL, Status.FINAL]
    assert [row.reason for row in answer.rows] == [Reason.CLOUD_ERROR, Reason.UNCERTAIN, Reason.UNCERTAIN]
