"""One request through the gateway, whichever transport brought it: resolve, check, batch, answer."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Mapping
from functools import partial
from typing import Any

from msgspec.structs import replace

from firstline_core.clock import Clock
from firstline_core.errors import FirstlineError, InvalidTensorError, ModelMismatchError, NotReadyError, RequestError
from firstline_core.protocol.data_plane import EXTENSIONS, ModelState
from firstline_core.protocol.extensions import config_json
from firstline_core.protocol.limits import Limits
from firstline_core.protocol.tensors import shown
from firstline_core.telemetry import logs
from firstline_core.telemetry.statistics import ModelStatistics
from firstline_core.types import (
    PROBABILITIES,
    Answer,
    Attempt,
    InferRequest,
    InferResponse,
    ModelMetadata,
    Privacy,
    Reason,
    Route,
    Status,
    Tensor,
    Tier,
)
from firstline_gateway import __version__, journal
from firstline_gateway.contracts.monitor import ContractMonitor
from firstline_gateway.deliveries.once import Deliveries
from firstline_gateway.executors.base import ModelKey, Probabilities
from firstline_gateway.metrics import GatewayMetrics
from firstline_gateway.principals import device_of
from firstline_gateway.repository import Repository, ServedModel
from firstline_gateway.residency import UNLOADING, Residency
from firstline_gateway.response_cache import ResponseCache, key_of
from firstline_gateway.scheduling.batcher import Batcher
from firstline_gateway.statistics import Statistics

_RETRY_WHILE_DRAINING_S = 1.0
# Half a millisecond of hashing, which a request may take from all others; larger inputs are hashed in a thread.
_HASHED_HERE_BYTES = 256 * 1024


class GatewayDataPlane:
    """Implements `firstline_core.protocol.data_plane.DataPlane`."""

    server_name = "firstline-gateway"
    server_version = __version__
    extensions = EXTENSIONS

    def __init__(
        self,
        repository: Repository,
        batcher: Batcher,
        contracts: ContractMonitor,
        deliveries: Deliveries,
        *,
        metrics: GatewayMetrics,
        statistics: Statistics,
        residency: Residency,
        clock: Clock,
        limits: Limits,
        cache: ResponseCache | None = None,
    ) -> None:
        self._repository = repository
        self._residency = residency
        self._cache = cache
        self._batcher = batcher
        self._contracts = contracts
        self._deliveries = deliveries
        self._metrics = metrics
        self._clock = clock
        self.draining = False
        self._in_flight = 0
        self._idle = asyncio.Event()
        self._statistics = statistics
        self.limits = limits

    def live(self) -> bool:
        return True

    def ready(self) -> bool:
        """True while it could answer for a model, has loaded what it loads at the start, and is not shutting down."""
        return not self.draining and self._residency.complete and any(map(self._usable, self._repository.models))

    def model_ready(self, model: str, version: str) -> bool:
        return not self.draining and self._usable(self._repository.resolve(model, version).key)

    def _usable(self, key: ModelKey) -> bool:
        return not self._batcher.trouble(key) and self._residency.ready(key)

    def trouble(self, key: ModelKey) -> str:
        """Why the engine cannot run a model at the moment, as a sentence; "" where it can."""
        return self._batcher.trouble(key)

    def metadata(self, model: str, version: str) -> ModelMetadata:
        return self._repository.metadata(model, version)

    def index(self) -> list[ModelState]:
        found = {
            each.key: self._residency.state(each, "shutting down" if self.draining else self.trouble(each.key))
            for each in self._repository
        }
        for key, why in self._repository.away.items():
            passing = "UNLOADING" if why == UNLOADING else ""
            found[key] = ModelState(key.name, str(key.version), ready=False, reason=why, passing=passing)
        return [found[key] for key in sorted(found)]

    def statistics(self) -> list[ModelStatistics]:
        apart = self._batcher.apart
        return [self._statistics.told(each.key, apart.get(each.key)) for each in self._repository]

    def config(self, model: str, version: str) -> dict[str, Any]:
        return config_json(self.metadata(model, version), self.limits, batching=True)

    async def load(self, model: str) -> None:
        await self._residency.load(model)

    async def unload(self, model: str) -> None:
        await self._residency.unload(model)

    async def drain(self) -> None:
        """Refuses new requests from now on, and returns once those in flight are answered."""
        self.draining = True
        if self._in_flight:
            await self._idle.wait()

    def abandon(self) -> None:
        """Answers what is still in flight, while draining, with the advice to send it again."""
        self._batcher.abandon(_shutting_down())

    async def infer(self, request: InferRequest) -> InferResponse:
        """Runs the full model.

        Raises:
            RequestError: the request makes no sense here; `UnknownModelError`, `ModelMismatchError`,
                `InvalidTensorError` and `ReusedRequestIdError` say what kind.
            CapacityError: no room, no time, no new work, or no store for what keeps a promise; come back later.
            InferenceError: the model failed.
        """
        logs.FACTS.set(partial(_facts, request))
        if self.draining:
            raise _shutting_down()
        self._in_flight += 1
        try:
            if request.promised and device_of(request.principal) is not None:
                response = await self._deliver(request)
            else:
                response = await self._answer(request)
        finally:
            self._in_flight -= 1
            if self.draining and not self._in_flight:
                self._idle.set()
        if journal.is_written():  # else nobody asks
            logs.FACTS.set(partial(_facts, request, response))
        return response

    async def _deliver(self, request: InferRequest) -> InferResponse:
        """The answer of the first time, and how the contract stands now."""
        response = await self._deliveries.once(request, lambda: self._answer(request))
        served = self._repository.models.get(ModelKey(response.model, int(response.version)))
        if served is None or response.answer is None:  # the version was taken away since
            return response
        return replace(response, answer=replace(response.answer, contract=self._contracts.notice(request, served)))

    def check(self, request: InferRequest) -> None:
        """Whether a request makes sense here; that is found out without running it.

        Raises:
            RequestError: as `infer`.
        """
        _check(request, self._repository.resolve(request.model, request.version))

    async def _answer(self, request: InferRequest) -> InferResponse:
        started_s = self._clock.monotonic_s()
        served = self._repository.resolve(request.model, request.version)
        try:
            _check(request, served)
            place = self._residency.hold(served.key) or await self._residency.brought(served.key, request.deadline_s)
            try:
                if place.served is not served:  # another bundle took its place while the request waited
                    served = place.served
                    _check(request, served)
                probabilities = await self._known_or_run(request, served)
            finally:
                self._residency.release(place)
        except FirstlineError:
            self._statistics.of(served.key).fail.add(self._clock.monotonic_s() - started_s)
            raise
        self._contracts.answered(request, served, probabilities)
        seconds = self._clock.monotonic_s() - started_s
        response = InferResponse(
            model=served.key.name,
            version=str(served.key.version),
            outputs=(Tensor(PROBABILITIES, probabilities),),
            id=request.id,
            answer=Answer(
                request_id=request.request_id,
                status=Status.FINAL,
                certified=True,
                durable=False,
                tier=Tier.CLOUD,
                # Whoever speaks to a gateway asked for the cloud; a device puts its own reason in this one's place.
                reason=Reason.REQUESTED,
                confidence=None,
                model_digest=served.digest,
                attempts=(Attempt(Tier.CLOUD, "ok", round(seconds * 1000, 3)),),
                contract=self._contracts.notice(request, served),
            ),
        )
        self._metrics.observe(response, seconds)
        self._statistics.of(served.key).answered(seconds, self._clock.wall_s())
        return response

    def _known_or_run(self, request: InferRequest, served: ServedModel) -> Awaitable[Probabilities]:
        if self._cache is None:
            return self._batcher.submit(served.key, request)
        return self._through(self._cache, request, served)

    async def _through(self, cache: ResponseCache, request: InferRequest, served: ServedModel) -> Probabilities:
        """The answer of last time, or that of the model, which is kept."""
        started_s, statistics = self._clock.monotonic_s(), self._statistics.of(served.key)
        if request.size_bytes <= _HASHED_HERE_BYTES:
            key = key_of(request, served)
        else:
            key = await asyncio.to_thread(key_of, request, served)
        known = cache.get(key) if key is not None else None
        if known is not None:
            statistics.cache_hit.add(self._clock.monotonic_s() - started_s)
            return known
        found = await self._batcher.submit(served.key, request)
        if key is not None:
            cache.put(key, found)
            statistics.cache_miss.add(self._clock.monotonic_s() - started_s)
        return found


def _facts(request: InferRequest, response: InferResponse | None = None) -> Mapping[str, object]:
    """What a log line says of a request, and of its answer."""
    facts: dict[str, object] = {"request_id": request.request_id, "rows": request.rows}
    if response is not None and response.answer is not None:
        facts |= {"tier": response.answer.tier.value, "reason": response.answer.reason.value}
    return facts


def _shutting_down() -> NotReadyError:
    return NotReadyError(
        "This gateway is shutting down; send the request again.", retry_after_s=_RETRY_WHILE_DRAINING_S
    )


def _check(request: InferRequest, served: ServedModel) -> None:
    """Refuses what must not, or cannot, run here, before it costs a place in the queue."""
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
    if request.audit is not None and request.audit.predicted >= len(served.manifest.labels):
        raise RequestError(
            f"Parameter 'audit_predicted' is {request.audit.predicted}, but '{served.key.name}' has "
            f"{len(served.manifest.labels)} classes, counted from 0."
        )
    name = served.manifest.input.name
    if len(request.inputs) != 1 or request.inputs[0].name != name:
        given = ", ".join(shown(tensor.name) for tensor in request.inputs[:5])
        raise InvalidTensorError(f"Model '{served.key.name}' takes one input, '{name}'; the request has {given}.")
    for output in request.outputs:
        if output.name != PROBABILITIES:
            raise InvalidTensorError(
                f"Model '{served.key.name}' has no output {shown(output.name)}; it has: {PROBABILITIES}."
            )
