"""The models of the gateway for every transport: their state and metadata, inference, and its counts.

A transport authenticates the caller and decodes the request. `GatewayDataPlane.infer` then checks it against its model,
keeps the model in memory, waits for its turn in a batch, runs it, and returns the answer.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol, Self

from msgspec.structs import replace
from prometheus_client.core import HistogramMetricFamily
from prometheus_client.registry import Collector

from firstline_core.bundle.loaded_model import declared_inputs
from firstline_core.bundle.manifest import Manifest
from firstline_core.clock import Clock
from firstline_core.errors import (
    EngineUnavailableError,
    FirstlineError,
    InferenceError,
    InvalidTensorError,
    ModelMismatchError,
    NotReadyError,
    RequestError,
    UnknownModelError,
)
from firstline_core.processing.decoding import FileDecoding
from firstline_core.protocol.data_plane import EXTENSIONS, ModelState
from firstline_core.protocol.extensions import config_json
from firstline_core.protocol.limits import Limits
from firstline_core.protocol.oip import EDGE_OUTPUT
from firstline_core.protocol.tensors import shown
from firstline_core.tasks.base import Task, check_outputs
from firstline_core.telemetry import logs, tracing
from firstline_core.telemetry.metrics import RequestMetrics
from firstline_core.telemetry.statistics import ModelStatistics
from firstline_core.types import (
    Answer,
    Arrays,
    Attempt,
    AuditNote,
    ContractNotice,
    InferRequest,
    InferResponse,
    ModelKey,
    ModelMetadata,
    Privacy,
    Reason,
    Route,
    Status,
    Tensor,
    Tier,
    TraceContext,
)
from firstline_gateway import __version__
from firstline_gateway.executors.dispatch.dispatcher import Dispatcher
from firstline_gateway.identity.principals import device_of
from firstline_gateway.models.repository import Repository, ServedModel
from firstline_gateway.models.residency import UNLOADING, Residency
from firstline_gateway.serving.deliveries.deliveries import Deliveries
from firstline_gateway.serving.request_digest import hashed
from firstline_gateway.serving.response_cache import ResponseCache, answer_key
from firstline_gateway.serving.scheduling.batcher import Batcher

_RETRY_WHILE_DRAINING_S = 1.0
_BATCH_ROWS_BUCKETS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 4096)


class AnswerObserver(Protocol):
    """Receives every answer, and returns a notice for it; the contracts implement it."""

    def answered(self, request: InferRequest, served: ServedModel, outputs: Arrays) -> ContractNotice | None:
        """Counts an answered request with the task's outputs, and returns `notice`."""

    def notice(self, request: InferRequest, served: ServedModel) -> ContractNotice | None:
        """Returns the state of the contract for the device that asked, or None if there is nothing to report."""


class ServingStatistics(Collector):
    """Counts answers, batches and late requests from the start of the process on.

    Batches are converted for Prometheus at each scrape: counting them there would take as long as a batch.

    Args:
        metrics: the registry of the gateway; this adds its metrics.
        clock: for the time of each model's last answer.
    """

    def __init__(self, metrics: RequestMetrics, clock: Clock) -> None:
        self._metrics = metrics
        self._clock = clock
        self._models: dict[ModelKey, ModelStatistics] = {}
        self._batches: Counter[int] = Counter()  # by their rows
        metrics.registry.register(self)
        self._late = metrics.counter("late_total", "Requests that were admitted and not answered by their deadline.")

    def of(self, key: ModelKey) -> ModelStatistics:
        """Returns the statistics of a version; zeros if it has had no request."""
        found = self._models.get(key)
        if found is None:
            found = self._models[key] = ModelStatistics(key.name, str(key.version))
        return found

    def answered(
        self, key: ModelKey, response: InferResponse, seconds: float, trace: TraceContext | None = None
    ) -> None:
        """Counts an answer, which took `seconds`."""
        self._metrics.observe(response, seconds, trace)
        self.of(key).answered(seconds, self._clock.wall_s())

    def started(self, rows: int) -> None:
        """Counts a batch that starts."""
        self._batches[rows] += 1

    def ran(self, key: ModelKey, rows: int, seconds: float, waits_s: Sequence[float]) -> None:
        """Counts a batch that was answered; see `ModelStatistics.ran`."""
        self.of(key).ran(rows, seconds, waits_s)

    def late(self) -> None:
        """Counts a request that was admitted and not answered by its deadline."""
        self._late.inc()

    def collect(self) -> Iterable[HistogramMetricFamily]:
        """Returns the batches by their rows; see `Collector`."""
        family = HistogramMetricFamily("firstline_gateway_batch_rows", "Rows that ran as one batch.")
        found = self._batches.copy()
        counts = [
            (str(float(most)), sum(count for rows, count in found.items() if rows <= most))
            for most in _BATCH_ROWS_BUCKETS
        ]
        family.add_metric((), [*counts, ("+Inf", found.total())], sum(rows * count for rows, count in found.items()))
        return (family,)


