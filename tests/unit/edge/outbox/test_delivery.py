import asyncio
import contextlib
import itertools
import random
from collections.abc import AsyncIterator, Iterable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace
from support import escalations
from support.edge import NoContracts
from support.escalations import ScriptedLink, request, response, row, settle
from support.logs import captured_lines

from firstline_core import errors
from firstline_core.clock import SYSTEM_CLOCK, SimulatedClock
from firstline_core.errors import FirstlineError
from firstline_core.ids import new_request_id
from firstline_core.tasks.base import DeclaredOutputs
from firstline_core.tasks.classification import Classification
from firstline_core.tasks.detection import Detection
from firstline_core.types import Attempt, InferRequest, InferResponse, Reason, Status, Tensor, Tier
from firstline_edge.cloud.breaker import CircuitBreaker
from firstline_edge.cloud.chain import LinkChain
from firstline_edge.cloud.client import ModelRefusals
from firstline_edge.models.models import Models
from firstline_edge.outbox.delivery import CorrectionClient, Delivery, Merge
from firstline_edge.outbox.item import expire
from firstline_edge.outbox.outbox import Outbox, OutboxItem
from firstline_edge.outbox.pacing import RateSettings
from firstline_edge.requests.full_answers import check_answer, merge
from firstline_edge.settings.settings import BreakerSection

DOWN = errors.LinkDownError("refused")
AT_ONCE = RateSettings(begin_per_s=1e6, least_per_s=1e6)
"""No limit on the rate: these tests check the order, and `test_pacing.py` the rate."""


class BusyOutbox(Outbox):
    """An outbox that reports whether the disk is at work, because its threads run in real time."""

    at_work = ended = 0

    @contextlib.contextmanager
    def _counted(self) -> Iterator[None]:
        self.at_work += 1
        try:
            yield
        finally:
            self.at_work -= 1
            self.ended += 1

    async def _readable(self, query: Any) -> Any:
        with self._counted():
            return await super()._readable(query)

    async def put(self, item: OutboxItem) -> None:
        with self._counted():
            await super().put(item)

    async def finish(self, request_id: str, final: InferResponse) -> None:
        with self._counted():
            await super().finish(request_id, final)

    async def until_quiet(self) -> None:
        """Returns when every task waits for the clock or for another task, and the disk is idle."""
        while True:
            await asyncio.sleep(0.0002 if self.at_work else 0)
            if not self.at_work:
                ended = self.ended
                await settle()
                if not self.at_work and ended == self.ended:
                    return


async def pass_time(clock: SimulatedClock, outbox: BusyOutbox, seconds: float, step_s: float) -> None:
    await outbox.until_quiet()
    for _ in range(round(seconds / step_s)):
        await clock.advance(step_s)
        await outbox.until_quiet()


