"""Servers as executors of the pool, in simulated time: choice, retries, hedges, ejection, deadlines, readiness."""

import asyncio
import gc
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from functools import partial
from typing import Any, TypeVar

import numpy as np
import pytest
from support.executor import run_earliest
from support.far_servers import MANIFEST, SERVED, FarGateway, M, row
from support.waiting import result_of, until

from firstline_core import errors
from firstline_core.clock import SimulatedClock
from firstline_core.protocol.http_client import HttpReply
from firstline_core.protocol.limits import DEFAULT_LIMITS
from firstline_core.protocol.oip import Encoded
from firstline_core.telemetry.trace import CURRENT, received
from firstline_core.types import Arrays, Tensor
from firstline_gateway.executors.base import Outcome
from firstline_gateway.executors.dispatch.dispatcher import Dispatcher
from firstline_gateway.executors.dispatch.member import Member
from firstline_gateway.executors.oip.dialects import FirstlineModel
from firstline_gateway.executors.oip.server import ServerGroup, open_servers
from firstline_gateway.models.repository import ServedModel
from firstline_gateway.settings.settings import OipSection

T = TypeVar("T")
E = TypeVar("E", bound=errors.FirstlineError)


class Site:
    """Some far gateways, and the pool that asks them."""

    def __init__(
        self, servers: int = 2, model: type[FirstlineModel] = FirstlineModel, name: str = "", **found: object
    ) -> None:
        self.clock = SimulatedClock()
        self.servers = [FarGateway(self.clock) for _ in range(servers)]

        def server_model(served: ServedModel) -> FirstlineModel:
            return model(served, DEFAULT_LIMITS)

        group = ServerGroup(
            {M: server_model(SERVED)}, server_model, OipSection(**found), ThreadPoolExecutor(1), 8, self.clock
        )
        transports = {f"http://far-{number}": server for number, server in enumerate(self.servers)}
        members = open_servers(group, transports, partial(Member, name), sessions=0)
        for member in members:
            member.place(SERVED, {})
        self.pool = Dispatcher(members, clock=self.clock)

    async def until(self, awaited: Awaitable[T], step_s: float = 0.001) -> T:
        return await result_of(awaited, self.clock, step_s)

    async def ask(self, *requests: tuple[float, ...], timeout_s: float | None = None) -> list[Outcome]:
        return await self.until(self.begin(*requests, timeouts_s=[timeout_s] * len(requests)))

    async def failure(self, expected: type[E]) -> E:
        """Returns the error of a request."""
        (outcome,) = await self.ask((0.5,))
        assert isinstance(outcome, expected)
        return outcome

    async def works(self) -> None:
        (outcome,) = await self.ask((0.5,))
        assert values(outcome) == [row(0.5)]

    def fail(self, error: errors.FirstlineError | None) -> None:
        for server in self.servers:
            server.error = error

    def begin(
        self, *requests: tuple[float, ...], timeouts_s: Sequence[float | None] = ()
    ) -> asyncio.Task[list[Outcome]]:
        """Sends requests in one batch; by default one of one row, without a deadline."""
        requests = requests or ((0.5,),)
        inputs = [{"x": np.array(values, np.float32).reshape(-1, 1)} for values in requests]
        now_s = self.clock.monotonic_s()
        due_s = [None if each is None else now_s + each for each in timeouts_s or [None] * len(requests)]
        return asyncio.ensure_future(self._outcomes(inputs, due_s))

    async def _outcomes(self, inputs: list[Tensor], due_s: list[float | None]) -> list[Outcome]:
        """One outcome for each request, also where no server answers."""
        try:
            return await run_earliest(self.pool, M, inputs, due_s)
        except errors.EngineUnavailableError as error:
            return [error] * len(inputs)

    def repeats(self, why: str) -> float:
        return self.pool.report().repeats[why,]

    async def warm(self, count: int = 40) -> None:
        """Lets it learn how long a row takes."""
        for _ in range(count):
            await self.ask((0.5,))
        for server in self.servers:
            server.requests.clear()

    @property
    def slots(self) -> int:
        """Batches that may run at the same moment."""
        return sum(member.slots for member in self.pool.members)

    @property
    def asked(self) -> list[int]:
        return [len(server.requests) for server in self.servers]


