import asyncio
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from msgspec.structs import replace
from support.databases import OpenStore, sqlite_store
from support.executor import single_executor
from support.gateway import DIGITS, GatedExecutor, request_of
from support.logs import captured_lines
from support.waiting import until

from firstline_core import errors
from firstline_core.clock import SimulatedClock
from firstline_core.processing.decoding import FileDecoding
from firstline_core.protocol.limits import Limits
from firstline_core.runtime.select import RuntimeOptions
from firstline_core.telemetry.metrics import RequestMetrics
from firstline_core.types import (
    PROBABILITIES,
    Answer,
    Array,
    Arrays,
    AuditNote,
    InferRequest,
    InferResponse,
    ModelKey,
    Privacy,
    Reason,
    RequestedOutput,
    Route,
    Status,
    Tensor,
    Tier,
)
from firstline_gateway.contracts.monitor import ContractMonitor
from firstline_gateway.models.folder import ModelsFolder
from firstline_gateway.models.repository import Repository
from firstline_gateway.models.residency import Residency
from firstline_gateway.serving.data_plane import GatewayDataPlane, InFlight, ServingStatistics
from firstline_gateway.serving.deliveries.deliveries import Deliveries
from firstline_gateway.serving.scheduling.admission import Bounds
from firstline_gateway.serving.scheduling.batcher import Batcher
from firstline_gateway.settings.settings import Settings
from firstline_gateway.store.service_clock import ServiceClock
from firstline_gateway.telemetry.journal import record

SMALL = ModelKey("small", 1)
NOTE = AuditNote(propensity=1.0, epsilon=0.05, threshold=0.5, edge_digest="0" * 64)
ONE_HOT = np.eye(10, dtype=np.float32)[[3]]
ANSWER = Answer("r", Status.FINAL, True, False, Tier.CLOUD, Reason.REQUESTED, None, "", ())


@pytest.fixture(scope="module")
def repository() -> Repository:
    return ModelsFolder(DIGITS).load(RuntimeOptions())


class Bench:
    def __init__(self, repository: Repository, folder: Path, *, has_registry: bool = False) -> None:
        self.clock = SimulatedClock()
        self.executor = GatedExecutor()
        self.metrics = RequestMetrics("gateway")
        bounds = Bounds(requests=8, size_bytes=1 << 20, seconds=10.0, batch_rows=8)
        dispatcher = single_executor(self.executor, repository, clock=self.clock)
        batcher = Batcher(dispatcher, clock=self.clock, bounds=bounds)
        self.opened = OpenStore(sqlite_store(folder))
        service = ServiceClock(self.opened.database, self.clock)
        self.contracts = ContractMonitor(
            self.opened.store, repository, Settings().contracts, metrics=self.metrics, clock=self.clock, service=service
        )
        self.deliveries = Deliveries(
            self.opened.store, Settings().store, metrics=self.metrics, clock=self.clock, service=service
        )
        statistics = ServingStatistics(self.metrics, self.clock)
        residency = Residency(repository, self.executor, clock=self.clock)
        decoding = FileDecoding(1, 1 << 28, self.clock)
        self.plane = GatewayDataPlane(
            repository,
            batcher,
            self.contracts,
            self.deliveries,
            dispatcher=dispatcher,
            counts=statistics,
            residency=residency,
            clock=self.clock,
            limits=Limits(),
            decoding=decoding,
            has_registry=has_registry,
        )

    def counted(self, line: str) -> bool:
        return line in self.metrics.render()[0].decode()


@pytest.fixture
def bench(repository: Repository, tmp_path: Path) -> Iterator[Bench]:
    found = Bench(repository, tmp_path)
    yield found
    found.opened.close()


def digits_request(**fields: object) -> InferRequest:
    request = request_of(1, 2, model="digits", **fields)
    return replace(request, inputs=(Tensor("image", request.inputs[0].array),))


IMAGES = digits_request()