class House:
    """A delivery between a real outbox and a real chain over one scripted link, on a simulated clock."""

    def __init__(self, path: Path) -> None:
        self.clock = SimulatedClock()
        self.link = ScriptedLink("link")
        breaker = CircuitBreaker(self.clock, random.Random(1), BreakerSection(failure_threshold=1, open_ms=1000))
        self.chain = LinkChain([self.link], [breaker], self.clock)
        self.outbox = BusyOutbox(path, clock=self.clock)
        self.announced: list[InferResponse] = []
        self.causes: list[str] = []
        self.model_refusals = ModelRefusals(self.clock)
        self.merge: Merge = merge
        client = CorrectionClient(
            self.chain,
            Models([]),
            NoContracts(),
            self.model_refusals,
            self.clock,
            refusals=3,
            merge=lambda *answers: self.merge(*answers),  # noqa: PLW0108 (a test replaces it)
        )
        self.delivery = Delivery(
            self.outbox,
            client,
            self.chain,
            clock=self.clock,
            rng=random.Random(2),
            max_age_s=3600.0,
            pace=AT_ONCE,
            on_correction=self.note,
        )

    def note(self, answer: InferResponse, cause: str, _trace: object) -> None:
        self.announced.append(answer)
        self.causes.append(cause)

    def cut(self) -> None:
        self.link.error = self.link.probe_error = DOWN

    def mend(self) -> None:
        self.link.error = self.link.probe_error = None

    async def promise(
        self, reason: Reason = Reason.LINK_DOWN, *, tried: str = "", hurried: bool = False, **fields: Any
    ) -> str:
        infer_request = request(2, **fields)
        provisional = response(infer_request, Status.PROVISIONAL, rows=3)
        first, _, third = provisional.answer.rows
        answer = replace(provisional.answer, reason=reason, rows=(first, row(Status.FINAL), third))
        if tried:
            answer = replace(answer, attempts=(*answer.attempts, Attempt(Tier.CLOUD, tried, 500.0)))
        provisional = replace(provisional, answer=answer)
        item = OutboxItem(infer_request, (0, 2), provisional, self.clock.wall_s())
        await self.outbox.put(item)
        if not hurried:
            self.outbox.stored.get_nowait()
        return infer_request.request_id

    def note_moments(self) -> dict[str, float]:
        """Returns when each request reaches the gateway, from now on."""
        moments: dict[str, float] = {}

        async def note(infer_request: InferRequest, _timeout_s: float) -> InferResponse:
            moments[infer_request.request_id] = self.clock.monotonic_s()
            return response(infer_request)

        self.link.answer = note
        return moments

    def sent(self, request_id: str) -> int:
        """How often it was sent."""
        return sum(sent.request_id == request_id for sent, _ in self.link.calls)

    async def until_empty(self, step_s: float = 5.0, steps: int = 200) -> None:
        for _ in range(steps):
            await self.outbox.until_quiet()
            if self.outbox.depth == 0:
                return
            await self.clock.advance(step_s)
        pytest.fail("the outbox did not drain")

    async def pass_time(self, seconds: float, step_s: float = 1.0) -> None:
        await pass_time(self.clock, self.outbox, seconds, step_s)

    async def statuses(self, request_ids: Iterable[str]) -> set[Status]:
        return {await self.status(request_id) for request_id in request_ids}

    async def status(self, request_id: str) -> Status:
        return (await self.outbox.answer(request_id, "local")).answer.status


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


async def test_a_promise_is_sent_and_its_answer_stored(house: House) -> None:
    promised = [await house.promise() for _ in range(5)]
    await house.until_empty()
    assert [sent.request_id for sent, _ in house.link.calls] == promised
    assert all(sent.promised for sent, _ in house.link.calls)
    assert await house.statuses(promised) == {Status.FINAL}
    assert sorted(answer.answer.request_id for answer in house.announced if answer.answer) == sorted(promised)
    for answer in house.announced:
        assert [attempt.outcome for attempt in answer.answer.attempts] == ["ok", "ok"]  # the edge's, and the cloud's


async def test_offline_nothing_is_tried_and_everything_follows_on_reconnect(house: House) -> None:
    house.cut()
    promised = [await house.promise() for _ in range(3)]
    await house.outbox.until_quiet()  # the breaker opens at the first
    calls = len(house.link.calls)
    await house.clock.advance(600.0)
    assert len(house.link.calls) == calls
    assert house.outbox.depth == 3
    house.mend()
    await house.until_empty()
    assert await house.statuses(promised) == {Status.FINAL}
    assert {sent.request_id for sent, _ in house.link.calls} == set(promised)


async def test_a_promise_expires_by_age_also_while_the_link_is_down(house: House) -> None:
    house.cut()
    request_id = await house.promise()
    await house.outbox.until_quiet()
    await house.until_empty(step_s=400.0, steps=20)
    found = await house.outbox.answer(request_id, "local")
    assert (found.answer.status, found.answer.reason) == (Status.EXPIRED, Reason.LINK_DOWN)
    assert [row.status for row in found.answer.rows] == [Status.EXPIRED, Status.FINAL, Status.EXPIRED]
    assert [answer.answer.status for answer in house.announced if answer.answer] == [Status.EXPIRED]