@asynccontextmanager
async def site(
    servers: int = 2,
    prepare: Callable[[Site], None] = lambda _: None,
    model: type[FirstlineModel] = FirstlineModel,
    name: str = "",
    **found: object,
) -> AsyncIterator[Site]:
    site = Site(servers, model, name, **found)
    prepare(site)
    await site.pool.start()
    yield site
    assert await site.pool.close(0)
    assert all(server.closed and not server.running for server in site.servers)


def values(outcome: Outcome) -> list[list[float]]:
    assert not isinstance(outcome, errors.FirstlineError), outcome
    return [[round(float(each), 3) for each in line] for line in outcome["probabilities"]]


async def test_a_batch_travels_as_one_request_and_each_gets_its_own_rows() -> None:
    async with site(1) as far:
        assert far.pool.problem_with(M) == ""
        one, two = await far.ask((0.25,), (0.5, 0.75))
        assert values(one) == [row(0.25)]
        assert values(two) == [row(0.5), row(0.75)]
        (request,) = far.servers[0].requests
        assert request.rows == 3
        assert request.full_model_digest == MANIFEST.full_digest
        assert request.binary_output
        assert (request.promised, request.audit, request.alarm) == (False, None, None)


async def test_more_rows_than_a_batch_may_have_travel_in_steps() -> None:
    async with site(1) as far:
        (outcome,) = await far.ask(tuple(number / 32 for number in range(20)))
        assert values(outcome) == [[round(each, 3) for each in row(number / 32)] for number in range(20)]
        assert [request.rows for request in far.servers[0].requests] == [8, 8, 4]


async def test_row_by_row_model_gets_one_row_per_request() -> None:
    class RowByRow(FirstlineModel):
        batch = 1

    async with site(1, model=RowByRow) as far:
        one, two = await far.ask((0.25,), (0.5, 0.75))
        assert [values(one), values(two)] == [[row(0.25)], [row(0.5), row(0.75)]]
        assert [request.rows for request in far.servers[0].requests] == [1, 1, 1]


async def test_one_bad_request_fails_alone() -> None:
    async with site(1) as far:
        good, bad, also_good = await far.ask((0.25,), (-1.0,), (0.5,))
        assert values(good) == [row(0.25)]
        assert isinstance(bad, errors.InvalidTensorError)
        assert values(also_good) == [row(0.5)]


async def test_the_server_with_fewer_batches_is_chosen() -> None:
    async with site(3, in_flight=4) as far:
        assert far.slots == 12
        await far.warm()
        batches = [far.begin() for _ in range(12)]
        await asyncio.sleep(0.01)
        assert [server.running for server in far.servers] == [4, 4, 4]
        await far.until(asyncio.gather(*batches))
        assert [server.running for server in far.servers] == [0, 0, 0]


async def test_a_batch_on_a_dying_server_is_answered_by_another() -> None:
    async with site(2) as far:
        batches = [far.begin((number / 16,)) for number in range(16)]
        await asyncio.sleep(0.01)
        await far.clock.advance(0.005)
        assert all(server.running for server in far.servers)
        far.servers[0].there = False
        outcomes = await far.until(asyncio.gather(*batches))
        assert [values(outcome) for (outcome,) in outcomes] == [[[round(e, 3) for e in row(n / 16)]] for n in range(16)]
        assert far.slots == 8, "its slots are gone with it"
        before = far.asked
        await far.ask((0.5,))
        assert far.asked == [before[0], before[1] + 1], "it gets no batch until it answers a probe"
        far.servers[0].there = True
        await far.clock.advance(2)
        assert far.slots == 16


