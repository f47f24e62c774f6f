import asyncio
import contextlib
import random
import time
from collections.abc import AsyncIterator, Iterator

import pytest
from msgspec.structs import replace
from support.escalations import ScriptedLink, begun, request, response, settle
from support.logs import captured_lines

from firstline_core import errors
from firstline_core.clock import SimulatedClock
from firstline_core.protocol.http import StaleConnectionError
from firstline_core.types import Attempt, InferRequest, InferResponse, Privacy, Status
from firstline_edge.cloud.breaker import CircuitBreaker
from firstline_edge.cloud.chain import LinkChain
from firstline_edge.cloud.link import LinkBusyError, LinkReport, LinkStatus, MessageRefusedError
from firstline_edge.settings.settings import BreakerSection

DOWN = errors.LinkDownError("refused")


class House:
    """Two links on a simulated clock."""

    def __init__(self) -> None:
        self.clock = SimulatedClock()
        self.first, self.second = ScriptedLink("first"), ScriptedLink("second")
        rng = random.Random(1)
        settings = BreakerSection(failure_threshold=2, open_ms=1000)
        self.breakers = [CircuitBreaker(self.clock, rng, settings) for _ in range(2)]
        self.chain = LinkChain([self.first, self.second], self.breakers, self.clock)

    async def infer(self, infer_request: InferRequest | None = None, timeout_s: float | None = None) -> InferResponse:
        """Asks; what was tried is in `attempts`."""
        self.attempts: list[Attempt] = []
        deadline_s = None if timeout_s is None else self.clock.monotonic_s() + timeout_s
        return await self.chain.infer(infer_request or request(), deadline_s, self.attempts)

    @property
    def states(self) -> dict[str, str]:
        """Whether the breaker of each link is closed, open or half open."""
        return {name: breaker.state.value for name, breaker in zip(("first", "second"), self.breakers, strict=True)}

    @property
    def outcomes(self) -> list[str]:
        return [attempt.outcome for attempt in self.attempts]

    async def hang(self, _request: InferRequest, timeout_s: float) -> InferResponse:
        """A far side that takes requests and never answers."""
        await self.clock.sleep(timeout_s)
        raise errors.RemoteTimeoutError("late")

    def cut(self) -> None:
        for link in (self.first, self.second):
            link.error = link.probe_error = DOWN

    def mend(self) -> None:
        for link in (self.first, self.second):
            link.error = link.probe_error = None

    async def lose(self, link: ScriptedLink) -> None:
        """The link is down, and a probe notices it."""
        link.error = link.probe_error = DOWN
        link.probe_wanted.set()
        await settle()

    async def fail_until_open(self) -> None:
        while self.chain.available:
            with pytest.raises(errors.LinkDownError):
                await self.infer()
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
    infer_request = request()
    assert (await house.infer(infer_request)).answer.request_id == infer_request.request_id
    assert house.outcomes == ["ok"]
    assert house.first.calls == [(replace(infer_request, id=infer_request.request_id), 15.0)]
    assert house.second.calls == []


async def test_an_answer_to_another_request_is_a_failure_of_its_link(house: House) -> None:
    async def swap(_asked: InferRequest, _timeout_s: float) -> InferResponse:
        return response(request(id="another"))

    house.first.answer = swap
    with captured_lines() as lines:
        found = await house.infer()
    assert house.outcomes == ["protocol_error", "ok"]
    assert found.id == house.second.calls[0][0].request_id
    assert (house.first.discarded, house.second.discarded) == (1, 0)
    assert house.chain.rejected_answers() == {"first": 1, "second": 0}
    (line,) = (line for line in lines if line["event"] == "answer not accepted")
    assert line["link"] == "first" and "another" in line["error"]
    await house.infer()
    assert house.states["first"] != "closed"  # as after two other failures in a row