async def test_a_permanent_refusal_ends_at_once_as_a_cloud_error(house: House) -> None:
    house.link.error = errors.InvalidTensorError("not an image")
    request_id = await house.promise()
    await house.until_empty()
    found = await house.outbox.answer(request_id, "local")
    assert (found.answer.status, found.answer.reason) == (Status.EXPIRED, Reason.CLOUD_ERROR)
    assert found.answer.refusal == "not an image"
    assert len(house.link.calls) == 1


def refuse(*_: object) -> InferResponse:
    raise errors.ProtocolError("the answer does not say how it came about")


@pytest.mark.parametrize(("error", "merge"), [(errors.InferenceError("broken"), merge), (None, refuse)])
async def test_failures_are_retried_few_times(house: House, error: errors.FirstlineError | None, merge: Merge) -> None:
    house.link.error, house.merge = error, merge
    request_id = await house.promise()
    await house.until_empty()
    assert await house.status(request_id) is Status.EXPIRED
    assert len(house.link.calls) == 3


@pytest.mark.parametrize(
    "passing", [errors.QueueFullError("later", retry_after_s=7.0), errors.UnauthorizedError("a new token is coming")]
)
async def test_a_retry_has_the_same_id(house: House, passing: errors.FirstlineError) -> None:
    house.link.error = passing
    request_id = await house.promise()
    for _ in range(8):
        await house.outbox.until_quiet()
        await house.clock.advance(60.0)
    assert len(house.link.calls) > 3
    assert house.outbox.depth == 1
    house.link.error = None
    await house.until_empty()
    assert await house.status(request_id) is Status.FINAL
    assert {sent.request_id for sent, _ in house.link.calls} == {request_id}


@pytest.mark.parametrize(("said_s", "least_s"), [(50.0, 50.0), (30 * 86_400.0, 60.0)])
async def test_retry_after_is_respected_within_reason(house: House, said_s: float, least_s: float) -> None:
    house.link.error = errors.QueueFullError("later", retry_after_s=said_s)
    await house.promise()
    await house.outbox.until_quiet()
    house.link.error = None
    await house.pass_time(least_s - 1)
    assert len(house.link.calls) == 1
    await house.pass_time(3)  # and some jitter
    assert len(house.link.calls) == 2
    assert house.outbox.depth == 0


async def test_a_link_that_comes_back_ends_every_wait(house: House) -> None:
    house.link.error = errors.CapacityError("a proxy with nobody behind it", retry_after_s=50.0)
    house.link.probe_error = DOWN
    request_id = await house.promise()
    await house.outbox.until_quiet()
    house.mend()
    await house.pass_time(6)  # the breaker's second, and the spread
    assert await house.status(request_id) is Status.FINAL


async def test_a_promise_expires_on_time_whatever_the_gateway_asks_for(house: House) -> None:
    house.link.error = errors.QueueFullError("later", retry_after_s=60.0)
    request_id = await house.promise()
    await house.pass_time(3590, step_s=10.0)
    assert await house.status(request_id) is Status.PROVISIONAL
    await house.pass_time(10, step_s=1.0)
    assert await house.status(request_id) is Status.EXPIRED


async def test_failures_in_a_row_back_off(house: House) -> None:
    await house.promise()
    moments: list[float] = []

    async def note(_asked: InferRequest, _timeout_s: float) -> InferResponse:
        moments.append(house.clock.monotonic_s())
        raise errors.QueueFullError("later")

    house.link.answer = note
    while len(moments) < 20:
        await house.outbox.until_quiet()
        await house.clock.advance(0.5)
    gaps = [after - before for before, after in itertools.pairwise(moments)]
    assert max(gaps) <= 61.5
    assert sum(gaps[:5]) < 40.0 < sum(gaps[-5:])