async def test_without_servers_requests_fail_at_once_and_it_is_not_ready() -> None:
    def away(far: Site) -> None:
        for server in far.servers:
            server.there = False

    async with site(2, away) as far:
        assert "http://far-0 is away: it cannot be reached (Connection refused)." in far.pool.problem_with(M)
        error = await far.failure(errors.EngineUnavailableError)
        assert "far-1 is away" in error.message
        assert error.retry_after_s == 1
        assert far.slots == 0
        far.servers[1].there = True
        await far.clock.advance(1)
        assert far.pool.problem_with(M) == ""
        await far.works()


async def test_only_probes_mark_the_last_server_unavailable() -> None:
    async with site(1) as far:
        far.servers[0].there = False
        error = await far.failure(errors.EngineUnavailableError)
        assert "Connection refused" in error.message
        assert far.pool.problem_with(M) == ""
        await far.clock.advance(6)
        assert "is away" in far.pool.problem_with(M)


async def test_the_only_server_is_tried_again_after_it_loaded_a_model() -> None:
    async with site(1) as far:
        far.servers[0].error = errors.NotReadyError("It loads model 'm'.")
        error = await far.failure(errors.EngineUnavailableError)
        assert "It loads model 'm'" in error.message
        assert far.pool.problem_with(M) == ""
        far.servers[0].error = None
        await far.works()


@pytest.mark.parametrize("away", [False, True])
async def test_the_last_server_that_is_not_ejected_stays_available(away: bool) -> None:
    async with site(2) as far:
        await far.warm()
        far.servers[1].error = errors.FirstlineError("It broke.")
        for _ in range(10):
            await far.until(asyncio.gather(*(far.begin() for _ in range(4))))
        assert far.pool.report().up == {("http://far-0",): 1, ("http://far-1",): 0}
        far.servers[0].error, far.servers[0].there = errors.NotReadyError("It loads model 'm'."), not away
        await far.ask((0.5,))
        assert far.pool.report().up["http://far-0",] == 1
        far.servers[0].error, far.servers[0].there = None, True
        await far.works()


async def test_servers_without_a_name_are_not_reported_by_name() -> None:
    async with site(1) as far:
        assert far.pool.report().executors == ()


async def test_a_server_that_shuts_down_is_left_before_it_is_gone() -> None:
    async with site(2) as far:
        far.servers[0].error = errors.NotReadyError("This gateway is shutting down; send the request again.")
        far.servers[0].ready = False
        for _ in range(10):
            await far.works()
        assert far.asked[0] <= 1
        assert far.slots == 8


async def test_the_servers_of_an_executor_are_reported_as_one() -> None:
    async with site(2, name="far") as far:
        far.servers[0].error = errors.FirstlineError("It broke.")
        await far.ask((0.5,))
        report = far.pool.report()
        (executor,) = report.executors
        assert (executor.name, executor.problem, executor.slots) == ("far", "", 16)
        assert executor.batches["failed"] == 1
        assert (report.repeats["retry",], report.repeats.get(("executor_retry",))) == (1, None)
        for server in far.servers:
            server.there = False
        await far.clock.advance(6)
        assert far.pool.report().executors[0].problem.count(" is away: ") == 2


async def test_a_model_that_is_put_is_looked_for_on_every_server() -> None:
    async with site(2) as far:
        far.servers[1].digest = "f" * 64
        await far.until(far.pool.put(SERVED))
        assert [bool(member.problem_with(M)) for member in far.pool.members] == [False, True]
        await far.until(far.pool.drop(M))
        assert not any(member.models for member in far.pool.members)


async def test_a_model_that_a_check_loads_is_checked_in_a_thread() -> None:
    threads: list[threading.Thread] = []

    class Loading(FirstlineModel):
        check_loads = True

        def check(self, replies: Mapping[str, HttpReply]) -> str:
            threads.append(threading.current_thread())
            return super().check(replies)

    async with site(1, model=Loading) as far:
        await far.works()
    assert threads and threading.main_thread() not in threads