async def test_an_answer_names_its_model_and_time(bench: Bench, repository: Repository) -> None:
    request = digits_request(id="mine")
    task = asyncio.create_task(bench.plane.infer(request))
    await until(lambda: bench.executor.held)
    await bench.clock.advance(0.25)
    bench.executor.release()
    response = await task
    answer = response.answer
    assert (response.model, response.version, response.id) == ("digits", "1", "mine")
    assert response.output("probabilities").tolist() == [[2], [4]]
    assert (answer.request_id, answer.tier, answer.status) == (request.request_id, Tier.CLOUD, Status.FINAL)
    assert (answer.certified, answer.durable, answer.confidence) == (True, False, None)
    assert answer.reason is Reason.REQUESTED
    assert answer.model_digest == repository.resolve("digits", "").digest
    assert [(attempt.outcome, attempt.ms) for attempt in answer.attempts] == [("ok", 250.0)]
    assert bench.counted('firstline_gateway_requests_total{reason="requested",status="final",tier="cloud"} 1.0')


async def test_an_escalation_for_this_full_model_is_answered(bench: Bench, repository: Repository) -> None:
    digest = repository.resolve("digits", "").digest
    task = asyncio.create_task(bench.plane.infer(digits_request(full_model_digest=digest, version="1")))
    await until(lambda: bench.executor.held)
    bench.executor.release()
    assert (await task).version == "1"


@pytest.mark.parametrize(
    ("request_", "kind", "message"),
    [
        (digits_request(privacy=Privacy.LOCAL_ONLY), errors.RequestError, "must not leave the device"),
        (digits_request(route=Route.EDGE), errors.RequestError, "route=edge cannot be met by a gateway"),
        (
            digits_request(full_model_digest="ab"),
            errors.ModelMismatchError,
            "full model 'ab', but version 1 .* has [0-9a-f]{64}",
        ),
        (digits_request(version="2"), errors.UnknownModelError, "no version '2'"),
        (request_of(1, model="digits"), errors.InvalidTensorError, "takes one input, 'image'; the request has: 'x'"),
        (replace(IMAGES, inputs=IMAGES.inputs * 2), errors.InvalidTensorError, "takes one input"),
        (digits_request(outputs=(RequestedOutput("logits"),)), errors.InvalidTensorError, "no output 'logits'"),
    ],
)
async def test_an_impossible_request_is_refused_before_it_queues(
    bench: Bench, request_: InferRequest, kind: type[errors.RequestError], message: str
) -> None:
    with pytest.raises(kind, match=message) as caught:
        await bench.plane.infer(request_)
    assert type(caught.value) is kind
    assert not bench.executor.batches


async def test_draining_finishes_what_is_in_flight_and_refuses_the_rest(bench: Bench) -> None:
    task = asyncio.create_task(bench.plane.infer(digits_request()))
    await until(lambda: bench.executor.held)
    assert bench.plane.ready()
    drained = asyncio.create_task(bench.plane.drain())
    await asyncio.sleep(0)
    assert not bench.plane.ready()
    assert not bench.plane.model_ready("digits", "")
    assert bench.plane.live()
    with pytest.raises(errors.NotReadyError, match="shutting down") as caught:
        await bench.plane.infer(digits_request())
    assert caught.value.retry_after_s is not None
    assert not drained.done()
    bench.executor.release()
    await drained
    found: Array = (await task).output("probabilities")
    assert found.dtype == np.float32


async def test_an_answers_log_line_has_tier_and_reason(bench: Bench) -> None:
    with captured_lines() as lines:
        task = asyncio.create_task(logged_request(bench))
        await until(lambda: bench.executor.held)
        bench.executor.release()
        await task
    [line] = [line for line in lines if line["event"] == "answered"]
    assert (line["tier"], line["reason"], line["rows"]) == ("cloud", "requested", 2)


async def logged_request(bench: Bench) -> None:
    await bench.plane.infer(digits_request())
    record(bench.metrics, transport="http", model="digits", principal="device:a", seconds=0.1)