async def test_a_link_fault_moves_on_to_the_next_within_the_deadline(house: House) -> None:
    async def slow_fault(_request: InferRequest, _timeout_s: float) -> InferResponse:
        await house.clock.sleep(0.25)
        raise DOWN

    house.first.answer = slow_fault
    task = await begun(house.infer(timeout_s=1.0))
    await house.clock.advance(0.25)
    await task
    assert [(attempt.outcome, attempt.ms) for attempt in house.attempts] == [("link_down", 250.0), ("ok", 0.0)]
    assert house.second.calls[0][1] == pytest.approx(0.75)


async def test_hanging_link_leaves_half_of_the_time(house: House) -> None:
    house.first.answer = house.hang

    async def outcomes_within(timeout_s: float) -> list[str]:
        asking = await begun(house.infer(timeout_s=timeout_s))
        await house.clock.advance(timeout_s / 2)
        assert (await asking).answer is not None
        return house.outcomes

    assert await outcomes_within(1.98) == ["remote_timeout", "ok"]
    assert await outcomes_within(1.98) == ["ok"]  # no answer within 0.99 s: not asked for one again
    assert await outcomes_within(4.0) == ["remote_timeout", "ok"]  # more time than it was ever given
    assert house.states["first"] == "open"  # though it answers every probe
    assert await outcomes_within(30.0) == ["ok"]


async def test_the_only_usable_link_gets_all_the_time(house: House) -> None:
    await house.lose(house.second)
    assert house.states == {"first": "closed", "second": "open"}
    await house.infer(timeout_s=2.0)
    assert house.first.calls[-1][1] == 2.0


async def test_attempts_of_a_cancelled_request_are_recorded(house: House) -> None:
    house.first.error = DOWN
    house.second.answer = house.hang
    task = await begun(house.infer(timeout_s=2.0))
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert house.outcomes == ["link_down"]


async def test_no_time_left_means_no_further_try(house: House) -> None:
    async def slow_fault(_request: InferRequest, _timeout_s: float) -> InferResponse:
        await house.clock.sleep(1.0)
        raise errors.RemoteTimeoutError("late")

    house.first.answer = slow_fault
    task = await begun(house.infer(timeout_s=1.0))
    await house.clock.advance(1.0)
    with pytest.raises(errors.RemoteTimeoutError):
        await task
    assert house.outcomes == ["remote_timeout"]
    assert house.second.calls == []


async def test_a_deadline_in_the_past_tries_nothing(house: House) -> None:
    await house.clock.advance(5.0)
    with pytest.raises(errors.DeadlineExceededError):
        await house.infer(timeout_s=-1.0)
    assert house.outcomes == []
    assert house.first.calls == []


@pytest.mark.parametrize(
    "fault", [DOWN, errors.RemoteTimeoutError("late"), errors.ProtocolError("a portal"), errors.CapacityError("busy")]
)
async def test_retryable_errors_have_a_retry_time_at_once(house: House, fault: errors.FirstlineError) -> None:
    house.first.error = house.second.error = fault
    with pytest.raises(type(fault)) as raised:
        await house.infer()
    assert raised.value.retry_after_s == 1.0
    with pytest.raises(errors.DeadlineExceededError) as late:
        await house.infer(timeout_s=-1.0)
    assert late.value.retry_after_s == 1.0


async def test_retry_after_of_the_gateway_is_kept(house: House) -> None:
    house.first.error = errors.QueueFullError("later", retry_after_s=7.0)
    with pytest.raises(errors.QueueFullError) as raised:
        await house.infer()
    assert raised.value.retry_after_s == 7.0


@pytest.mark.parametrize(
    "error",
    [
        errors.ModelMismatchError("no"),
        errors.QueueFullError("later"),
        errors.InferenceError("broken"),
        errors.DeadlineExceededError("late"),
    ],
)
async def test_a_gateway_error_is_final_and_opens_no_breaker(house: House, error: errors.FirstlineError) -> None:
    house.first.error = error
    for _ in range(5):
        with pytest.raises(type(error)):
            await house.infer()
        assert house.outcomes == [error.code]
    assert house.second.calls == []
    assert house.states == {"first": "closed", "second": "closed"}


