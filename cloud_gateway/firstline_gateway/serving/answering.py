"""The course of one request, whichever transport brought it: resolve, check, batch, answer."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from functools import partial
from typing import Protocol

from msgspec.structs import replace

from firstline_core.clock import Clock
from firstline_core.errors import FirstlineError, NotReadyError
from firstline_core.telemetry import logs
from firstline_core.types import (
    PROBABILITIES,
    Answer,
    Attempt,
    ContractNotice,
    InferRequest,
    InferResponse,
    ModelKey,
    Reason,
    Status,
    Tensor,
    Tier,
)
from firstline_gateway.executors.base import Probabilities
from firstline_gateway.executors.under_way import UnderWay
from firstline_gateway.identity.principals import device_of
from firstline_gateway.models.repository import Repository, ServedModel
from firstline_gateway.models.residency.memory import Place
from firstline_gateway.models.residency.residency import Residency
from firstline_gateway.serving.checks import check
from firstline_gateway.serving.deliveries.deliveries import Deliveries
from firstline_gateway.serving.response_cache import ResponseCache, key_of
from firstline_gateway.serving.scheduling.batcher import Batcher
from firstline_gateway.serving.scheduling.inline import Answered
from firstline_gateway.telemetry import journal
from firstline_gateway.telemetry.counting import Counting

_RETRY_WHILE_DRAINING_S = 1.0
_ANSWERED = (Tier.CLOUD, Reason.REQUESTED, Status.FINAL)
# Half a millisecond of hashing, which a request may take from all others; larger inputs are hashed in a thread.
_HASHED_HERE_BYTES = 256 * 1024


class AnswerObserver(Protocol):
    """Learns of every answer, and adds a notice to it; the contracts implement it."""

    def answered(self, request: InferRequest, served: ServedModel, probabilities: Probabilities) -> None:
        """Counts an answered request; `probabilities` are (rows, classes)."""
        ...

    def notice(self, request: InferRequest, served: ServedModel) -> ContractNotice | None:
        """Returns the state of the contract for the device that asked, or None if there is nothing to report."""
        ...


class Answering:
    """Answers requests, until it drains. Belongs to one event loop.

    Attributes:
        draining: whether new requests are refused.
        under_way: requests that are not answered yet.
    """

    def __init__(
        self,
        repository: Repository,
        batcher: Batcher,
        contracts: AnswerObserver,
        deliveries: Deliveries,
        *,
        counting: Counting,
        residency: Residency,
        clock: Clock,
        cache: ResponseCache | None = None,
    ) -> None:
        self._repository = repository
        self._residency = residency
        self._memory = residency.memory
        self._cache = cache
        self._batcher = batcher
        self._contracts = contracts
        self._deliveries = deliveries
        self._clock = clock
        self._counting = counting
        self.draining = False
        self.under_way = UnderWay()

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
        with self.under_way:
            if request.promised and device_of(request.principal) is not None:
                response = await self._deliver(request)
            else:
                response = await self._answer(request)
        if journal.is_written():  # else nobody asks
            logs.FACTS.set(partial(facts_of, request, response))
        return response

    def check(self, request: InferRequest) -> None:
        """Whether a request makes sense here; that is found out without running it.

        Raises:
            RequestError: as `infer`.
        """
        check(request, self._repository.resolve(request.model, request.version))

    async def drain(self) -> None:
        """Refuses new requests from now on, and returns once those in flight are answered."""
        self.draining = True
        await self.under_way.end()

    def abandon(self) -> None:
        """Answers what is still in flight, while draining, with the advice to send it again."""
        self._batcher.abandon(_shutting_down())

    async def _deliver(self, request: InferRequest) -> InferResponse:
        """The answer of the first time, and how the contract stands now."""
        response = await self._deliveries.once(request, lambda: self._answer(request))
        served = self._repository.models.get(ModelKey(response.model, int(response.version)))
        if served is None or response.answer is None:  # the version was taken away since
            return response
        return replace(response, answer=replace(response.answer, contract=self._contracts.notice(request, served)))

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
        self.under_way.count += 1
        if self._batcher.enter(key, request, now_s, answered):
            return True
        self.end(place)
        return False

    def end(self, place: Place) -> None:
        """A request that was begun has ended, whichever way."""
        self._memory.release(place)
        self.under_way.count -= 1
        if self.draining:
            self.under_way.tell()

    def count(self, place: Place, seconds: float) -> None:
        """As `answered`, of a request that tells of no contract, whose answer is known but for its numbers."""
        self._counting.answered(place.served.key, _ANSWERED, seconds)

    def failed(self, place: Place, seconds: float) -> None:
        """Counts a request that was begun and got no answer."""
        self._counting.of(place.served.key).fail.add(seconds)


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
