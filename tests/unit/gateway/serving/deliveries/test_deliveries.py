"""Deliveries take effect once: what is recorded, what a repeat gets, and what is forgotten when."""

import asyncio
from collections.abc import AsyncIterator, Callable

import numpy as np
import pytest
from msgspec.structs import replace
from sqlalchemy import func, select, text, update
from support.databases import OpenStore
from support.gateway import request_of
from support.waiting import until

from firstline_core.clock import SimulatedClock
from firstline_core.errors import InferenceError, ReusedRequestIdError, StoreUnavailableError
from firstline_core.telemetry.metrics import RequestMetrics
from firstline_core.types import (
    Answer,
    ContractAlarm,
    ContractNotice,
    InferRequest,
    InferResponse,
    Reason,
    Status,
    Tensor,
    Tier,
)
from firstline_gateway.serving.deliveries.deliveries import Deliveries
from firstline_gateway.serving.deliveries.records import ANSWER_LIMIT_BYTES, DELIVERIES, content_of
from firstline_gateway.settings.settings import StoreSection
from firstline_gateway.store.service_clock import ServiceClock


def answer_to(request: InferRequest, columns: int = 2) -> InferResponse:
    answer = Answer(request.request_id, Status.FINAL, True, False, Tier.CLOUD, Reason.REQUESTED, None, "d" * 64)
    values = np.full((request.rows, columns), 0.5, np.float32)
    return InferResponse(request.model, "3", (Tensor("probabilities", values),), request.id, answer)


def delivery_of(*values: float, device: str = "cam", **fields: object) -> InferRequest:
    return request_of(*values, principal=f"device:{device}", promised=True, **fields)


class Replica:
    """One gateway's deliveries, and a model that counts its runs."""

    def __init__(self, settings: StoreSection, clock: SimulatedClock) -> None:
        self.opened = OpenStore(settings)
        self.metrics = RequestMetrics("gateway")
        self.deliveries = Deliveries(
            self.opened.store,
            settings,
            metrics=self.metrics,
            clock=clock,
            service=ServiceClock(self.opened.database, clock),
        )
        self.runs: list[str] = []
        self.columns = 2
        self.gate: asyncio.Event | None = None

    async def deliver(self, request: InferRequest) -> InferResponse:
        async def run() -> InferResponse:
            self.runs.append(request.request_id)
            if self.gate is not None:
                await self.gate.wait()
            return answer_to(request, self.columns)

        return await self.deliveries.once(request, run)

    def count(self) -> int:
        with self.opened.database.reading() as connection:
            return int(connection.execute(select(func.count()).select_from(DELIVERIES)).scalar_one())

    def counted(self, result: str) -> float:
        found = self.metrics.registry.get_sample_value("firstline_gateway_deliveries_total", {"result": result})
        return found or 0.0

    def close(self) -> None:
        self.deliveries.close()
        self.opened.close()


Start = Callable[..., Replica]


@pytest.fixture
async def clock() -> SimulatedClock:
    return SimulatedClock()


@pytest.fixture
async def start(store_settings: StoreSection, clock: SimulatedClock) -> AsyncIterator[Start]:
    """Starts a replica on the one store, with settings of its own."""
    running = []

    def one(clock: SimulatedClock = clock, **changes: object) -> Replica:
        settings = {name: getattr(store_settings, name) for name in store_settings.__struct_fields__}
        running.append(Replica(StoreSection(**settings | changes), clock))
        return running[-1]

    yield one
    for replica in running:
        replica.close()


def same(one: InferResponse, other: InferResponse) -> bool:
    return (one.model, one.version, one.answer) == (other.model, other.version, other.answer) and np.array_equal(
        one.output("probabilities"), other.output("probabilities")
    )


async def test_a_repeat_gets_the_answer_of_the_first_time(start: Start) -> None:
    replica, request = start(), delivery_of(1)
    first = await replica.deliver(request)
    repeat = await replica.deliver(replace(request, deadline_s=99.0, id="again"))
    assert same(first, repeat)
    assert (first.id, repeat.id) == ("", "again")
    assert replica.runs == [request.request_id]
    replica.close()
    later = start()  # another process, or another replica
    assert same(first, await later.deliver(request))
    assert later.runs == []
    assert (replica.counted("recorded"), replica.counted("repeated"), later.counted("repeated")) == (1, 1, 1)