@pytest.mark.parametrize(
    ("refused", "retryable"),
    [
        (errors.PayloadTooLargeError("too large for the broker"), False),
        (errors.UnauthorizedError("an old token"), False),
        (MessageRefusedError("reason code 153"), True),
        (LinkBusyError("all connections are busy"), True),
    ],
)
async def test_refused_request_tries_next_link(house: House, refused: errors.FirstlineError, retryable: bool) -> None:
    house.first.error = refused
    for _ in range(5):
        await house.infer()
        assert house.outcomes == [refused.code, "ok"]
    house.second.error = refused
    for _ in range(5):
        with pytest.raises(type(refused)) as raised:
            await house.infer()
        assert raised.value.retryable is retryable
    assert house.states == {"first": "closed", "second": "closed"}


@pytest.mark.parametrize("broker_first", [True, False])
async def test_a_request_too_large_for_a_link_waits_for_another(house: House, broker_first: bool) -> None:
    too_large = errors.PayloadTooLargeError("too large for the broker")
    broker, other = (house.first, house.second) if broker_first else (house.second, house.first)
    broker.error, other.error, other.probe_error = too_large, DOWN, DOWN
    for _ in range(3):  # before and after the other link is known to be down
        with pytest.raises(errors.LinkError) as raised:
            await house.infer()
        assert raised.value.retryable
        await settle()
    assert house.states == {broker.name: "closed", other.name: "open"}
    other.error = other.probe_error = None
    house.chain.retry_now()
    await settle()
    assert (await house.infer()).answer.status is Status.FINAL


async def test_a_silent_kept_connection_is_replaced_and_not_learned_from(house: House) -> None:
    house.second.error = house.second.probe_error = DOWN
    answers = iter([StaleConnectionError("no byte"), None] * 3)

    async def stale_then_fine(infer_request: InferRequest, timeout_s: float) -> InferResponse:
        error = next(answers)
        await house.clock.sleep(timeout_s / 2 if error else 0.01)
        if error:
            raise error
        return response(infer_request)

    house.first.answer = stale_then_fine
    for _ in range(3):
        asking = await begun(house.infer(timeout_s=4.0))
        while not asking.done():
            await house.clock.advance(0.01)
        await asking
        assert house.outcomes == ["remote_timeout", "ok"]
    assert house.states["first"] == "closed"
    timing = house.chain.timings()["first"]
    assert timing.total_p95_ms < 30


async def test_a_connection_that_stays_silent_is_the_links_fault(house: House) -> None:
    house.first.error = StaleConnectionError("no byte")
    await house.infer()
    assert house.outcomes == ["remote_timeout", "remote_timeout", "ok"]
    await settle()
    assert house.first.probes == 2  # it is probed at once, over a connection of its own


@pytest.mark.parametrize(
    "fault", [errors.NotReadyError("starting"), errors.CapacityError("nobody behind the proxy"), DOWN]
)
async def test_link_faults_open_the_breaker(house: House, fault: errors.FirstlineError) -> None:
    house.first.error = house.first.probe_error = fault
    for _ in range(3):
        await house.infer()
    assert house.states == {"first": "open", "second": "closed"}
    assert len(house.first.calls) == 2


async def test_a_dead_link_costs_the_first_request_only(house: House) -> None:
    house.cut()
    with pytest.raises(errors.LinkDownError):
        await house.infer()
    await settle()
    assert house.states == {"first": "open", "second": "open"}
    assert len(house.first.calls) == len(house.second.calls) == 1
    started_s = time.perf_counter()
    for _ in range(1000):
        with pytest.raises(errors.LinkDownError) as raised:
            await house.infer()
    assert (time.perf_counter() - started_s) / 1000 < 0.001
    assert len(house.first.calls) == len(house.second.calls) == 1
    assert house.outcomes == []
    assert 0 < raised.value.retry_after_s <= 1.0