class InFlight:
    """Counts the requests in flight, each in a `with` block, and waits for their end. Belongs to one event loop."""

    def __init__(self) -> None:
        self.count = 0
        self._none = asyncio.Event()

    def __enter__(self) -> Self:
        self.count += 1
        return self

    def __exit__(self, *_: object) -> None:
        self.count -= 1
        if not self.count:
            self._none.set()

    async def end(self) -> None:
        """Waits until no request is in flight."""
        while self.count:
            self._none.clear()
            await self._none.wait()


@dataclass(eq=False)
class GatewayDataPlane:
    """Implements `firstline_core.protocol.data_plane.DataPlane`. Belongs to one event loop.

    Args:
        repository: the models.
        batcher: runs requests in batches.
        contracts: receive every answer.
        deliveries: make requests of devices take effect once.
        dispatcher: knows which models the executors can run.
        counts: of answers, batches and late requests.
        residency: which models are in memory.
        limits: of requests.
        clock: for durations and deadlines.
        cache: answers of earlier requests, or None.
        decoding: decodes large images before they are in a batch, for executors that prepare inputs here.
        has_registry: whether it serves the registry of a fleet.

    Attributes:
        draining: whether new requests are refused.
        under_way: requests that are not answered yet.
    """

    server_name = "firstline-gateway"
    server_version = __version__
    extensions = EXTENSIONS

    repository: Repository
    batcher: Batcher
    contracts: AnswerObserver
    deliveries: Deliveries
    dispatcher: Dispatcher
    counts: ServingStatistics
    residency: Residency
    limits: Limits
    clock: Clock
    decoding: FileDecoding
    cache: ResponseCache | None = None
    has_registry: bool = False

    def __post_init__(self) -> None:
        self._memory = self.residency.memory
        self.draining = False
        self.under_way = InFlight()

    # Inference.

    async def infer(self, request: InferRequest) -> InferResponse:
        """Runs the full model.

        Raises:
            RequestError: the request cannot be run here; `UnknownModelError`, `ModelMismatchError`,
                `InvalidTensorError` and `ReusedRequestIdError` are its kinds.
            CapacityError: there is no room, no time, or no store to record a delivery; the caller may retry later.
            InferenceError: the model failed.
        """
        if tracing.active and request.trace is None and (trace := tracing.begin()) is not None:
            request = replace(request, trace=trace)
        logs.FACTS.set(partial(facts_of, request))
        started_s = self.clock.monotonic_s()
        try:
            if self.draining:
                raise _shutting_down()
            with self.under_way:
                if request.promised and device_of(request.principal) is not None:
                    response = await self._deliver(request)
                else:
                    response = await self._answer(request, started_s)
        except FirstlineError as error:
            # The requests of a batch may share the error: each reads the id before it awaits again.
            error.request_id = request.request_id
            self._trace(request, started_s, error.code)
            raise
        if tracing.active:
            self._trace(request, started_s, "")
        logs.FACTS.set(partial(facts_of, request, response))
        return response

    def _trace(self, request: InferRequest, started_s: float, error: str) -> None:
        seconds, request_id, model = self.clock.monotonic_s() - started_s, request.request_id, request.model
        tracing.record("request", request.trace, seconds, own=True, request_id=request_id, model=model, error=error)

    def check(self, request: InferRequest) -> None:
        """Checks a request against its model without running it.

        Raises:
            RequestError: as `infer`.
        """
        check(request, self.repository.resolve(request.model, request.version))

    async def _deliver(self, request: InferRequest) -> InferResponse:
        """Returns the recorded answer of a delivery, or a new one, with the present state of the contract."""
        response = await self.deliveries.once(request, lambda: self._answer(request, self.clock.monotonic_s()))
        served = self.repository.models.get(ModelKey(response.model, int(response.version)))
        if served is None or response.answer is None:  # the version was removed since
            return response
        return replace(response, answer=replace(response.answer, contract=self.contracts.notice(request, served)))

    async def _answer(self, request: InferRequest, started_s: float) -> InferResponse:
        served = self.repository.resolve(request.model, request.version)
        try:
            inputs = check(request, served)
            if self.cache is None:
                outputs, served = await self._run(request, served, inputs)
            else:
                outputs, served = await self._cached_or_run(self.cache, request, served, inputs)
        except FirstlineError:
            self.counts.of(served.key).fail.add(self.clock.monotonic_s() - started_s)
            raise
        seconds = self.clock.monotonic_s() - started_s
        response = InferResponse(
            model=served.key.name,
            version=str(served.key.version),
            outputs=tuple([Tensor(name, array) for name, array in outputs.items()]),
            id=request.id,
            answer=Answer(
                request_id=request.request_id,
                status=Status.FINAL,
                certified=True,
                durable=False,
                tier=Tier.CLOUD,
                # A caller of a gateway requested the cloud; a device replaces this by its own reason.
                reason=Reason.REQUESTED,
                confidence=None,
                model_digest=served.digest,
                attempts=(Attempt(Tier.CLOUD, "ok", round(seconds * 1000, 3)),),
                contract=self.contracts.answered(request, served, outputs),
            ),
        )
        self.counts.answered(served.key, response, seconds, request.trace)
        return response

    async def _run(self, request: InferRequest, served: ServedModel, inputs: Arrays) -> tuple[Arrays, ServedModel]:
        """Returns the model's output once it is in memory, and the model: a new bundle may have replaced it.

        The request runs in a batch, after its inputs are prepared if that takes much memory or time.
        """
        key, principal = served.key, request.principal
        place = self._memory.hold(key) or await self.residency.loaded(key, request.deadline_s)
        try:
            if place.served is not served:
                served = place.served
                inputs = check(request, served)
            model = self.dispatcher.loaded_model(key)
            if model is None or not model.has_costs:
                return await self.batcher.submit(key, request, inputs), served
            cost = await self.decoding.cost(model, inputs, request.size_bytes, principal)
            async with self.decoding.prepared(model, inputs, cost, principal, request.deadline_s) as prepared:
                return await self.batcher.submit(key, request, prepared), served
        finally:
            self._memory.release(place)

    async def _cached_or_run(
        self, cache: ResponseCache, request: InferRequest, served: ServedModel, inputs: Arrays
    ) -> tuple[Arrays, ServedModel]:
        """Returns a cached output, for which no model is loaded, or that of the model, which is then cached."""
        started_s, statistics = self.clock.monotonic_s(), self.counts.of(served.key)
        key = await hashed(request.size_bytes, partial(answer_key, request, served))
        if key is None:
            return await self._run(request, served, inputs)
        cached = cache.get(key)
        lookup_s = self.clock.monotonic_s() - started_s
        if cached is not None:
            tracing.record("cache", request.trace, lookup_s)
            statistics.cache_hit.add(lookup_s)
            return cached, served
        outputs, ran_on = await self._run(request, served, inputs)
        if ran_on.digest == served.digest:
            cache.put(key, outputs)
        statistics.cache_miss.add(lookup_s)
        return outputs, ran_on

    # Shutdown.

    async def drain(self) -> None:
        """Refuses new requests from now on, and returns once those in flight are answered."""
        self.draining = True
        await self.under_way.end()

    def abandon(self) -> None:
        """Answers what is still in flight with the advice to send it again."""
        self.batcher.abandon(_shutting_down())

    # State and metadata.

    def live(self) -> bool:
        return True

    def ready(self) -> bool:
        """Returns whether it could answer for a model, has loaded its models, and is not shutting down.

        A gateway with a registry is ready before its first model comes, so that its fleet can connect.
        """
        served = self.repository
        waits = self.has_registry and not served.models and not served.away and not served.refused
        usable = waits or any(map(self._usable, served.models))
        return not self.draining and self.residency.complete and usable

    def model_ready(self, model: str, version: str) -> bool:
        return not self.draining and self._usable(self.repository.resolve(model, version).key)

    def _usable(self, key: ModelKey) -> bool:
        return not self._problem_with(key) and self.residency.ready(key)

    def _problem_with(self, key: ModelKey) -> str:
        """Returns why no executor runs a model, or ""; a model that is not in memory is loaded by the next request."""
        return self.dispatcher.problem_with(key) if self._memory.places[key].is_in else ""

    def metadata(self, model: str, version: str) -> ModelMetadata:
        return self.repository.metadata(model, version)

    def task(self, model: str, version: str = "") -> Task | None:
        """Returns the task of a model; None if it is not served, or not any more."""
        try:
            return self.repository.resolve(model, version).manifest.task
        except (UnknownModelError, EngineUnavailableError):
            return None

    def index(self) -> list[ModelState]:
        stops = "shutting down" if self.draining else ""
        found = {
            each.key: self.residency.state(each, stops or self._problem_with(each.key)) for each in self.repository
        }
        for key, why in self.repository.away.items():
            passing = "UNLOADING" if why == UNLOADING else ""
            found[key] = ModelState(key.name, str(key.version), ready=False, reason=why, passing=passing)
        return [found[key] for key in sorted(found)]

    def statistics(self) -> list[ModelStatistics]:
        found, overhead = [], self.dispatcher.report().overhead
        for served in self.repository:
            statistics = self.counts.of(served.key)
            statistics.overhead = overhead.get(served.key, statistics.overhead)
            found.append(statistics)
        return found

    def config(self, model: str, version: str) -> dict[str, Any]:
        batching = self.repository.resolve(model, version).full.batch is None
        return config_json(self.metadata(model, version), self.limits, batching=batching)

    async def load(self, model: str) -> None:
        await self.residency.orders.load(model)

    async def unload(self, model: str) -> None:
        await self.residency.orders.unload(model)