async def test_half_of_the_servers_stay_tried_if_all_fail() -> None:
    async with site(4) as far:
        await far.warm()
        far.fail(errors.EngineUnavailableError("The engine is gone."))
        for _ in range(100):
            await far.ask((0.5,))
        assert sum(far.pool.report().up.values()) == 2
        far.fail(None)
        await far.works()


@pytest.mark.parametrize(("failing", "up"), [(1, [0, 1, 1]), (3, [1, 1, 1])])
async def test_a_server_that_fails_more_often_than_the_others_is_ejected(failing: int, up: list[int]) -> None:
    """Every third batch fails, never two in a row."""
    async with site(3) as far:
        for server in far.servers[:failing]:
            server.error, server.fails_every = errors.EngineUnavailableError("The engine is gone."), 3
        ups = []
        for _ in range(100):
            await far.until(asyncio.gather(*(far.begin() for _ in range(6))))
            ups.append(list(far.pool.report().up.values()))
        assert min(ups) == up


@pytest.mark.parametrize("servers", [2, 3, 4])
@pytest.mark.parametrize("away", [False, True])
async def test_a_batch_that_fails_on_all_servers_goes_to_another_executor(servers: int, away: bool) -> None:
    async with site(servers + 1, name="far") as far:
        far.pool.members[-1].name = "near"
        far.servers[-1].seconds = 0.1  # so that the servers of "far" are preferred
        await far.warm()
        for server in far.servers[:-1]:
            server.error, server.there = errors.FirstlineError("It broke."), not away
        await far.works()
        failed = [member.outcomes["failed"] for member in far.pool.members]
        assert (sum(failed), failed[-1]) == (min(3, servers), 0)


async def test_a_batch_that_fails_on_all_servers_is_split_on_one() -> None:
    async with site(3) as far:
        await far.warm()
        far.fail(errors.InferenceError("No kernel."))
        outcomes = await far.ask(*[(number / 8,) for number in range(8)])
        assert all(isinstance(outcome, errors.InferenceError) for outcome in outcomes)
        assert sorted(far.asked) == [1, 1, 1 + 8]


@pytest.mark.parametrize(
    ("failure", "passed_on", "message", "retry_after_s"),
    [
        (errors.FirstlineError("It broke."), errors.InferenceError, "failed on this request: It broke.", None),
        (errors.UnauthorizedError("It has no valid key."), errors.EngineUnavailableError, "It has no valid key.", 1.0),
        (errors.RateLimitedError("It sends too much."), errors.EngineUnavailableError, "It sends too much.", 1.0),
        (errors.DeadlineExceededError("It waited."), errors.DeadlineExceededError, "It waited.", None),
    ],
)
async def test_the_last_servers_error_becomes_the_requests(
    failure: errors.FirstlineError, passed_on: type[errors.FirstlineError], message: str, retry_after_s: float | None
) -> None:
    async with site(2) as far:
        far.fail(failure)
        error = await far.failure(passed_on)
        assert message in error.message
        assert error.retry_after_s == retry_after_s


async def test_another_model_under_the_same_version_is_an_error() -> None:
    def other(far: Site) -> None:
        far.servers[0].digest = "f" * 64

    async with site(2, other) as far:
        for _ in range(10):
            await far.works()
        assert far.asked[0] == 0, "it was seen before it was asked"
        far.servers[1].said_digest = "e" * 64  # exchanged since it was looked at
        error = await far.failure(errors.EngineUnavailableError)
        assert "has full model 'eeee" in error.message
        assert MANIFEST.full_digest in error.message
        assert far.pool.problem_with(M) != ""
        far.servers[1].said_digest = ""
        await far.clock.advance(12)
        await far.works()


async def test_a_busy_server_is_avoided_and_all_busy_gives_a_retry_time() -> None:
    async with site(2) as far:
        far.servers[0].error = errors.QueueFullError("9 requests wait; come back later.", retry_after_s=3)
        for _ in range(20):
            await far.works()
        assert far.slots == 16, "to be busy is no failure"
        far.servers[1].error = far.servers[0].error
        error = await far.failure(errors.QueueFullError)
        assert error.retry_after_s == 3