async def test_probes_in_the_background_bring_the_link_back(house: House) -> None:
    house.cut()
    await house.fail_until_open()
    calls = len(house.first.calls)
    waiting = asyncio.create_task(house.chain.wait_recovery(house.chain.recoveries))
    await house.clock.advance(20.0)
    assert house.first.probes > 2
    assert not waiting.done()
    house.mend()
    await house.clock.advance(30.0)
    await asyncio.wait_for(waiting, 1)
    assert house.chain.available
    assert len(house.first.calls) == calls  # no request paid for that
    await house.infer()


async def test_each_links_return_is_a_recovery(house: House) -> None:
    """The outbox may wait for this link, although the other one works: it carries what is too large for the other."""
    house.first.error = house.first.probe_error = DOWN
    await house.infer()
    await settle()
    assert house.states == {"first": "open", "second": "closed"}
    waiting = asyncio.create_task(house.chain.wait_recovery(house.chain.recoveries))
    await house.clock.advance(20.0)
    assert not waiting.done()
    house.mend()
    await house.clock.advance(30.0)
    await asyncio.wait_for(waiting, 1)


async def test_another_certificate_ends_the_wait_for_a_probe(house: House) -> None:
    house.cut()
    await house.fail_until_open()
    await house.clock.advance(300.0)  # the waits are long by now
    house.mend()
    house.chain.retry_now()
    await settle()
    assert house.states == {"first": "closed", "second": "closed"}


async def test_a_device_that_boots_offline_knows_before_its_first_request() -> None:
    house = House()
    house.cut()
    await house.chain.start()
    await settle()
    assert not house.chain.available
    with pytest.raises(errors.LinkDownError):
        await house.infer()
    assert house.first.calls == []
    await house.chain.close()


async def test_a_timeout_of_a_short_deadline_only_starts_a_probe(house: House) -> None:
    house.first.error = errors.RemoteTimeoutError("late")
    probes = house.first.probes
    for _ in range(5):
        await house.infer(timeout_s=0.05)
        await settle()
    assert house.states["first"] == "closed"
    assert house.first.probes == probes + 5
    house.first.probe_error = DOWN
    await house.infer(timeout_s=0.05)
    await settle()
    assert house.states["first"] == "open"


@pytest.mark.parametrize("timeout_s", [0.6, 1.98, 30.0])
async def test_timeouts_of_usual_deadlines_open_the_breaker(house: House, timeout_s: float) -> None:
    house.cut()
    await house.fail_until_open()
    house.mend()
    await house.clock.advance(10.0)
    await house.infer()  # both are up and proven
    house.first.error = house.second.error = errors.RemoteTimeoutError("late")
    for _ in range(2):
        with pytest.raises(errors.RemoteTimeoutError):
            await house.infer(timeout_s=timeout_s)
    assert not house.chain.available


async def test_a_lost_connection_is_noticed_before_the_next_request(house: House) -> None:
    await house.lose(house.first)
    assert house.states == {"first": "open", "second": "closed"}
    assert house.first.calls == []


async def test_a_failed_probe_proves_nothing_against_a_request_that_was_answered_meanwhile(house: House) -> None:
    async def slow_failure(_timeout_s: float) -> None:
        await house.clock.sleep(2.0)
        raise errors.RemoteTimeoutError("late")

    house.first.probe = slow_failure
    house.first.probe_wanted.set()
    await settle()
    await house.infer()
    await house.clock.advance(2.0)
    assert house.states["first"] == "closed"


async def test_a_probe_that_breaks_does_not_end_the_probing(house: House) -> None:
    house.cut()
    await house.fail_until_open()
    house.first.probe_error = ValueError("a bug")
    await house.clock.advance(60.0)
    house.mend()
    await house.clock.advance(60.0)
    assert house.states["first"] == "closed"