def facts_of(request: InferRequest, response: InferResponse | None = None) -> Mapping[str, object]:
    """Returns what a log line states about a request and its answer."""
    facts: dict[str, object] = {"request_id": request.request_id, "rows": request.rows}
    if request.trace is not None:
        facts |= request.trace.facts()
    if response is not None and response.answer is not None:
        facts |= {"tier": str(response.answer.tier), "reason": str(response.answer.reason)}
    return facts


def _shutting_down() -> NotReadyError:
    return NotReadyError(
        "This gateway is shutting down; send the request again.", retry_after_s=_RETRY_WHILE_DRAINING_S
    )


def check(request: InferRequest, served: ServedModel) -> Arrays:
    """Checks a request against its model's declaration, before it takes a place in the queue.

    Returns:
        The inputs that the full model reads, by name.

    Raises:
        RequestError: it cannot run here; `ModelMismatchError` and `InvalidTensorError` are its kinds.
    """
    if request.privacy is Privacy.LOCAL_ONLY:
        raise RequestError(
            "privacy=local_only means that the input must not leave the device, but it reached the cloud; "
            "send it to the device's agent, or drop privacy=local_only."
        )
    if request.route is Route.EDGE:
        raise RequestError("route=edge cannot be met by a gateway; send the request to the device's agent.")
    if request.full_model_digest and request.full_model_digest != served.digest:
        raise ModelMismatchError(
            f"The request was made for full model {shown(request.full_model_digest)}, but version "
            f"{served.key.version} of '{served.key.name}' on this gateway has {served.digest}; "
            "bring both tiers to the same bundle."
        )
    if request.audit is not None:
        _check_edge_outputs(request.edge_outputs, request.audit, served.manifest)
    inputs = declared_inputs(request, served.manifest, served.input_names)
    return inputs if len(inputs) == len(served.input_names) else {name: inputs[name] for name in served.input_names}


def _check_edge_outputs(outputs: Arrays, note: AuditNote, manifest: Manifest) -> None:
    names = {spec.name for spec in manifest.task.outputs}
    if outputs.keys() != names:
        raise InvalidTensorError(
            f"An audit of '{manifest.name}' has inputs for the edge outputs: {_edge_names(names)}; "
            f"this one has: {_edge_names(outputs)}."
        )
    edge = next((variant for variant in manifest.edge if variant.digest == note.edge_digest), None)
    try:
        check_outputs(manifest.outputs_of(edge), outputs, 1)
    except InferenceError as error:
        raise InvalidTensorError(f"The edge outputs of an audit of '{manifest.name}': {error.message}") from error


def _edge_names(outputs: Iterable[str]) -> str:
    return ", ".join(shown(EDGE_OUTPUT + name) for name in sorted(outputs)[:5]) or "none"
