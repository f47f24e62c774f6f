"""Sends messages to the webhooks in the settings: in order, at least once, retried for a day."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial

import httpx
from prometheus_client import Counter
from sqlalchemy import Connection

from firstline_core.clock import SYSTEM_CLOCK, Clock
from firstline_core.errors import FirstlineError, NotFoundError, listed
from firstline_core.fleet.rest import WebhookState, WebhookTest
from firstline_core.ids import new_request_id
from firstline_core.protocol.tensors import shown
from firstline_core.storage.setting_places import quoted
from firstline_core.telemetry.logs import logger
from firstline_core.telemetry.metrics import RequestMetrics
from firstline_gateway.background import PeriodicTask
from firstline_gateway.settings.settings import WebhookSection
from firstline_gateway.store.service_clock import ServiceClock
from firstline_gateway.store.store import Store
from firstline_gateway.webhooks import messages, records
from firstline_gateway.webhooks.messages import Message, Queue
from firstline_gateway.webhooks.receiver import Receiver, receiver_of
from firstline_gateway.webhooks.records import Position

RETRY_S = 5.0
"""Delay after the first failed attempt in seconds; it doubles with each further one."""
LONGEST_RETRY_S = 3600.0
GIVE_UP_S = 86_400.0
"""Time of service with failed attempts only, after which a failed message is skipped."""

_LOOK_S = 1.0
_PAGE = 100
# A round ends before its claim does: its last attempt may begin after `_ROUND_S`.
_ROUND_S, _CLAIM_S = 15.0, 30.0
_RNG = random.SystemRandom()

log = logger(__name__)


class Webhooks:
    """Sends the messages of all webhooks. Belongs to one event loop.

    Args:
        settings: the webhooks by name.
        store: has their queues and positions.
        metrics: counts messages.
        clock: for wall time and intervals.
        service: measures delays.

    Raises:
        ConfigError: see `receiver_of`.
    """

    def __init__(
        self,
        settings: Mapping[str, WebhookSection],
        store: Store,
        *,
        metrics: RequestMetrics,
        clock: Clock,
        service: ServiceClock,
    ) -> None:
        self._store = store
        counter = metrics.counter(
            "webhook_attempts_total",
            "Attempts to send a message to a webhook by result: delivered, failed, skipped (failed for a day).",
            ("webhook", "result"),
        )
        self._clock = clock
        self._receivers = {name: receiver_of(name, each, clock) for name, each in settings.items()}
        self._senders = [
            _Sender(self._receivers[name], queue, kinds, store, counter, clock, service)
            for name, each in settings.items()
            for queue, kinds in messages.queues(each.events)
        ]
        metrics.readings(
            "webhook_up",
            "0 from the first failed attempt to send a message to a webhook until one is delivered.",
            ("webhook",),
            self._up,
        )
        self._tasks = [
            PeriodicTask(f"webhook {sender.key}", sender.send, interval_s=_LOOK_S, clock=clock)
            for sender in self._senders
        ]

    async def start(self) -> None:
        """Starts to send; a webhook that is new receives what happens from now on."""
        if self._senders:
            with contextlib.suppress(FirstlineError):  # each sender does it again
                for sender in self._senders:
                    await self._store.write(sender.begin)
        for task in self._tasks:
            await task.start()

    async def close(self) -> None:
        """Stops sending."""
        for task in self._tasks:
            await task.close()

    def _up(self) -> dict[tuple[str, ...], float]:
        """Returns 0 for each webhook whose latest attempt failed, at any replica, and 1 for others."""
        failing = {sender.name for sender in self._senders if sender.failing}
        return {(name,): float(name not in failing) for name in self._receivers}

    async def states(self) -> list[WebhookState]:
        """Returns the state of each webhook.

        Raises:
            StoreUnavailableError: the store refuses.
        """
        found: dict[str, WebhookState] = {}
        for sender in self._senders:
            position = await self._store.read(partial(records.find, webhook=sender.key)) or Position(0)
            before = found.get(sender.name, WebhookState(sender.name, "", delivered=False))
            problem = before.problem or position.problem
            found[sender.name] = WebhookState(sender.name, problem, before.delivered or position.delivered)
        return list(found.values())

    async def test(self, name: str) -> WebhookTest:
        """Sends a test message at once, outside the queues: it changes no state.

        Raises:
            NotFoundError: there is no such webhook.
        """
        found = self._receivers.get(name)
        if found is None:
            names = sorted(self._receivers)
            choices = (
                listed(name, names, "it has:")
                if names
                else f"; add [webhooks.{quoted(name)}], and restart the gateway."
            )
            raise NotFoundError(f"This gateway has no webhook {shown(name)} in its settings{choices}")
        message = messages.of_test(name, self._clock.wall_s())
        async with found.client() as client:
            attempt = await found.attempt(message, client)
        log.info("webhook tested", webhook=name, status=attempt.status, why=attempt.problem)
        return WebhookTest(name, message.id, **attempt._asdict())


@dataclass(eq=False)
class _Sender:
    """Sends the messages of one queue to one webhook.

    Attributes:
        key: under which its position in the queue is stored.
        failing: whether the latest attempt failed, as of the latest round.
    """

    receiver: Receiver
    queue: Queue
    events: tuple[str, ...]
    store: Store
    counter: Counter
    clock: Clock
    service: ServiceClock

    def __post_init__(self) -> None:
        self.name = self.receiver.name
        self.key = f"{self.name}{self.queue.suffix}"
        self.failing = False
        self._holder = new_request_id()

    def begin(self, connection: Connection) -> None:
        """Begins at the end of the queue, if it has no position yet."""
        records.add(connection, self.key, self.queue.last(connection))

    async def send(self) -> None:
        """Sends what waits, until an attempt fails or the round has taken long."""
        found = await self.store.read(partial(records.find, webhook=self.key))
        self.failing = found is not None and found.problem != ""
        if found is None:
            await self.store.write(self.begin)
            return
        if found.due_service_s > self.service.now_s() or not await self._waiting(found):
            return
        claim = partial(records.claim, webhook=self.key, holder=self._holder, for_s=_CLAIM_S)
        position = await self.store.write(partial(claim, service_s=self.service.now_s()))
        if position is None:
            return
        position = replace(position, due_service_s=0.0)
        ends_s = self.clock.monotonic_s() + _ROUND_S
        try:
            async with self.receiver.client() as client:
                for message in await self._waiting(position):
                    position = await self._deliver(message, position, client)
                    if position.due_service_s or self.clock.monotonic_s() >= ends_s:
                        break
        finally:  # also while the gateway stops
            released = self.store.submit(
                partial(records.release, webhook=self.key, holder=self._holder, after=position)
            )
        await asyncio.wrap_future(released)

    async def _waiting(self, after: Position) -> list[Message]:
        return await self.store.read(lambda on: self.queue.page(on, after.number, _PAGE))

    async def _deliver(self, message: Message, position: Position, client: httpx.AsyncClient) -> Position:
        """Sends a message if it is wanted, and returns the position after that."""
        if not message.is_wanted(self.events):
            return replace(position, number=message.number)
        problem = (await self.receiver.attempt(message, client)).problem
        if not problem:
            self.counter.labels(self.name, "delivered").inc()
            if position.problem:
                log.info("webhook delivers again", webhook=self.name)
            return Position(message.number, delivered=True)
        self.counter.labels(self.name, "failed").inc()
        if not position.problem:
            log.error("webhook failed", webhook=self.name, why=problem)
        return self._failed(message, position, problem)

    def _failed(self, message: Message, position: Position, problem: str) -> Position:
        now_s, since_s = self.service.now_s(), position.failing_service_s
        number = position.number
        if since_s is not None and now_s - since_s >= GIVE_UP_S:
            self.counter.labels(self.name, "skipped").inc()
            log.error("webhook message skipped", webhook=self.key, number=message.number, why=problem)
            number = message.number
        longest_s = min(LONGEST_RETRY_S, RETRY_S * 2.0 ** min(position.failures, 20))
        return Position(
            number,
            due_service_s=now_s + _RNG.uniform(longest_s / 2, longest_s),
            failures=position.failures + 1,
            failing_service_s=now_s if since_s is None else since_s,
            problem=problem,
            delivered=position.delivered,
        )


def check(settings: Mapping[str, WebhookSection]) -> None:
    """Checks the webhooks before a gateway starts. Blocks.

    Raises:
        ConfigError: see `receiver_of`.
    """
    for name, each in settings.items():
        receiver_of(name, each, SYSTEM_CLOCK)
