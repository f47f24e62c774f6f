import asyncio
import random
import time
from collections.abc import AsyncIterator

import pytest
from support.escalations import ScriptedLink, request, response, settle

from firstline_core import errors
from firstline_core.clock import SimulatedClock
from firstline_core.types import InferRequest, InferResponse, Privacy
from firstline_edge.links.breaker import BreakerSettings, CircuitBreaker
from firstline_edge.links.chain import ChainSettings, LinkChain, attempts_of

DOWN = errors.LinkDownError("refused")


class House:
    """Two links on a simulated clock."""

    def __init__(self) -> None:
        self.clock = SimulatedClock()
        self.first, self.second = ScriptedLink("first"), ScriptedLink("second")
        rng = random.Random(1)
        settings = BreakerSettings(failure_threshold=2, open_s=1.0)
        breakers = [CircuitBreaker(self.clock, rng, settings) for _ in range(2)]
        self.chain = LinkChain(
            [self.first, self.second], breakers, self.clock, ChainSettings(timeout_s=30.0, probe_timeout_s=2.0)
        )

    def cut(self) -> None:
        for link in (self.first, self.second):
            link.error = link.probe_error = DOWN

    def mend(self) -> None:
        for link in (self.first, self.second):
            link.error = link.probe_error = None

    async def fail_until_open(self) -> None:
        while self.chain.available:
            with pytest.raises(errors.LinkDownError):
                await self.chain.infer(request(), None)
        await settle()


@pytest.fixture
async def house() -> AsyncIterator[House]:
    built = House()
    await built.chain.start()
    await settle()
    yield built
    await built.chain.close()
    assert built.first.closed
    assert built.second.closed


async def test_the_preferred_link_answers(house: House) -> None:
    asked = request()
    answer, attempts = await house.chain.infer(asked, None)
    assert answer.answer is not None
    assert answer.answer.request_id == asked.request_id
    assert [attempt.outcome for attempt in attempts] == ["ok"]
    assert house.first.calls == [(asked, 30.0)]
    assert house.second.calls == []


async def test_a_link_fault_moves_on_to_the_next_within_the_deadline(house: House) -> None:
    async def slow_fault(_request: InferRequest, _timeout_s: float) -> InferResponse:
        await house.clock.sleep(0.25)
        raise DOWN

    house.first.answer = slow_fault
    asked = asyncio.create_task(house.chain.infer(request(), 1.0))
    await settle()
    await house.clock.advance(0.25)
    _, attempts = await asked
    assert [(attempt.outcome, attempt.ms) for attempt in attempts] == [("link_down", 250.0), ("ok", 0.0)]
    assert house.second.calls[0][1] == pytest.approx(0.75)


async def test_no_time_left_means_no_further_try(house: House) -> None:
    async def slow_fault(_request: InferRequest, timeout_s: float) -> InferResponse:
        await house.clock.sleep(timeout_s)
        raise errors.RemoteTimeoutError("late")

    house.first.answer = slow_fault
    asked = asyncio.create_task(house.chain.infer(request(), 1.0))
    await settle()
    await house.clock.advance(1.0)
    with pytest.raises(errors.RemoteTimeoutError) as raised:
        await asked
    assert [attempt.outcome for attempt in attempts_of(raised.value)] == ["remote_timeout"]
    assert house.second.calls == []


async def test_a_deadline_in_the_past_tries_nothing(house: House) -> None:
    await house.clock.advance(5.0)
    with pytest.raises(errors.DeadlineExceededError) as raised:
        await house.chain.infer(request(), 4.0)
    assert attempts_of(raised.value) == ()
    assert house.first.calls == []


@pytest.mark.parametrize(
    "said",
    [
        errors.ModelMismatchError("no"),
        errors.QueueFullError("later"),
        errors.InferenceError("broken"),
        errors.DeadlineExceededError("late"),
    ],
)
async def test_what_the_gateway_says_ends_the_matter_and_opens_nothing(
    house: House, said: errors.FirstlineError
) -> None:
    house.first.error = said
    for _ in range(5):
        with pytest.raises(type(said)) as raised:
            await house.chain.infer(request(), None)
        assert [attempt.outcome for attempt in attempts_of(raised.value)] == [said.code]
    assert house.second.calls == []
    assert house.chain.states() == {"first": "closed", "second": "closed"}