@pytest.mark.parametrize("busy", [0, 1])
async def test_a_busy_server_gives_the_retry_time_if_the_other_one_breaks(busy: int) -> None:
    async with site(2) as far:
        far.servers[busy].error = errors.QueueFullError("9 requests wait; come back later.", retry_after_s=3)
        far.servers[1 - busy].error = errors.FirstlineError("It broke.")
        error = await far.failure(errors.QueueFullError)
        assert error.retry_after_s == 3


async def test_slow_server_is_hedged_and_the_slower_cut_off() -> None:
    async with site(2, hedge_share=0.05) as far:
        await far.warm()
        far.servers[0].seconds = 5.0
        for _ in range(4):
            began_s = far.clock.monotonic_s()
            await far.works()
            assert far.clock.monotonic_s() - began_s < 0.05
        assert far.repeats("hedge") >= 1
        assert far.servers[0].cancelled == far.repeats("hedge")
        assert far.servers[1].cancelled == 0
        report = far.pool.report()
        assert report.repeats["retry",] == 0
        assert report.batches["http://far-0", "cut_off"] == far.repeats("hedge")
        assert report.up == {("http://far-0",): 1, ("http://far-1",): 1}


async def test_hedges_stop_where_everything_is_slow() -> None:
    async with site(2, hedge_share=0.05) as far:
        await far.warm(100)
        for server in far.servers:
            server.seconds = 0.2
        for _ in range(60):
            await far.ask((0.5,))
        assert far.repeats("hedge") <= 5 + 0.05 * 160


@pytest.mark.parametrize("late", [0, 2])
async def test_a_late_batch_goes_to_another_executor_without_hedges(late: int) -> None:
    async with site(3, name="far", hedge_share=0.0) as far:
        near = far.pool.members[2]
        near.name, near.hedges = "near", None
        far.servers[2].seconds = 0.02  # so that another server of "far" would answer sooner
        await far.warm()
        far.servers[late].seconds = 5.0
        inputs = [{"x": np.array([[0.5]], np.float32)}]
        (outcome,) = await far.until(far.pool.run_on(far.pool.members[late], M, inputs, [None]))
        assert values(outcome) == [row(0.5)]
        repeats = far.pool.report().repeats
        assert (repeats["executor_late",], repeats["hedge",]) == (1, 0)


async def test_a_hedge_is_never_sent_to_a_full_server() -> None:
    async with site(2, in_flight=1) as far:
        await far.warm()
        for server in far.servers:
            server.seconds = 1.0
        await far.until(asyncio.gather(*(far.begin() for _ in range(2))))
        assert far.repeats("hedge") == 0


async def test_the_deadline_travels_and_the_most_urgent_of_a_batch_decides() -> None:
    async with site(1) as far:
        outcomes = await far.until(far.begin((0.25,), (0.5,), (0.75,), timeouts_s=[None, 0.5, 2.0]))
        assert all(values(outcome) for outcome in outcomes)
        (request,) = far.servers[0].requests
        assert request.deadline_s == pytest.approx(0.5, abs=0.01)
        assert far.servers[0].timeouts_s == [pytest.approx(0.75, abs=0.01)]


async def test_an_expired_request_does_not_fail_others() -> None:
    async with site(1) as far:
        far.servers[0].seconds = 0.4
        urgent, patient, endless = await far.until(far.begin((0.25,), (0.5,), (0.75,), timeouts_s=[0.1, 2.0, None]))
        assert isinstance(urgent, errors.DeadlineExceededError)
        assert values(patient) == [row(0.5)]
        assert values(endless) == [row(0.75)]


