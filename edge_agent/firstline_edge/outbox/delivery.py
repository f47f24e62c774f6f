"""Keeps the outbox's promises: sends what waits once a link works, and ends what cannot be kept.

A promise ends in exactly one of two ways, stored under its id: the merged answer (`final`), or the provisional one
marked `expired`, because it grew too old or because the gateway will never answer it. Delivery is at least once,
under the same request id; nothing here polls.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass, replace
from typing import Any, Protocol

from firstline_core.clock import Clock
from firstline_core.errors import FirstlineError, LinkError, RequestError, RuntimeFailure, UnauthorizedError
from firstline_core.telemetry.logs import logger
from firstline_core.types import Attempt, InferRequest, InferResponse, Reason
from firstline_edge.outbox.item import OutboxItem, expire
from firstline_edge.outbox.store import Outbox

log = logger(__name__)

Merge = Callable[[InferResponse, tuple[int, ...], InferResponse, str], InferResponse]
OnCorrection = Callable[[InferResponse], Awaitable[None]]


class Chain(Protocol):
    """What delivery needs of `links.chain.LinkChain`."""

    @property
    def available(self) -> bool: ...

    async def wait_available(self) -> None: ...

    async def infer(
        self, request: InferRequest, deadline_s: float | None
    ) -> tuple[InferResponse, tuple[Attempt, ...]]: ...


@dataclass(frozen=True, slots=True)
class DeliverySettings:
    """Patience with the link.

    Args:
        timeout_s: for one request.
        concurrency: requests at once; live requests need the link too.
        refusals: failures of the gateway's own (not of the link) after which a promise expires.
        spread_s: the first request after a reconnection waits up to so long, so that a fleet does not return
            as one.
        backoff_s: nominal wait after a failure, doubled with each further one in a row.
        backoff_max_s: cap of that.
    """

    timeout_s: float = 30.0
    concurrency: int = 4
    refusals: int = 5
    spread_s: float = 2.0
    backoff_s: float = 1.0
    backoff_max_s: float = 60.0


class Delivery:
    """Sends the outbox's items, oldest first.

    Args:
        outbox: whose promises.
        chain: the way to the gateway.
        merge: puts the corrected rows into the provisional answer, if the full model of that digest gave them; its
            result is final.
        clock: for waits and ages.
        rng: for jitter.
        on_correction: told of each answer once it is stored, expired ones included; its failure is logged only.
        max_age_s: after which a promise expires.
        settings: patience.
    """

    def __init__(
        self,
        outbox: Outbox,
        chain: Chain,
        merge: Merge,
        clock: Clock,
        rng: random.Random,
        *,
        on_correction: OnCorrection | None = None,
        max_age_s: float = 7 * 86_400.0,
        settings: DeliverySettings = DeliverySettings(),
    ) -> None:
        self._outbox = outbox
        self._chain = chain
        self._merge = merge
        self._clock = clock
        self._rng = rng
        self._on_correction = on_correction
        self._max_age_s = max_age_s
        self._settings = settings
        self._refused: dict[str, int] = {}  # how often, by request id; of items that still wait

    async def run(self) -> None:
        """Works until it is cancelled."""
        failures = 0
        while True:
            await self._outbox.wait_pending()
            try:
                wait_s = await self._work()
            except Exception:  # the outermost loop of a task that must never end
                log.exception("outbox delivery failed")
                wait_s = 0.0
            if wait_s is None:
                failures = 0
                continue
            failures += 1
            nominal_s = min(self._settings.backoff_max_s, self._settings.backoff_s * 2 ** min(failures - 1, 32))
            await self._clock.sleep(max(wait_s, self._rng.uniform(0, nominal_s)))

    async def _work(self) -> float | None:
        """One step. None if it went well; otherwise wait, at least so many seconds (0: as backoff says)."""
        items = await self._outbox.pending(self._settings.concurrency)
        expired = [item for item in items if self._outbox.age_s(item) >= self._max_age_s]
        for item in expired:
            await self._end(item, expire(item.provisional))
        if expired or not items:
            return None
        if not self._chain.available:
            left_s = self._max_age_s - self._outbox.age_s(items[0])
            await _first(self._chain.wait_available(), self._clock.sleep(left_s))
            if self._chain.available:
                await self._clock.sleep(self._rng.uniform(0, self._settings.spread_s))
            return None
        waits = await asyncio.gather(*(self._deliver(item) for item in items))
        return max((wait_s for wait_s in waits if wait_s is not None), default=None)

    async def _deliver(self, item: OutboxItem) -> float | None:
        request_id = item.request.request_id
        try:
            deadline_s = self._clock.monotonic_s() + self._settings.timeout_s
            correction, attempts = await self._chain.infer(item.request, deadline_s)
            if correction.answer is not None:
                correction = replace(correction, answer=replace(correction.answer, attempts=attempts))
            final = self._merge(item.provisional, item.rows, correction, item.request.full_model_digest)
        except FirstlineError as error:
            log.info("outbox delivery refused", request_id=request_id, code=error.code, error=error.message)
            if not self._is_hopeless(request_id, error):
                return error.retry_after_s or 0.0
        except Exception:  # an answer that cannot be merged must not block those behind it
            log.exception("outbox delivery broke", request_id=request_id)
            if not self._is_hopeless(request_id, RuntimeFailure("not merged")):
                return 0.0
        else:
            await self._end(item, final)
            return None
        await self._end(item, expire(item.provisional, Reason.CLOUD_ERROR))
        return None

    def _is_hopeless(self, request_id: str, error: FirstlineError) -> bool:
        # A refused token is the operator's to mend, and no fault of the item's.
        if isinstance(error, RequestError):
            return not isinstance(error, UnauthorizedError)
        if error.retryable or isinstance(error, LinkError):
            return False
        self._refused[request_id] = self._refused.get(request_id, 0) + 1
        return self._refused[request_id] >= self._settings.refusals

    async def _end(self, item: OutboxItem, final: InferResponse) -> None:
        request_id = item.request.request_id
        await self._outbox.finish(request_id, final)
        self._refused.pop(request_id, None)
        status = final.answer.status.value if final.answer is not None else ""
        log.info("outbox promise ended", request_id=request_id, status=status, waiting=self._outbox.depth)
        if self._on_correction is None:
            return
        try:
            await self._on_correction(final)
        except FirstlineError as error:
            log.warning("correction not announced", request_id=request_id, error=error.message)


async def _first(*waits: Coroutine[Any, Any, None]) -> None:
    """Returns when the first of these does; the others are cancelled."""
    tasks = [asyncio.ensure_future(wait) for wait in waits]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