@pytest.mark.parametrize(
    "refused", [errors.PayloadTooLargeError("too large for the broker"), errors.UnauthorizedError("an old token")]
)
async def test_what_one_link_may_not_carry_is_tried_on_the_next(house: House, refused: errors.FirstlineError) -> None:
    house.first.error = refused
    for _ in range(5):
        _, attempts = await house.chain.infer(request(), None)
        assert [attempt.outcome for attempt in attempts] == [refused.code, "ok"]
    assert house.chain.states()["first"] == "closed"
    house.second.error = refused
    with pytest.raises(type(refused)):
        await house.chain.infer(request(), None)


@pytest.mark.parametrize(
    "fault", [errors.NotReadyError("starting"), errors.CapacityError("nobody behind the proxy"), DOWN]
)
async def test_link_faults_open_the_breaker(house: House, fault: errors.FirstlineError) -> None:
    house.first.error = house.first.probe_error = fault
    for _ in range(3):
        await house.chain.infer(request(), None)
    assert house.chain.states() == {"first": "open", "second": "closed"}
    assert len(house.first.calls) == 2


async def test_a_dead_link_costs_the_first_request_only(house: House) -> None:
    house.cut()
    with pytest.raises(errors.LinkDownError):
        await house.chain.infer(request(), None)
    await settle()
    assert house.chain.states() == {"first": "open", "second": "open"}
    assert len(house.first.calls) == len(house.second.calls) == 1


async def test_once_open_a_dead_link_costs_no_io_and_no_time(house: House) -> None:
    house.cut()
    await house.fail_until_open()
    calls = len(house.first.calls) + len(house.second.calls)
    started_s = time.perf_counter()
    for _ in range(1000):
        with pytest.raises(errors.LinkDownError) as raised:
            await house.chain.infer(request(), None)
    assert (time.perf_counter() - started_s) / 1000 < 0.001
    assert len(house.first.calls) + len(house.second.calls) == calls
    assert attempts_of(raised.value) == ()
    assert raised.value.retry_after_s is not None
    assert 0 < raised.value.retry_after_s <= 1.0


async def test_probes_in_the_background_bring_the_link_back(house: House) -> None:
    house.cut()
    await house.fail_until_open()
    calls = len(house.first.calls)
    waiting = asyncio.create_task(house.chain.wait_available())
    await house.clock.advance(20.0)
    assert house.first.probes > 2
    assert not waiting.done()
    house.mend()
    await house.clock.advance(30.0)
    await asyncio.wait_for(waiting, 1)
    assert house.chain.available
    assert len(house.first.calls) == calls  # no request paid for that
    await house.chain.infer(request(), None)


async def test_a_device_that_boots_offline_knows_before_its_first_request() -> None:
    house = House()
    house.cut()
    await house.chain.start()
    await settle()
    assert not house.chain.available
    with pytest.raises(errors.LinkDownError):
        await house.chain.infer(request(), None)
    assert house.first.calls == []
    await house.chain.close()


async def test_short_deadlines_do_not_condemn_a_link_but_have_it_probed(house: House) -> None:
    house.first.error = errors.RemoteTimeoutError("late")
    probes = house.first.probes
    for _ in range(5):
        await house.chain.infer(request(), house.clock.monotonic_s() + 0.05)
        await settle()
    assert house.chain.states()["first"] == "closed"
    assert house.first.probes == probes + 5
    house.first.probe_error = DOWN
    await house.chain.infer(request(), house.clock.monotonic_s() + 0.05)
    await settle()
    assert house.chain.states()["first"] == "open"


async def test_a_probe_that_breaks_does_not_end_the_probing(house: House) -> None:
    house.cut()
    await house.fail_until_open()
    house.first.probe_error = ValueError("a bug")
    await house.clock.advance(60.0)
    house.mend()
    await house.clock.advance(60.0)
    assert house.chain.states()["first"] == "closed"


async def test_local_only_never_reaches_a_link(house: House) -> None:
    with pytest.raises(errors.RequestError, match="local_only"):
        await house.chain.infer(request(privacy=Privacy.LOCAL_ONLY), None)
    assert house.first.calls == house.second.calls == []


async def test_without_links_it_says_so_at_once() -> None:
    chain = LinkChain([], [], SimulatedClock())
    assert not chain.available
    with pytest.raises(errors.LinkDownError):
        await chain.infer(request(), None)


async def test_a_cancelled_request_is_no_verdict(house: House) -> None:
    async def hang(asked: InferRequest, _timeout_s: float) -> InferResponse:
        await house.clock.sleep(100)
        return response(asked)

    house.first.answer = hang
    for _ in range(5):
        task = asyncio.create_task(house.chain.infer(request(), None))
        await settle()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    assert house.chain.states()["first"] == "closed"