async def test_a_silent_server_is_abandoned_for_another_in_time() -> None:
    async with site(2, timeout_s=1.0, hedge_share=0.0) as far:
        far.servers[0].silent = True
        began_s = far.clock.monotonic_s()
        outcomes = await far.until(asyncio.gather(*(far.begin() for _ in range(8))), 0.01)
        assert [values(outcome) for (outcome,) in outcomes] == [[row(0.5)]] * 8
        assert 1 <= far.clock.monotonic_s() - began_s < 1.2
        (late,) = await far.until(far.begin((0.5,), timeouts_s=[0.3]), 0.01)
        assert isinstance(late, errors.DeadlineExceededError) or values(late) == [row(0.5)]


async def test_closing_cuts_off_what_takes_too_long() -> None:
    far = Site(1)
    await far.pool.start()
    running = far.begin()
    await asyncio.sleep(0.001)
    assert await far.pool.close(0.001)
    (outcome,) = await running
    assert isinstance(outcome, errors.NotReadyError)
    assert far.servers[0].cancelled == 1


async def test_batches_that_closing_cuts_off_are_not_retried() -> None:
    far = Site(2)
    await far.pool.start()
    running = [far.begin() for _ in range(4)]
    await until(lambda: sum(server.running for server in far.servers) >= 4)
    before = far.asked
    assert await far.pool.close(0.001)
    outcomes = await asyncio.gather(*running)
    assert all(isinstance(outcome, errors.NotReadyError) for (outcome,) in outcomes)
    assert all(server.closed and not server.running for server in far.servers)
    assert far.asked == before


async def test_closing_ends_a_probe_quietly() -> None:
    unhandled: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: unhandled.append(context))
    await _closed_during_a_probe()
    gc.collect()  # ended tasks, which report that their exceptions were never retrieved
    assert unhandled == []


async def _closed_during_a_probe() -> None:
    far = Site(2)
    await far.pool.start()
    await far.warm()
    await far.clock.advance(60)
    running = far.begin()
    await until(lambda: far.asked == [1, 1])
    assert await far.pool.close(0.001)
    await running


class Ponderous(FirstlineModel):
    """A model whose requests and answers take this process a while."""

    def prepare(self, inputs: Arrays) -> Arrays:
        time.sleep(0.002)
        return super().prepare(inputs)

    def encode(self, rows: Arrays, request_id: str, deadline_s: float | None, now_s: float) -> Encoded:
        time.sleep(0.003)
        return super().encode(rows, request_id, deadline_s, now_s)

    def read(self, reply: HttpReply, request_id: str, rows: int) -> Arrays:
        time.sleep(0.004)
        return super().read(reply, request_id, rows)


async def test_processing_time_is_reported_apart_from_server_time() -> None:
    def prepare(site: Site) -> None:
        for server in site.servers:
            server.seconds = 5.0

    async with site(prepare=prepare, model=Ponderous) as far:
        await far.until(far.begin((1.0,), (0.5,), timeouts_s=[None, None]), step_s=0.5)
        overhead = far.pool.report().overhead[M]
        # Of a batch each request counts all; the servers' five seconds are simulated, and in neither.
        assert 2 * (2 * 0.002 + 0.003) <= overhead.input_s < 5
        assert 2 * 0.004 <= overhead.output_s < 5
        assert list(overhead.batches_s) == [2]


async def test_the_trace_of_a_batch_goes_to_every_server(monkeypatch: pytest.MonkeyPatch) -> None:
    trace = received("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", "a=1")
    sent: list[tuple[str | None, str | None]] = []
    exchange = FarGateway.exchange

    async def noting(self: FarGateway, method: str, path: str, headers: dict[str, str], *more: object) -> HttpReply:
        if method == "POST":
            sent.append((headers.get("traceparent"), headers.get("tracestate")))
        return await exchange(self, method, path, headers, *more)

    monkeypatch.setattr(FarGateway, "exchange", noting)
    async with site(2) as far:
        await far.warm()
        sent.clear()
        far.servers[0].error = far.servers[1].error = errors.QueueFullError("Full.")
        token = CURRENT.set(trace)
        await far.ask((0.5,))
        CURRENT.reset(token)
        await far.ask((0.5,))
    assert sent == [(trace.traceparent, "a=1")] * 2 + [(None, None)] * 2