@pytest.mark.parametrize(
    "failure",
    [
        errors.NotReadyError("the model is not loaded"),
        errors.QueueFullError("busy"),
        errors.CapacityError("a bare 503"),
        errors.ProtocolError("a portal"),
        errors.InferenceError("broken"),
        ValueError("a bug"),
    ],
    ids=lambda failure: type(failure).__name__,
)
async def test_failures_of_one_model_block_no_other(house: House, failure: Exception) -> None:
    async def some(infer_request: InferRequest, _timeout_s: float) -> InferResponse:
        if infer_request.model == "bad":
            raise failure
        return response(infer_request)

    house.link.answer = some
    bad = [await house.promise(model="bad") for _ in range(8)]  # more than are sent at once
    good = [await house.promise() for _ in range(4)]
    await house.pass_time(120)
    assert await house.statuses(good) == {Status.FINAL}
    assert await house.status(bad[-1]) in (Status.PROVISIONAL, Status.EXPIRED)


async def test_a_failed_promise_goes_after_the_others_of_its_model(house: House) -> None:
    bad: list[str] = []

    async def some(infer_request: InferRequest, _timeout_s: float) -> InferResponse:
        if infer_request.request_id in bad:
            raise errors.QueueFullError("too much for me")
        return response(infer_request)

    house.link.answer = some
    for _ in range(8):
        bad.append(new_request_id())
        await house.promise(request_id=bad[-1])
    good = [await house.promise() for _ in range(8)]
    await house.pass_time(60)
    assert await house.statuses(good) == {Status.FINAL}
    sent_ids = [sent.request_id for sent, _ in house.link.calls]
    assert sent_ids.index(good[-1]) < 24  # each bad one once, and little more


async def test_a_full_gateway_does_not_get_every_promise_in_turn(house: House) -> None:
    house.link.error = errors.QueueFullError("busy")
    for _ in range(40):
        await house.promise()
    await house.pass_time(60)
    assert len(house.link.calls) <= 30


@pytest.mark.parametrize("spoilt", [np.ones((2, 3), np.float32), np.full((2, 10), np.nan, np.float32)])
async def test_an_answer_that_cannot_be_merged_does_not_block_the_others(house: House, spoilt: Any) -> None:
    async def spoil(infer_request: InferRequest, _timeout_s: float) -> InferResponse:
        answer = response(infer_request)
        return replace(answer, outputs=(Tensor("probabilities", spoilt),)) if infer_request.model == "bad" else answer

    house.link.answer = spoil
    bad = [await house.promise(model="bad") for _ in range(4)]
    good = [await house.promise() for _ in range(4)]
    await house.pass_time(120)
    assert await house.statuses(bad) == {Status.PROVISIONAL}  # its true answer may come yet
    assert await house.statuses(good) == {Status.FINAL}


async def test_an_answer_of_another_model_is_refused_and_the_promise_waits(house: House) -> None:
    request_id = await house.promise(full_model_digest="a" * 64)
    await house.pass_time(60)
    assert await house.status(request_id) is Status.PROVISIONAL
    assert house.chain.rejected_answers()["link"] == len(house.link.calls) == house.link.discarded > 1


