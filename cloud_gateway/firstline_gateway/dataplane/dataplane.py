"""One request through the gateway, whichever transport brought it: resolve, check, batch, answer."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from functools import partial
from typing import Any

from msgspec.structs import replace

from firstline_core.clock import Clock
from firstline_core.errors import FirstlineError, NotReadyError
from firstline_core.protocol.data_plane import EXTENSIONS, ModelState
from firstline_core.protocol.extensions import config_json
from firstline_core.protocol.limits import Limits
from firstline_core.telemetry import logs
from firstline_core.telemetry.statistics import ModelStatistics
from firstline_core.types import (
    PROBABILITIES,
    Answer,
    Attempt,
    InferRequest,
    InferResponse,
    ModelMetadata,
    Reason,
    Status,
    Tensor,
    Tier,
)
from firstline_gateway import __version__
from firstline_gateway.contracts.monitor import ContractMonitor
from firstline_gateway.dataplane.checks import check
from firstline_gateway.dataplane.response_cache import ResponseCache, key_of
from firstline_gateway.deliveries.once import Deliveries
from firstline_gateway.executors.base import ModelKey, Probabilities
from firstline_gateway.identity.principals import device_of
from firstline_gateway.models.repository import Repository, ServedModel
from firstline_gateway.models.residency.memory import Place
from firstline_gateway.models.residency.orders import UNLOADING
from firstline_gateway.models.residency.residency import Residency
from firstline_gateway.scheduling.batcher import Batcher
from firstline_gateway.scheduling.inline import Answered
from firstline_gateway.telemetry import journal
from firstline_gateway.telemetry.counting import Counting

_RETRY_WHILE_DRAINING_S = 1.0
_ANSWERED = (Tier.CLOUD, Reason.REQUESTED, Status.FINAL)
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
        counting: Counting,
        residency: Residency,
        clock: Clock,
        limits: Limits,
        cache: ResponseCache | None = None,
        looks_after_fleet: bool = False,
    ) -> None:
        self._looks_after_fleet = looks_after_fleet
        self._repository = repository
        self._residency = residency
        self._memory = residency.memory
        self._cache = cache
        self._batcher = batcher
        self._contracts = contracts
        self._deliveries = deliveries
        self._clock = clock
        self.draining = False
        self._in_flight = 0
        self._idle = asyncio.Event()
        self._counting = counting
        self.limits = limits

    def live(self) -> bool:
        return True

    def ready(self) -> bool:
        """True while it could answer for a model, has loaded what it loads at the start, and is not shutting down.

        A gateway that looks after a fleet has something to do before its first model comes.
        """
        served = self._repository
        waits = self._looks_after_fleet and not served.models and not served.away and not served.refused
        usable = waits or any(map(self._usable, served.models))
        return not self.draining and self._residency.complete and usable

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
        return [self._counting.told(each.key, apart.get(each.key)) for each in self._repository]

    def config(self, model: str, version: str) -> dict[str, Any]:
        return config_json(self.metadata(model, version), self.limits, batching=True)

    async def load(self, model: str) -> None:
        await self._residency.orders.load(model)

    async def unload(self, model: str) -> None:
        await self._residency.orders.unload(model)

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
        logs.FACTS.set(partial(facts_of, request))
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
            logs.FACTS.set(partial(facts_of, request, response))
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
        check(request, self._repository.resolve(request.model, request.version))

    async def _answer(self, request: InferRequest) -> InferResponse:
        started_s = self._clock.monotonic_s()
        served = self._repository.resolve(request.model, request.version)
        try:
            check(request, served)
            if self._cache is None:
                probabilities, served = await self._run(request, served)
            else:
                probabilities, served = await self._known_or_run(self._cache, request, served)
        except FirstlineError:
            self._counting.of(served.key).fail.add(self._clock.monotonic_s() - started_s)
            raise
        return self.answered(request, served, probabilities, self._clock.monotonic_s() - started_s)

    def answered(
        self, request: InferRequest, served: ServedModel, probabilities: Probabilities, seconds: float
    ) -> InferResponse:
        """Counts an answer that took so long, and says it."""
        self._contracts.answered(request, served, probabilities)
        self._counting.answered(served.key, _ANSWERED, seconds)
        return InferResponse(
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

    # The same without a coroutine, for `api/connection/fast_path.py`.

    def resident(self, model: str, version: str) -> Place | None:
        """The place of a model, where it is in memory and answers are not looked up; it is valid while it `is_in`.

        Raises:
            UnknownModelError: there is no such bundle or version.
        """
        place = self._memory.places[self._repository.resolve(model, version).key]
        return place if place.is_in and self._cache is None else None

    def begin(self, place: Place, request: InferRequest, now_s: float, answered: Answered) -> bool:
        """Runs a request by the end of this turn of the loop, and tells `answered`, who then calls `end`.

        Args:
            place: of its model.
            request: it was checked, and keeps no promise.
            now_s: the present.
            answered: is told the probabilities, or why there are none; now, or later in this turn or the next.

        Returns:
            False where it has to go another way (`infer`): nothing has happened then.
        """
        if self.draining or (request.deadline_s is not None and request.deadline_s <= now_s):
            return False
        key = place.served.key
        held = self._memory.hold(key)
        if held is not place:
            if held is not None:
                self._memory.release(held)
            return False
        self._in_flight += 1
        if self._batcher.enter(key, request, now_s, answered):
            return True
        self.end(place)
        return False

    def end(self, place: Place) -> None:
        """A request that was begun has ended, whichever way."""
        self._memory.release(place)
        self._in_flight -= 1
        if self.draining and not self._in_flight:
            self._idle.set()

    def count(self, place: Place, seconds: float) -> None:
        """As `answered`, of a request that tells of no contract, whose answer is known but for its numbers."""
        self._counting.answered(place.served.key, _ANSWERED, seconds)

    def failed(self, place: Place, seconds: float) -> None:
        """Counts a request that was begun and got no answer."""
        self._counting.of(place.served.key).fail.add(seconds)

    async def _run(self, request: InferRequest, served: ServedModel) -> tuple[Probabilities, ServedModel]:
        """What the model says, once it is in memory; and the model, for another bundle may have taken its place."""
        place = self._memory.hold(served.key) or await self._residency.brought(served.key, request.deadline_s)
        try:
            if place.served is not served:
                check(request, place.served)
            return await self._batcher.submit(served.key, request), place.served
        finally:
            self._memory.release(place)

    async def _known_or_run(
        self, cache: ResponseCache, request: InferRequest, served: ServedModel
    ) -> tuple[Probabilities, ServedModel]:
        """The answer of last time, for which nothing is loaded; or that of the model, which is kept."""
        started_s, statistics = self._clock.monotonic_s(), self._counting.of(served.key)
        if request.size_bytes <= _HASHED_HERE_BYTES:
            key = key_of(request, served)
        else:
            key = await asyncio.to_thread(key_of, request, served)
        if key is None:
            return await self._run(request, served)
        known = cache.get(key)
        looked_s = self._clock.monotonic_s() - started_s
        if known is not None:
            statistics.cache_hit.add(looked_s)
            return known, served
        found, ran = await self._run(request, served)
        if ran.digest == served.digest:
            cache.put(key, found)
        statistics.cache_miss.add(looked_s)
        return found, ran


def facts_of(request: InferRequest, response: InferResponse | None = None) -> Mapping[str, object]:
    """What a log line says of a request, and of its answer."""
    facts: dict[str, object] = {"request_id": request.request_id, "rows": request.rows}
    if request.trace is not None:
        facts |= request.trace.facts()
    if response is not None and response.answer is not None:
        facts |= {"tier": response.answer.tier.value, "reason": response.answer.reason.value}
    return facts


def _shutting_down() -> NotReadyError:
    return NotReadyError(
        "This gateway is shutting down; send the request again.", retry_after_s=_RETRY_WHILE_DRAINING_S
    )
