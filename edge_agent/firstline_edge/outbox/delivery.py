"""Delivers the outbox's promises: sends them once a link works, and ends those that will not be corrected.

A promise ends in exactly one of two ways, stored under its id: with the merged answer (`final`), or with the
provisional answer marked as `expired`, because the promise is too old or the gateway will never answer it. Delivery is
at least once, with the same request id. Nothing polls, but the wall clock is checked while a promise waits. If a caller
waits for the better answer (`wait=first`), its promise is sent at once, concurrently with those that wait for their
turn (`pacing.py`). `CorrectionClient` asks the full model, and decides which failures end a promise.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass, field

from msgspec.structs import replace

from firstline_core.clock import Clock, first_of
from firstline_core.errors import (
    CapacityError,
    FirstlineError,
    RemoteTimeoutError,
    RequestError,
    RuntimeFailure,
    UnauthorizedError,
)
from firstline_core.protocol.backoff import full_jitter_s
from firstline_core.tasks import like
from firstline_core.tasks.base import Task
from firstline_core.telemetry import tracing
from firstline_core.telemetry.logs import logger
from firstline_core.types import Attempt, InferResponse, ModelVersion, Reason, TraceContext
from firstline_edge.cloud.chain import LinkChain
from firstline_edge.cloud.client import Contracts, ModelRefusals
from firstline_edge.cloud.links import Links
from firstline_edge.models.models import DeviceModel, Models
from firstline_edge.outbox.announcer import CONCURRENCY, Announce, Announcer
from firstline_edge.outbox.database import Receiver
from firstline_edge.outbox.item import OutboxItem, expire
from firstline_edge.outbox.outbox import Outbox
from firstline_edge.outbox.pacing import AT_ONCE, BACKOFF_MAX_S, BACKOFF_S, DeliveryRate, RateSettings, RetryQueue
from firstline_edge.outbox.timeline import CHECK_CLOCK_EVERY_S
from firstline_edge.requests.full_answers import merge

log = logger(__name__)

Merge = Callable[[InferResponse, tuple[int, ...], InferResponse, Task | None], InferResponse]

_TIMEOUT_S = 30.0
_REFUSALS = 5


@dataclass(eq=False)
class CorrectionClient:
    """Has the full model correct promises.

    Args:
        chain: the links to the gateway.
        models: the models of this device.
        contracts: the state of their certificates, exchanged with the gateway.
        model_refusals: records the gateway's refusals of models.
        clock: for timeouts.
        refusals: failures of the gateway's own (not of the link) after which a promise expires.
        merge: puts the corrected rows into the provisional answer; its result is final.
    """

    chain: LinkChain
    models: Models
    contracts: Contracts
    model_refusals: ModelRefusals
    clock: Clock
    _: KW_ONLY
    refusals: int = _REFUSALS
    merge: Merge = merge
    _refused: dict[str, int] = field(default_factory=dict, init=False)

    async def correct(self, item: OutboxItem) -> tuple[InferResponse, str]:
        """Returns the answer that ends the promise, and why the gateway refused to correct it ("" if it did not).

        Raises:
            FirstlineError: no answer yet; the promise must be retried.
        """
        request_id, answered = item.request_id, False
        model = self.models.find(*item.model)
        if model is not None and model.manifest.full_digest != item.request.full_model_digest:
            model = None  # the device has replaced the bundle since the promise
        task = model.manifest.task if model is not None else None
        try:
            correction = await self._ask(item, model)
            answered = True
            merged = self.merge(item.provisional, item.rows, correction, task)
            self.model_refusals.clear(item.model)
            return merged, ""
        except FirstlineError as error:
            # The operator can correct a refused token, so the item is retried.
            if not answered and (error.retryable or isinstance(error, UnauthorizedError)):
                raise
            refusal = error
        except Exception as error:  # the outermost loop of a promise: it must not block those behind it
            log.exception("outbox delivery failed unexpectedly", request_id=request_id)
            refusal = RuntimeFailure(f"The correction failed: {error!r}.")
        if not isinstance(refusal, RequestError):
            self._refused[request_id] = self._refused.get(request_id, 0) + 1
            if self._refused[request_id] < self.refusals:
                raise refusal
        self.model_refusals.record(item.model, refusal)
        if self.model_refusals.is_temporary(item.model, refusal):
            raise refusal
        return expire(item.provisional, Reason.CLOUD_ERROR, refusal.message), refusal.message

    def ended(self, request_id: str) -> None:
        """Forgets a promise that has ended."""
        self._refused.pop(request_id, None)

    async def _ask(self, item: OutboxItem, model: DeviceModel | None) -> InferResponse:
        """Returns the gateway's answer with the tries of this call, and applies its notice about the contract.

        Args:
            item: the promise.
            model: its bundle; None if the device does not hold it any more.
        """
        if model is None:
            alarm, outputs = None, like(item.provisional.arrays)
        else:
            alarm, outputs = self.contracts.alarm_of(model), model.manifest.outputs_of(model.manifest.full)
        attempts: list[Attempt] = []
        request = replace(item.request, alarm=alarm, promised=True)
        correction = await self.chain.infer(request, self.clock.monotonic_s() + _TIMEOUT_S, attempts, outputs)
        if correction.answer is None:
            return correction
        if model is not None:
            self.contracts.apply_notice(model, correction.answer.contract)
        return replace(correction, answer=replace(correction.answer, attempts=tuple(attempts)))


OnCorrection = Callable[[InferResponse, str, TraceContext | None], None]
"""Receives each answer once it is stored, why the gateway refused to correct it ("" if it did not), and the trace."""

_SPREAD_S = 2.0
"""Longest random wait of the first request after a reconnection, so that a fleet does not send at the same moment."""
_SHORTEST_WAIT_S = 0.05  # a promise may be overdue and still on its way to the disk


_PACE = RateSettings()


@dataclass(eq=False)
class Delivery:
    """Sends the outbox's promises: the oldest first, those of failing models last.

    Args:
        outbox: whose promises; those that were just stored, and whose callers wait (`wait=first`), are sent at once.
        client: asks the full model.
        chain: whether requests may be sent now.
        clock: for waits and ages.
        rng: for jitter.
        max_age_s: after which a promise expires.
        pace: how fast promises are delivered.
        on_correction: receives each answer that ended a promise, expired ones included.
    """

    outbox: Outbox
    client: CorrectionClient
    chain: LinkChain
    _: KW_ONLY
    clock: Clock
    rng: random.Random
    max_age_s: float
    pace: RateSettings = _PACE
    on_correction: OnCorrection = lambda _answer, _cause, _trace: None
    # By model, the code of the error that its corrections wait for.
    _waiting_for: dict[ModelVersion, str] = field(default_factory=dict, init=False)

    def __post_init__(self) -> None:
        self._recoveries = self.chain.recoveries
        self._queue = RetryQueue(self.outbox, self.chain.retries, self.clock, self.rng)
        self._rate = DeliveryRate(self.clock, self.rng, self.pace)
        self._under_way: set[str] = set()  # request ids of the promises that are being sent
        self._overtaking = 0  # those of them that do not wait for their turn

    async def run(self) -> None:
        """Delivers until it is cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._keep_working())
            while True:
                item = await self.outbox.stored.get()
                if self._may_overtake(item):
                    self._overtaking += 1
                    self._under_way.add(item.request_id)
                    tasks.create_task(self._overtake(item))

    def _may_overtake(self, item: OutboxItem) -> bool:
        """Whether a promise is sent now because its caller waits; otherwise it waits for its turn."""
        answer = item.provisional.answer
        waited_for = answer is not None and answer.reason is Reason.REQUESTED
        may_send = self.chain.available and not self._queue.is_failing(item.model) and self._overtaking < AT_ONCE
        return waited_for and may_send and bool(self._still_waiting([item]))

    async def _overtake(self, item: OutboxItem) -> None:
        try:
            await self._deliver(item)
        except Exception:  # the outermost loop of a task that must not end the others
            log.exception("outbox delivery failed unexpectedly", request_id=item.request_id)
        finally:
            self._overtaking -= 1
            self.outbox.changed.set()  # the others may have been chosen without it

    def _still_waiting(self, items: list[OutboxItem]) -> list[OutboxItem]:
        """Returns the promises that are not being sent, and have not ended since they were read."""
        return [item for item in items if item.request_id not in self._under_way and self.outbox.is_waiting(item)]

    async def _keep_working(self) -> None:
        failures = 0
        while True:
            await self.outbox.wait_pending()
            try:
                await self._work()
            except FirstlineError as error:  # the disk
                log.warning("outbox delivery failed", error=error.message)
            except Exception:  # the outermost loop of a task that must never end
                log.exception("outbox delivery failed unexpectedly")
            else:
                failures = 0
                continue
            await self.clock.sleep(full_jitter_s(self.rng, failures, base_s=BACKOFF_S, max_s=BACKOFF_MAX_S))
            failures += 1

    async def _work(self) -> None:
        """One step: ends overdue promises, or sends some, or waits."""
        self.outbox.changed.clear()
        ending = self._still_waiting(await self.outbox.overdue(self.max_age_s, AT_ONCE))
        for item in ending:
            await self._end(item, expire(item.provisional))
        if ending:
            return
        if self.chain.recoveries != self._recoveries:
            self._recoveries = self.chain.recoveries
            self._queue.release()
            self._rate.begin()
            await self.clock.sleep(self.rng.uniform(0, _SPREAD_S))
        if not self.chain.available:
            await self._wait()
            return
        if (pause_s := self._rate.wait_s) > 0:
            await self._wait(pause_s)
            return
        pending, others_in_s = await self._queue.next(self._under_way)
        items = self._still_waiting(pending)
        if not items:
            await self._wait(min(others_in_s, self.max_age_s))
            return
        chosen: list[OutboxItem] = []
        for item in items:
            if self._rate.wait_s > 0:
                break
            if self._queue.may_send(item):
                self._rate.sent()
                chosen.append(item)
        await self._send(chosen)

    async def _send(self, items: list[OutboxItem]) -> None:
        """Delivers these promises concurrently; a model waits if all of its promises failed."""
        self._under_way.update(item.request_id for item in items)
        failures: dict[ModelVersion, list[FirstlineError | None]] = {}
        async with asyncio.TaskGroup() as sending:
            tasks = [(item.model, sending.create_task(self._deliver(item))) for item in items]
        for model, task in tasks:
            failures.setdefault(model, []).append(task.result())
        if any(isinstance(task.result(), CapacityError | RemoteTimeoutError) for _, task in tasks):
            self._rate.refused()  # once for all that were sent together; a wait does not repair a model
        for model, errors in failures.items():
            self._queue.note(model, errors)

    async def _wait(self, retry_in_s: float = float("inf")) -> None:
        """Waits until a link is back, a promise expires, the promises have changed, or one may be retried.

        It waits until the next check of the wall clock at most.
        """
        expires_in_s = self.max_age_s - self.outbox.oldest_s
        await first_of(
            self.clock.sleep(max(_SHORTEST_WAIT_S, min(expires_in_s, retry_in_s, CHECK_CLOCK_EVERY_S))),
            self.chain.wait_recovery(self._recoveries),
            self.outbox.changed.wait(),
        )

    async def _deliver(self, item: OutboxItem) -> FirstlineError | None:
        """Delivers one promise and ends it; or makes it wait, and returns the error."""
        request_id, began_s = item.request_id, self.clock.monotonic_s()
        try:
            final, cause = await self.client.correct(item)
            seconds = self.clock.monotonic_s() - began_s
            self._rate.answered(seconds)
            tracing.record("correction", item.request.trace, seconds, request_id=request_id)
            await self._end(item, final, cause)
        except FirstlineError as error:
            self._warn(item, error)
            self._queue.failed(request_id, error)
            return error
        finally:
            self._under_way.discard(request_id)
        self._waiting_for.pop(item.model, None)
        return None

    def _warn(self, item: OutboxItem, error: FirstlineError) -> None:
        """Warns when a model's corrections start to wait, or wait for another reason, but not at each attempt."""
        write = log.debug if self._waiting_for.get(item.model) == error.code else log.warning
        self._waiting_for[item.model] = error.code
        write("corrections wait", model=item.request.model, waiting=self.outbox.depth, error=error.message)

    async def _end(self, item: OutboxItem, final: InferResponse, cause: str = "") -> None:
        request_id = item.request_id
        await self.outbox.finish(request_id, final)
        self._queue.ended(request_id)
        self.client.ended(request_id)
        waited_s = max(0.0, self.clock.wall_s() - item.created_wall_s)
        tracing.record("outbox", item.request.trace, waited_s, request_id=request_id)
        self.on_correction(final, cause, item.request.trace)


