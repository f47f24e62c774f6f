"""Makes each delivery take effect once: it is recorded before it is answered, and repeats are answered from the record.

A device repeats a delivery without an answer: the answer may be lost, this process may have died after the commit, or
another replica may be working on the same request. The first replica that commits has answered; the others return its
answer.

Deliveries age by seconds of service (`store/service_clock.py`): a wall clock that jumps must neither forget a delivery
that a device may still repeat nor keep old ones. Their number is bounded by the order in which they came. Live
escalations leave no record.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import InitVar, dataclass
from functools import partial

from msgspec.structs import replace
from sqlalchemy import Connection

from firstline_core.clock import Clock
from firstline_core.errors import ReusedRequestIdError, StoreUnavailableError
from firstline_core.telemetry.metrics import RequestMetrics
from firstline_core.types import InferRequest, InferResponse
from firstline_gateway.identity.principals import device_of
from firstline_gateway.serving.deliveries import records
from firstline_gateway.serving.deliveries.records import DeliveryKey, Record
from firstline_gateway.serving.request_digest import hashed
from firstline_gateway.settings.settings import StoreSection
from firstline_gateway.store.service_clock import ServiceClock, advance
from firstline_gateway.store.store import Readers, Store, limited_wait

# Pause after a refusal of the store. No model runs meanwhile for deliveries, which could not be recorded.
_REST_S = 1.0
_RETRY_AFTER_S = 5.0

Run = Callable[[], Awaitable[InferResponse]]


@dataclass(eq=False)
class Deliveries:
    """Answers each delivery once. Belongs to one event loop.

    Args:
        store: closed by the caller.
        settings: the number and age of the records.
        metrics: counts the results.
        clock: for durations.
        service: the clock by which they age.
    """

    store: Store
    settings: StoreSection
    metrics: InitVar[RequestMetrics]
    clock: Clock
    service: ServiceClock

    def __post_init__(self, metrics: RequestMetrics) -> None:
        self._results = metrics.counter("deliveries_total", "Requests that keep a device's promise.", ("result",))
        self._under_way: dict[DeliveryKey, tuple[bytes, asyncio.Task[InferResponse]]] = {}
        self._rests_until_s = 0.0
        self._refusal = self._public_refusal = ""
        self._readers = Readers(self.store.database)

    def close(self, timeout_s: float | None = None) -> bool:
        """Ends the threads that read; returns False if the database held one for longer than the timeout."""
        return self._readers.close(timeout_s)

    async def once(self, request: InferRequest, run: Run) -> InferResponse:
        """Returns the answer to a delivery; a repeated one gets the recorded answer.

        Args:
            request: the delivery.
            run: answers it; called if it was not answered before. It continues after the caller has left, because the
                device will repeat the request.

        Raises:
            ReusedRequestIdError: the device sent something else under this id.
            StoreUnavailableError: the answer cannot be recorded; the device has to repeat the request.
            FirstlineError: the error of `run`, which is not recorded.
        """
        key = DeliveryKey(device_of(request.principal) or "", request.request_id)
        content = await hashed(request.size_bytes, partial(records.content_of, request))
        running = self._under_way.get(key)
        if running is None:
            task = asyncio.ensure_future(self._answer(key, content, run))
            self._under_way[key] = (content, task)
            task.add_done_callback(lambda ended: self._end(key, ended))
        else:
            self._check(key, running[0], content)
            task = running[1]
            self._results.labels("repeated").inc()
        return replace(await asyncio.shield(task), id=request.id)

    def advance(self) -> asyncio.Future[None]:
        """Advances the clock of the store, and deletes old records; call it every few seconds.

        Returns:
            Nothing; it fails with StoreUnavailableError if nothing was deleted.
        """
        here_s = self.service.now_s()

        def forward(connection: Connection) -> float:
            now_s = advance(connection, here_s)
            records.forget(connection, now_s - self.settings.deliveries_age_s)
            return now_s

        return asyncio.wrap_future(self.store.submit_then(forward, self.service.take_up))

    async def _answer(self, key: DeliveryKey, content: bytes, run: Run) -> InferResponse:
        found = await self._find(key)
        if found is not None:
            self._check(key, found.content, content)
            self._results.labels("repeated").inc()
            return found.response() or await run()
        response = await run()
        earlier = await self._put(key, records.recorded(content, response))
        if earlier is None:
            self._results.labels("recorded").inc()
            return response
        self._check(key, earlier.content, content)
        self._results.labels("repeated").inc()
        return earlier.response() or response

    def _end(self, key: DeliveryKey, ended: asyncio.Task[InferResponse]) -> None:
        del self._under_way[key]
        if not ended.cancelled():
            ended.exception()  # retrieved here, because all callers may have left

    def _check(self, key: DeliveryKey, recorded: bytes, content: bytes) -> None:
        if recorded != content:
            self._results.labels("reused").inc()
            raise ReusedRequestIdError(
                f"Device '{key.device}' delivered something else under request_id {key.request_id}; create a new id "
                "for each request."
            )

    async def _find(self, key: DeliveryKey) -> Record | None:
        return await self._ask(lambda: self._readers.read(lambda connection: records.find(connection, key)))

    async def _put(self, key: DeliveryKey, record: Record) -> Record | None:
        service_s, limit = self.service.now_s(), self.settings.deliveries_limit

        def put(connection: Connection) -> Record | None:
            return records.put(connection, key, record, service_s=service_s, limit=limit)

        return await self._ask(lambda: asyncio.wrap_future(self.store.submit(put)))

    async def _ask(self, ask: Callable[[], Awaitable[Record | None]]) -> Record | None:
        """Returns the reply of the store, unless it refused a moment ago."""
        if self.clock.monotonic_s() < self._rests_until_s:
            self._results.labels("refused").inc()
            raise StoreUnavailableError(self._refusal, retry_after_s=_RETRY_AFTER_S, public=self._public_refusal)
        try:
            async with limited_wait(self.store.database):  # a device repeats a request without an answer
                return await ask()
        except StoreUnavailableError as error:
            refused = error
        self._results.labels("refused").inc()
        self._refusal, self._public_refusal = refused.message, refused.public
        self._rests_until_s = self.clock.monotonic_s() + _REST_S
        raise refused