async def test_other_content_under_the_id_is_refused(start: Start) -> None:
    replica, request = start(), delivery_of(1)
    await replica.deliver(request)
    for other in (
        replace(request, inputs=delivery_of(2).inputs),
        replace(request, inputs=delivery_of(1, 1).inputs),
        replace(request, version="4"),
        replace(request, full_model_digest="e" * 64),
    ):
        with pytest.raises(ReusedRequestIdError, match="delivered something else under request_id"):
            await replica.deliver(other)
    assert await replica.deliver(replace(request, principal="device:yard"))  # an id is a device's own
    assert replica.runs == [request.request_id] * 2
    assert replica.counted("reused") == 4


async def test_repeats_that_come_at_once_run_once(start: Start) -> None:
    replica, request = start(), delivery_of(1)
    replica.gate = asyncio.Event()
    tasks = [asyncio.create_task(replica.deliver(request)) for _ in range(5)]
    await until(lambda: bool(replica.runs))
    with pytest.raises(ReusedRequestIdError):
        await replica.deliver(replace(request, version="4"))
    tasks[0].cancel()  # its client left; the others are answered all the same
    replica.gate.set()
    _, *others = await asyncio.gather(*tasks, return_exceptions=True)
    assert all(isinstance(one, InferResponse) for one in others)
    assert len(replica.runs) == replica.count() == 1


async def test_what_its_client_no_longer_waits_for_is_recorded(start: Start) -> None:
    replica, request = start(), delivery_of(1)
    replica.gate = asyncio.Event()
    task = asyncio.create_task(replica.deliver(request))
    await until(lambda: bool(replica.runs))
    task.cancel()
    replica.gate.set()
    await until(lambda: replica.count() > 0)
    await replica.deliver(request)
    assert len(replica.runs) == 1


async def test_first_replica_that_commits_a_request_has_answered_it(start: Start) -> None:
    slow, fast, request = start(), start(), delivery_of(1)
    slow.gate = asyncio.Event()
    task = asyncio.create_task(slow.deliver(request))
    await until(lambda: bool(slow.runs))
    fast.columns = 3  # to tell its answer apart
    first = await fast.deliver(request)
    slow.gate.set()
    assert same(await task, first)
    assert slow.count() == 1
    assert (fast.counted("recorded"), slow.counted("recorded"), slow.counted("repeated")) == (1, 0, 1)


async def test_an_error_leaves_no_record(start: Start) -> None:
    replica, request = start(), delivery_of(1)

    async def fails() -> InferResponse:
        raise InferenceError("It failed.")

    with pytest.raises(InferenceError):
        await replica.deliveries.once(request, fails)
    assert replica.count() == 0
    assert await replica.deliver(request)


async def test_a_long_answer_is_known_and_run_again(start: Start) -> None:
    replica, request = start(), delivery_of(1)
    replica.columns = ANSWER_LIMIT_BYTES // 4 + 1
    assert same(await replica.deliver(request), await replica.deliver(request))
    assert len(replica.runs) == 2
    assert replica.count() == replica.counted("repeated") == 1


@pytest.mark.parametrize("column", ["answer", "content"])
async def test_damaged_record_counts_as_none_and_is_rewritten(start: Start, column: str) -> None:
    replica, request = start(), delivery_of(1)
    first = await replica.deliver(request)
    damage = DELIVERIES.c[column]
    with replica.opened.database.begin() as connection:
        found = connection.execute(select(damage)).scalar_one()
        connection.execute(update(DELIVERIES).values({damage: found[:-1] + bytes([found[-1] ^ 1])}))
    for _ in range(2):
        assert same(await replica.deliver(request), first)
    assert len(replica.runs) == 2
    assert replica.count() == 1