async def test_an_answer_the_disk_refuses_is_fetched_again(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = await house.promise(), await house.promise()
    gate, at_once = asyncio.Event(), [0]

    async def slow_second(infer_request: InferRequest, _timeout_s: float) -> InferResponse:
        if infer_request.request_id == second:
            at_once[0] += 1
            assert at_once[0] == 1
            await gate.wait()
            at_once[0] -= 1
        return response(infer_request)

    async def full(*_: object) -> None:
        raise errors.CapacityError("disk full")

    house.link.answer = slow_second
    with monkeypatch.context() as patch:
        patch.setattr(house.outbox, "finish", full)
        await house.pass_time(60)
        gate.set()
        await house.pass_time(60)
        tries = [sent.request_id for sent, _ in house.link.calls].count(first)
        assert 1 <= tries <= 20
    await house.until_empty()
    assert await house.status(first) is await house.status(second) is Status.FINAL


async def test_a_late_gateway_gets_the_request_again_only_after_a_while(house: House) -> None:
    moments = house.note_moments()
    late = [await house.promise(Reason.DEADLINE, tried="remote_timeout") for _ in range(8)]
    at_once = [await house.promise(reason) for reason in (Reason.REQUESTED, Reason.DEADLINE)]  # neither was sent before
    await house.pass_time(6, step_s=0.1)
    assert house.outbox.depth == 0
    assert all(moments[request_id] <= 0.2 for request_id in at_once)
    waits = [moments[request_id] for request_id in late]
    assert max(waits) <= 5.2
    assert sum(wait > 0.5 for wait in waits) >= 6
    assert len({round(wait, 1) for wait in waits}) >= 5


class TestHurry:
    async def test_an_awaited_promise_overtakes_slow_ones(self, house: House) -> None:
        gate = asyncio.Event()
        slow = await house.promise()

        async def answer(infer_request: InferRequest, _timeout_s: float) -> InferResponse:
            if infer_request.request_id == slow:
                await gate.wait()
            return response(infer_request)

        house.link.answer = answer
        await house.outbox.until_quiet()
        waiting = await house.promise(Reason.REQUESTED)
        hurried = await house.promise(Reason.REQUESTED, hurried=True)
        await house.outbox.until_quiet()
        assert await house.status(hurried) is Status.FINAL
        assert (house.sent(slow), house.sent(waiting)) == (1, 0)
        gate.set()
        await house.until_empty()

    async def test_an_awaited_promise_is_sent_and_reported_once(self, house: House) -> None:
        promised = [await house.promise(Reason.REQUESTED, hurried=True) for _ in range(20)]
        await house.until_empty()
        assert [house.sent(request_id) for request_id in promised] == [1] * 20
        announced = [correction.answer.request_id for correction in house.announced if correction.answer is not None]
        assert sorted(announced) == sorted(promised)

    async def test_a_failed_awaited_promise_waits_with_the_others(self, house: House) -> None:
        house.link.error = errors.QueueFullError("Full.", retry_after_s=2.0)
        promised = await house.promise(Reason.REQUESTED, hurried=True)
        await house.outbox.until_quiet()
        assert house.sent(promised) == 1
        house.mend()
        await house.pass_time(1.0)
        assert house.sent(promised) == 1
        await house.pass_time(3.0)
        assert (house.sent(promised), await house.status(promised)) == (2, Status.FINAL)

    async def test_a_dead_link_is_not_tried(self, house: House) -> None:
        house.cut()
        await house.promise()
        await house.outbox.until_quiet()
        promised = await house.promise(Reason.REQUESTED, hurried=True)
        await house.outbox.until_quiet()
        assert house.sent(promised) == 0
        house.mend()
        await house.until_empty()
        assert house.sent(promised) == 1

    async def test_only_awaited_promises_are_sent_at_once(self, house: House) -> None:
        late = [await house.promise(Reason.DEADLINE, tried="remote_timeout", hurried=True) for _ in range(4)]
        await house.outbox.until_quiet()
        assert sum(house.sent(request_id) for request_id in late) < 4  # they leave the gateway alone for a while
        await house.until_empty()


async def test_redeliveries_use_the_retry_budget(house: House) -> None:
    """A gateway that was too slow for twenty requests gets them again little by little; new ones pass them by."""
    moments = house.note_moments()
    again = [await house.promise(Reason.LINK_DOWN, tried="remote_timeout") for _ in range(30)]
    new = [await house.promise() for _ in range(5)]
    await house.pass_time(1, step_s=0.1)
    assert all(request_id in moments for request_id in new)
    # Ten that were saved up, one a second, and a fifth of all calls.
    assert 11 <= sum(request_id in moments for request_id in again) <= 15
    assert house.chain.retries.denied > 0
    await house.pass_time(30, step_s=0.5)
    assert house.outbox.depth == 0


async def test_a_long_backlog_that_must_wait_is_not_read_meanwhile(house: House) -> None:
    for _ in range(200):
        await house.promise(Reason.LINK_DOWN, tried="remote_timeout")
    read = 0
    pending = house.outbox.pending

    async def counted(limit: int, **skipped: Any) -> list[OutboxItem]:
        nonlocal read
        found = await pending(limit, **skipped)
        read += len(found) + len(skipped["skip_ids"])
        return found

    house.outbox.pending = counted
    await house.pass_time(20.0)
    assert 20 <= len(house.link.calls) <= 60
    assert read <= 5 * len(house.link.calls)
    assert not await pending(1, skip_reached_gateway=True)


async def test_first_deliveries_use_no_retry_budget(house: House) -> None:
    promised = [await house.promise(tried="link_down") for _ in range(30)]
    await house.pass_time(1, step_s=0.1)
    assert all(house.sent(request_id) == 1 for request_id in promised)
    assert house.chain.retries.denied == 0


async def test_promises_expire_on_a_device_whose_links_are_gone(tmp_path: Path) -> None:
    clock = SimulatedClock()
    outbox = BusyOutbox(tmp_path / "outbox.db", clock=clock)
    infer_request = request()
    await outbox.put(OutboxItem(infer_request, (0,), response(infer_request, Status.PROVISIONAL), clock.wall_s()))
    chain = LinkChain([], [], clock)
    client = CorrectionClient(chain, Models([]), NoContracts(), ModelRefusals(clock), clock)
    delivery = Delivery(outbox, client, chain, clock=clock, rng=random.Random(1), max_age_s=60.0)
    task = asyncio.create_task(delivery.run())
    await pass_time(clock, outbox, 61.0, 1.0)
    assert (await outbox.answer(infer_request.request_id, "local")).answer.status is Status.EXPIRED
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    outbox.close()


async def test_an_idle_delivery_does_nothing_at_all(house: House) -> None:
    await settle()
    sleepers = house.clock.sleepers
    await house.clock.advance(100_000.0)
    assert house.clock.sleepers == sleepers == 0
    assert house.link.calls == []


def test_only_rows_that_waited_expire() -> None:
    infer_request = request(3)
    provisional = response(infer_request, Status.PROVISIONAL)
    final = response(infer_request).answer
    mixed = (*provisional.answer.rows[:1], *final.rows[1:])
    mixed_answer = replace(provisional, answer=replace(provisional.answer, rows=mixed))
    answer = expire(mixed_answer, Reason.CLOUD_ERROR).answer
    assert [row.status for row in answer.rows] == [Status.EXPIRED, Status.FINAL, Status.FINAL]
    assert [row.reason for row in answer.rows] == [Reason.CLOUD_ERROR, Reason.UNCERTAIN, Reason.UNCERTAIN]


async def test_waiting_corrections_are_logged_once_per_cause(house: House) -> None:
    house.link.error = errors.UnauthorizedError("The token is unknown.")
    with captured_lines() as lines:
        for _ in range(3):
            await house.promise()
        await house.pass_time(30.0)
        assert len(house.link.calls) > 3
        house.mend()
        await house.until_empty()
    warnings = [line for line in lines if line["level"] == "warning" and line["event"] == "corrections wait"]
    assert [line["error"] for line in warnings] == ["The token is unknown."]
    assert "outbox promise ended" not in {line["event"] for line in lines}


@pytest.mark.parametrize(
    "error", [errors.ModelMismatchError("Other digests."), errors.UnknownModelError("No such version.")]
)
async def test_promises_wait_for_a_gateway_that_lacks_the_bundle(house: House, error: errors.FirstlineError) -> None:
    house.link.error = error
    with captured_lines() as lines:
        promised = [await house.promise() for _ in range(3)]
        await house.pass_time(1800.0)
        assert house.model_refusals.message_of(("digits", "1")) == (
            f"{error.message} Corrections wait 30 more min for the gateway to get this device's bundle."
        )
        assert house.outbox.depth == 3
        assert len(house.link.calls) < 1800 / 60 * 8  # at most some each minute, not each promise at once
        house.mend()
        await house.until_empty()
    assert await house.statuses(promised) == {Status.FINAL}
    assert [line["error"] for line in lines if line["level"] == "warning"] == [error.message] * 2
    assert house.model_refusals.message_of(("digits", "1")) == ""


async def test_promises_end_if_the_gateway_lacks_the_bundle_for_long(house: House) -> None:
    house.link.error = errors.ModelMismatchError("Other digests.")
    await house.promise()
    await house.pass_time(1800.0)
    late = [await house.promise() for _ in range(2)]
    await house.pass_time(1900.0)
    assert [(await house.outbox.answer(request_id, "local")).answer.reason for request_id in late] == [
        Reason.CLOUD_ERROR
    ] * 2
    assert house.causes[-2:] == ["Other digests."] * 2
    assert house.model_refusals.message_of(("digits", "1")) == "Other digests."


# Corrections of promises whose bundle the device has replaced meanwhile.


PROMISED, OTHER = "f" * 64, "0" * 64


class Cloud:
    """Answers with probabilities, as the gateway's full model of the promised bundle does."""

    def __init__(self, value: float) -> None:
        self.value = value

    async def infer(
        self, request: InferRequest, deadline_s: float, attempts: list[Any], declared: DeclaredOutputs
    ) -> InferResponse:
        found = replace(escalations.response(request, value=self.value), id=request.request_id)
        check_answer(request, found, declared)
        return found


class Contracts:
    """Notes the models whose contract had a notice."""

    def __init__(self) -> None:
        self.noticed: list[object] = []

    def alarm_of(self, model: object) -> None:
        return None

    def apply_notice(self, model: object, notice: object) -> None:
        self.noticed.append(model)


def client(models: dict[str, Any], value: float = 0.75) -> CorrectionClient:
    """A device that holds `models` by version."""
    by_version = {version: SimpleNamespace(manifest=manifest) for version, manifest in models.items()}
    found = SimpleNamespace(find=lambda name, version="": by_version.get(version or max(by_version, default="")))
    refusals = ModelRefusals(SYSTEM_CLOCK)
    return CorrectionClient(Cloud(value), found, Contracts(), refusals, SYSTEM_CLOCK)


def manifest(task: Classification | Detection, full_digest: str) -> SimpleNamespace:
    return SimpleNamespace(
        task=task, full_digest=full_digest, full=None, outputs_of=lambda _model: task.declared(rounded=True, cut=True)
    )


def promise() -> OutboxItem:
    infer_request = replace(escalations.request(1), full_model_digest=PROMISED)
    first = escalations.response(infer_request, Status.PROVISIONAL, value=0.25)
    likeliest = np.full((1, 10), 0.25, np.float32)
    likeliest[0, 3] = 0.5
    return OutboxItem(infer_request, (0,), replace(first, outputs=(Tensor("probabilities", likeliest),)), 0.0)


DIGITS = Classification(tuple("0123456789"))


@pytest.mark.parametrize(
    "models",
    [
        {},
        {"2": manifest(Classification(("a", "b")), OTHER)},
        {"2": manifest(Detection(("person",)), OTHER)},
        {"1": manifest(replace(DIGITS, independent=True), PROMISED), "2": manifest(Detection(("person",)), OTHER)},
    ],
    ids=["nothing is held", "fewer labels", "another task", "both versions are held"],
)
async def test_a_correction_of_an_earlier_bundle_is_delivered(models: dict[str, Any]) -> None:
    corrected, refusal = await client(models).correct(promise())
    assert refusal == ""
    assert (corrected.answer.status, corrected.answer.changed) == (Status.FINAL, True)
    assert corrected.output("probabilities").tolist() == [[0.75] * 10]


@pytest.mark.parametrize(("full_digest", "notices"), [(PROMISED, 1), (OTHER, 0)])
async def test_a_notice_concerns_the_promised_bundle_alone(full_digest: str, notices: int) -> None:
    asking = client({"1": manifest(DIGITS, full_digest)}, value=0.1)
    await asking.correct(promise())
    assert len(asking.contracts.noticed) == notices


async def test_correction_out_of_range_is_refused_for_earlier_bundles() -> None:
    with pytest.raises(FirstlineError, match="outside of 0 to 1"):
        await client({}, value=-7.0).correct(promise())