async def deliver_corrections(
    outbox: Outbox,
    client: CorrectionClient,
    links: Links,
    clock: Clock,
    *,
    max_age_s: float,
    on_correction: OnCorrection,
    report: Announce | None,
) -> None:
    """Delivers promises and announces their answers as soon as the disk lets the outbox be opened.

    Args:
        outbox: where promises are stored.
        client: asks the full model.
        links: to the gateway; without any, promises end by their age.
        clock: for waits and ages.
        max_age_s: after which a promise expires.
        on_correction: receives each answer that was corrected or has expired.
        report: reports these answers to the fleet; None for a device without a fleet.
    """
    await outbox.opened()
    rng = random.Random()  # noqa: S311 (jitter)
    delivery = Delivery(
        outbox, client, links.chain, clock=clock, rng=rng, max_age_s=max_age_s, on_correction=on_correction
    )
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(delivery.run(), name="delivery")
        if links.mqtt:
            announcer = Announcer(outbox, Receiver.APPLICATIONS, links.publish, links.wait_connected, clock, rng)
            tasks.create_task(announcer.run(), name="announcer")
        if report is not None:
            reporter = Announcer(outbox, Receiver.FLEET, report, links.wait_usable, clock, rng, together=CONCURRENCY)
            tasks.create_task(reporter.run(), name="reporter")