async def test_local_only_never_reaches_a_link(house: House) -> None:
    with pytest.raises(errors.RequestError, match="local_only"):
        await house.infer(request(privacy=Privacy.LOCAL_ONLY))
    assert house.first.calls == house.second.calls == []


async def test_a_device_without_links_refuses_at_once() -> None:
    chain = LinkChain([], [], SimulatedClock())
    assert not chain.available
    with pytest.raises(errors.LinkDownError):
        await chain.infer(request(), None, [])


async def test_a_cancelled_request_is_no_verdict(house: House) -> None:
    async def hang(infer_request: InferRequest, _timeout_s: float) -> InferResponse:
        await house.clock.sleep(100)
        return response(infer_request)

    house.first.answer = hang
    for _ in range(5):
        task = await begun(house.infer())
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    assert house.states["first"] == "closed"


async def test_a_report_says_whether_a_link_works_and_why_not(house: House) -> None:
    fresh = House()
    assert fresh.chain.reports()["first"] == LinkReport(LinkStatus.UNKNOWN, "first.example")
    assert house.chain.reports()["first"].state is LinkStatus.UP  # probed
    await house.lose(house.first)
    report = house.chain.reports()["first"]
    assert (report.state, report.problem) == (LinkStatus.DOWN, "refused")


async def test_refused_token_shows_until_accepted_and_warns_once(house: House) -> None:
    house.first.error = house.second.error = errors.UnauthorizedError("The token is unknown.")
    with captured_lines() as lines:
        for _ in range(3):
            with pytest.raises(errors.UnauthorizedError):
                await house.infer()
        house.first.probe_wanted.set()  # a probe shows no token, so it proves nothing about it
        await settle()
    assert [line["link"] for line in lines if line["level"] == "warning"] == ["first", "second"]
    assert house.chain.reports()["first"] == LinkReport(LinkStatus.REFUSED, "first.example", "The token is unknown.")
    house.mend()
    await house.infer()
    assert house.chain.reports()["first"] == LinkReport(LinkStatus.UP, "first.example")


async def test_a_broker_that_refuses_probes_shows_as_refused_until_it_takes_one(house: House) -> None:
    house.first.error = house.first.probe_error = errors.UnauthorizedError("Wrong password.")
    house.first.probe_wanted.set()
    await settle()
    assert house.chain.reports()["first"] == LinkReport(LinkStatus.REFUSED, "first.example", "Wrong password.")
    house.mend()
    await house.clock.advance(1.0)
    await settle()
    assert house.chain.reports()["first"].state is LinkStatus.UP