async def test_how_a_contract_stood_is_not_recorded(start: Start) -> None:
    replica, request = start(), delivery_of(1)
    response = answer_to(request)
    assert response.answer is not None
    alarmed = replace(response, answer=replace(response.answer, contract=ContractNotice(True, 5.0)))

    async def run() -> InferResponse:
        return alarmed

    assert await replica.deliveries.once(request, run) is not None
    repeat = await replica.deliver(request)
    assert repeat.answer.contract is None


async def test_the_newest_are_kept(start: Start) -> None:
    replica = start(deliveries_limit=3)
    requests = [delivery_of(number) for number in range(6)]
    for number, request in enumerate(requests):
        await replica.deliver(request)
        assert replica.count() == min(3, number + 1)
    replica.runs.clear()
    for request in requests[3:]:
        await replica.deliver(request)
    assert replica.runs == []
    await replica.deliver(requests[2])
    assert len(replica.runs) == 1


async def test_they_age_by_the_seconds_of_service_alone(start: Start, clock: SimulatedClock) -> None:
    replica, request = start(deliveries_age_s=100), delivery_of(1)
    await replica.deliver(request)
    await clock.advance(60)
    await replica.deliveries.advance()
    replica.close()
    later = start(clock=SimulatedClock(), deliveries_age_s=100)  # whose monotonic clock restarts
    assert later.count() == 1
    await clock.advance(1e6)  # during which no gateway was in service
    other = start(clock=clock, deliveries_age_s=100)
    assert other.count() == 1
    await clock.advance(41)
    await other.deliveries.advance()
    assert other.count() == 0


async def test_replicas_have_one_clock(start: Start) -> None:
    clocks = [SimulatedClock(), SimulatedClock()]
    old = start(clock=clocks[0], deliveries_age_s=100)
    await clocks[0].advance(1000)
    await old.deliveries.advance()
    new = start(clock=clocks[1], deliveries_age_s=100)
    await new.deliver(delivery_of(1))
    await clocks[0].advance(90)
    await old.deliveries.advance()
    assert new.count() == 1
    await clocks[1].advance(20)
    await new.deliveries.advance()
    assert new.count() == 1
    await clocks[0].advance(20)
    await old.deliveries.advance()
    assert new.count() == 0


async def test_a_store_that_refuses_leaves_the_promise_to_the_device(start: Start, clock: SimulatedClock) -> None:
    replica, requests = start(), [delivery_of(number) for number in range(3)]
    with replica.opened.database.begin() as connection:
        connection.execute(text("ALTER TABLE deliveries RENAME TO elsewhere"))
    with pytest.raises(StoreUnavailableError, match="refuses") as refused:
        await replica.deliver(requests[0])
    assert refused.value.retry_after_s
    with pytest.raises(StoreUnavailableError) as repeated:
        await replica.deliver(requests[1])
    assert "://" in repeated.value.message and "://" not in repeated.value.public
    assert replica.runs == []  # no model runs for what could not be kept
    assert replica.counted("refused") == 2
    with replica.opened.database.begin() as connection:
        connection.execute(text("ALTER TABLE elsewhere RENAME TO deliveries"))
    await clock.advance(1.1)
    await replica.deliver(requests[0])
    assert replica.count() == 1


def test_the_content_is_what_is_asked_to_the_last_bit() -> None:
    request = delivery_of(1, 2)
    assert content_of(request) == content_of(
        replace(request, deadline_s=5.0, id="x", alarm=ContractAlarm("a" * 64), binary_output=True)
    )
    array = request.inputs[0].array

    def changed(name: str = "x", array: np.ndarray = array) -> bytes:
        return content_of(replace(request, inputs=(Tensor(name, array),)))

    text_rows = np.array([b"ab", b"c"], object).reshape(2, 1)
    other_rows = np.array([b"a", b"bc"], object).reshape(2, 1)
    contents = {
        content_of(request),
        changed(name="y"),
        changed(array=array.reshape(1, 2)),
        changed(array=array.view(np.int32)),
        changed(array=array + np.float32(1e-6)),
        changed(array=text_rows),
        changed(array=other_rows),
        content_of(replace(request, model="n")),
        content_of(replace(request, inputs=request.inputs * 2)),
    }
    assert len(contents) == 9