@pytest.mark.parametrize(
    ("edge_outputs", "message"),
    [
        ({}, "'edge/probabilities'; this one has: none"),
        ({"logits": ONE_HOT}, "this one has: 'edge/logits'"),
        ({PROBABILITIES: ONE_HOT, "logits": ONE_HOT}, "has: 'edge/logits', 'edge/probabilities'"),
        ({PROBABILITIES: ONE_HOT[:, :9]}, r"is float32 \[1, 9\], expected float32 \[1, 10\]"),
        ({PROBABILITIES: ONE_HOT.astype(np.float64)}, "is float64"),
        ({PROBABILITIES: ONE_HOT * np.nan}, "NaN"),
        ({PROBABILITIES: ONE_HOT * 2}, "outside of 0 to 1"),
    ],
)
async def test_edge_outputs_of_an_audit_are_checked(bench: Bench, edge_outputs: Arrays, message: str) -> None:
    with pytest.raises(errors.InvalidTensorError, match=message):
        await bench.plane.infer(digits_request(audit=NOTE, edge_outputs=edge_outputs))
    assert not bench.executor.batches


@pytest.mark.parametrize(("has_registry", "expected"), [(True, True), (False, False)])
def test_a_gateway_of_a_fleet_needs_no_model(tmp_path: Path, has_registry: bool, expected: bool) -> None:
    repository = Repository({})
    found = Bench(repository, tmp_path, has_registry=has_registry)
    assert found.plane.live() and found.plane.ready() is expected
    with pytest.raises(errors.UnknownModelError, match="it serves: none"):
        found.plane.model_ready("digits", "")
    repository.away[ModelKey("digits", 1)] = "It was unloaded."
    assert not found.plane.ready()
    found.opened.close()


def metric_lines(metrics: RequestMetrics) -> list[str]:
    return metrics.render()[0].decode().splitlines()


def test_answers_are_counted_in_metrics_and_statistics() -> None:
    metrics, clock = RequestMetrics("gateway"), SimulatedClock()
    statistics = ServingStatistics(metrics, clock)
    for seconds in (0.001, 0.003):
        statistics.answered(SMALL, InferResponse("small", "1", (), answer=ANSWER), seconds)
    found = metric_lines(metrics)
    assert 'firstline_gateway_requests_total{reason="requested",status="final",tier="cloud"} 2.0' in found
    assert 'firstline_gateway_request_seconds_count{tier="cloud"} 2.0' in found
    assert 'firstline_gateway_request_seconds_bucket{le="0.001",tier="cloud"} 1.0' in found
    of_small = statistics.of(SMALL)
    assert (of_small.success.count, round(of_small.success.seconds, 6)) == (2, 0.004)
    assert of_small.last_inference_s == clock.wall_s()


def test_batches_are_counted_by_their_rows() -> None:
    metrics = RequestMetrics("gateway")
    statistics = ServingStatistics(metrics, SimulatedClock())
    for rows in (1, 3, 3, 5000):
        statistics.started(rows)
    found = metric_lines(metrics)
    assert "firstline_gateway_batch_rows_sum 5007.0" in found
    assert "firstline_gateway_batch_rows_count 4.0" in found
    for most, count in (("2.0", 1), ("4.0", 3), ("4096.0", 3), ("+Inf", 4)):
        assert f'firstline_gateway_batch_rows_bucket{{le="{most}"}} {count}.0' in found


async def test_the_end_of_work_in_flight_waits_for_all_work() -> None:
    under_way = InFlight()
    with under_way:
        with under_way:
            ended = asyncio.create_task(under_way.end())
            await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert not ended.done()
    await asyncio.wait_for(ended, 5.0)


async def test_the_end_of_work_in_flight_waits_for_later_work_too() -> None:
    under_way = InFlight()
    with under_way:
        ended = asyncio.create_task(under_way.end())
        await asyncio.sleep(0)
    with under_way:  # before the waiting task is awake
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert not ended.done()
    await asyncio.wait_for(ended, 5.0)