class TestTiming:
    """The times of a link are measured at every call and every probe."""

    async def take(self, house: House, seconds: float, *, size_rows: int = 1) -> None:
        async def slowly(infer_request: InferRequest, _timeout_s: float) -> InferResponse:
            await house.clock.sleep(seconds)
            return response(infer_request)

        house.first.answer = slowly
        asking = await begun(house.infer(request(size_rows)))
        await house.clock.advance(seconds)
        await asking

    async def test_a_chain_that_was_never_used_predicts_what_its_probes_took(self, house: House) -> None:
        assert house.chain.predicted_s(1000) == pytest.approx(0, abs=1e-3)
        assert LinkChain([], [], house.clock).predicted_s(1000) is None
        assert house.chain.timings() == {"first": None, "second": None}

    async def test_answers_are_timed_with_the_gateways_share(self, house: House) -> None:
        await house.lose(house.second)
        for _ in range(10):
            await self.take(house, 0.2)
        assert house.chain.predicted_s(7) == pytest.approx(0.2, rel=0.06)
        report = house.chain.timings()["first"]
        assert report.total_p95_ms == pytest.approx(200, rel=0.06)
        assert report.service_p50_ms == pytest.approx(1.5, rel=0.06)
        assert report.network_p50_ms == pytest.approx(198.5, rel=0.06)

    async def test_bytes_in_flight_delay_the_next_request(self, house: House) -> None:
        await house.lose(house.second)
        free_s = 0.0

        async def one_by_one(infer_request: InferRequest, _timeout_s: float) -> InferResponse:
            nonlocal free_s
            free_s = max(free_s, house.clock.monotonic_s()) + 0.1
            await house.clock.sleep(free_s - house.clock.monotonic_s())
            return response(infer_request)

        house.first.answer = one_by_one
        size_bytes = request().size_bytes
        for _ in range(10):
            asking = [asyncio.create_task(house.infer()) for _ in range(4)]
            await settle()
            assert house.chain._links[0].timing.ahead_bytes(size_bytes) == 4 * size_bytes
            for _ in range(4):
                await house.clock.advance(0.1)
            await asyncio.gather(*asking)
        assert house.chain._links[0].timing.ahead_bytes(size_bytes) == 0
        assert house.chain.predicted_s(size_bytes) == pytest.approx(0.1, rel=0.1)
        asking = [asyncio.create_task(house.infer()) for _ in range(4)]
        await settle()
        assert house.chain.predicted_s(size_bytes) == pytest.approx(0.5, rel=0.1)
        for task in asking:
            task.cancel()
        await settle()
        assert house.chain.predicted_s(size_bytes) == pytest.approx(0.1, rel=0.3)

    async def test_calls_from_before_an_outage_are_not_measured(self, house: House) -> None:
        await house.lose(house.second)
        for _ in range(3):
            await self.take(house, 0.1)
        size_bytes = request().size_bytes
        before = house.chain.predicted_s(size_bytes)

        async def after_the_outage(infer_request: InferRequest, _timeout_s: float) -> InferResponse:
            await house.clock.sleep(8.0)
            return response(infer_request)

        house.first.answer = after_the_outage
        asking = await begun(house.infer())
        timing = house.chain._links[0].timing
        assert timing.ahead_bytes(size_bytes) == size_bytes
        house.first.probe_error = DOWN
        house.first.probe_wanted.set()
        await settle()
        assert not house.chain.available
        house.first.probe_error = None
        for _ in range(4):
            await house.clock.advance(1.0)
            await settle()
        assert house.chain.available and timing.ahead_bytes(size_bytes) == 0
        await house.clock.advance(4.0)
        await asking
        assert house.chain.predicted_s(size_bytes) == before

    async def test_the_best_link_counts_and_one_that_cannot_be_used_does_not(self, house: House) -> None:
        await self.take(house, 1.0)
        assert house.chain.predicted_s(7) == pytest.approx(0, abs=1e-3)  # the second one's probe
        await house.lose(house.second)
        assert house.chain.predicted_s(7) == pytest.approx(1.0, rel=0.06)
        house.cut()
        house.first.probe_wanted.set()
        await settle()
        assert house.chain.predicted_s(7) is None

    async def test_timeouts_and_cancellations_are_lower_bounds(self, house: House) -> None:
        await house.lose(house.second)
        house.first.answer = house.hang
        asking = await begun(house.infer(timeout_s=0.5))
        await house.clock.advance(0.5)
        with pytest.raises(errors.RemoteTimeoutError):
            await asking
        assert (house.chain.predicted_s(7) or 0) > 0.5
        asking = await begun(house.infer())
        await house.clock.advance(3.0)
        asking.cancel()
        await settle()
        assert (house.chain.predicted_s(7) or 0) > 3.0

    async def test_if_every_link_is_too_slow_the_fastest_is_tried_first(self, house: House) -> None:
        for link, seconds in zip(house.chain._links, (2.0, 0.8), strict=True):
            link.timing.answered(7, seconds, house.clock.monotonic_s())
        await house.infer(timeout_s=1.0)
        assert (len(house.first.calls), len(house.second.calls)) == (0, 1)

    async def test_refusals_are_not_timed(self, house: House) -> None:
        for error in (DOWN, errors.QueueFullError("later"), errors.ModelMismatchError("no")):
            house.first.error = house.second.error = error
            with pytest.raises(errors.FirstlineError):
                await house.infer()
        assert house.chain.timings() == {"first": None, "second": None}

    async def test_old_measurements_lose_weight(self, house: House) -> None:
        await house.lose(house.second)
        for _ in range(50):
            await self.take(house, 1.0)
        assert house.chain.predicted_s(7) is not None
        await house.clock.advance(600)
        assert house.chain.predicted_s(7) is None


class TestRetryBudget:
    async def test_failover_uses_the_retry_budget(self, house: House) -> None:
        house.first.error = LinkBusyError("all connections are busy")  # opens no breaker
        for _ in range(100):
            with contextlib.suppress(errors.RemoteTimeoutError):
                await house.infer()
        assert len(house.first.calls) == 100
        assert 10 + 20 - 2 <= len(house.second.calls) <= 10 + 20
        assert house.chain.retries.retries == len(house.second.calls)
        assert house.chain.retries.denied == 100 - len(house.second.calls)

    async def test_a_skipped_link_uses_no_budget(self, house: House) -> None:
        await house.lose(house.first)
        for _ in range(50):
            await house.infer()
        assert house.chain.retries.retries == 0


class TestToll:
    """A request that is too expensive over one link may be sent over the next, and each try is paid separately."""

    def budget_gate(self, house: House, *refused: str) -> list[str]:
        paid: list[str] = []

        @contextlib.contextmanager
        def budget_gate(_request: InferRequest, link: str) -> Iterator[None]:
            if link in refused:
                raise errors.BudgetExceededError(f"no money for {link}")
            paid.append(link)
            try:
                yield
            except errors.FirstlineError:
                paid[-1] += " in vain"
                raise

        house.chain._budget_gate = budget_gate
        return paid

    async def test_an_unaffordable_link_is_skipped_without_blame(self, house: House) -> None:
        paid = self.budget_gate(house, "first")
        for _ in range(5):
            await house.infer()
        assert (paid, house.outcomes, house.first.calls) == (["second"] * 5, ["ok"], [])
        assert house.states == {"first": "closed", "second": "closed"}

    async def test_each_try_enters_the_budget_gate(self, house: House) -> None:
        paid = self.budget_gate(house)
        house.first.error = DOWN
        await house.infer()
        assert paid == ["first in vain", "second"]

    async def test_an_unaffordable_second_try_is_not_made(self, house: House) -> None:
        self.budget_gate(house, "second")
        house.first.error = DOWN
        with pytest.raises(errors.LinkDownError):  # it may come back, and with it the answer
            await house.infer()
        assert house.second.calls == []

    async def test_a_call_earns_a_retry_once_and_only_if_it_is_sent(self, house: House) -> None:
        while house.chain.retries.may_retry():
            pass
        self.budget_gate(house, "first")
        for _ in range(4):  # a fifth of a retry each
            await house.infer()
        self.budget_gate(house, "first", "second")
        for _ in range(4):
            with pytest.raises(errors.BudgetExceededError):
                await house.infer()
        assert not house.chain.retries.may_retry()

    async def test_if_no_link_is_affordable_the_error_says_so(self, house: House) -> None:
        self.budget_gate(house, "first", "second")
        with pytest.raises(errors.BudgetExceededError, match="first"):
            await house.infer()
        assert house.attempts == []


async def test_a_dead_link_gets_one_probe_at_a_time_and_no_request(house: House) -> None:
    house.cut()
    await house.fail_until_open()
    calls, probes = len(house.first.calls), house.first.probes
    running, most = 0, 0

    async def probe(_timeout_s: float) -> None:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await house.clock.sleep(2.0)
        running -= 1
        raise DOWN

    house.first.probe = probe
    for _ in range(200):
        with pytest.raises(errors.LinkDownError):
            await house.infer()
        house.first.probe_wanted.set()
        await house.clock.advance(0.1)
    assert most == 1
    assert (len(house.first.calls), house.first.probes) == (calls, probes)
