"""Promised corrections: stores them, has the full model compute them, and announces them."""

from __future__ import annotations

import asyncio
import random

from firstline_core.clock import Clock
from firstline_core.types import ContractNotice, InferRequest
from firstline_edge.cloud.chain import LinkChain
from firstline_edge.cloud.client import Contracts, ModelRefusals
from firstline_edge.cloud.links import Links
from firstline_edge.models.models import Models
from firstline_edge.outbox.announcer import Announcer
from firstline_edge.outbox.delivery import Delivery, OnCorrection
from firstline_edge.outbox.item import OutboxItem
from firstline_edge.outbox.reopening import ReopeningOutbox
from firstline_edge.requests.full_answers import merge


class Corrections:
    """Stores promises, delivers them to the full model, and announces the corrections.

    Args:
        outbox: where promises are stored.
        links: to the gateway; without any, promises end by their age.
        models: the models held.
        contracts: how their certificates stand, which the gateway receives, and answers.
        model_refusals: records the gateway's refusals of models.
        max_age_s: after which a promise expires.
        on_correction: receives each answer that was corrected or has expired.
        clock: for waits and ages.
    """

    def __init__(
        self,
        outbox: ReopeningOutbox,
        links: Links,
        *,
        models: Models,
        contracts: Contracts,
        model_refusals: ModelRefusals,
        max_age_s: float,
        on_correction: OnCorrection,
        clock: Clock,
    ) -> None:
        self._outbox = outbox
        self._links = links
        self._models = models
        self._contracts = contracts
        self._model_refusals = model_refusals
        self._max_age_s = max_age_s
        self._on_correction = on_correction
        self._clock = clock
        self._delivery: Delivery | None = None  # until the disk lets the outbox be opened

    async def put(self, item: OutboxItem) -> None:
        """Stores a promise, and sends it at once if its caller waits for it.

        Raises:
            CapacityError: the outbox is full, or cannot be used now.
        """
        await self._outbox.current().put(item)
        if self._delivery is not None:
            self._delivery.hurry(item)

    async def run(self) -> None:
        """Delivers promises as soon as the disk lets the outbox be opened, until it is cancelled."""
        outbox, rng = await self._outbox.opened(), random.Random()  # noqa: S311 (jitter)
        chain = self._links.chain or LinkChain([], [], self._clock)
        self._delivery = delivery = Delivery(
            outbox,
            chain,
            merge,
            self._clock,
            rng,
            max_age_s=self._max_age_s,
            on_correction=self._on_correction,
            model_refusals=self._model_refusals,
            alarm=self._alarm_of,
            apply_notice=self._apply_notice,
            retries=chain.retries,
        )
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(delivery.run(), name="delivery")
            if self._links.mqtt:
                announcer = Announcer(outbox, self._links, self._clock, rng)
                tasks.create_task(announcer.run(), name="announcer")

    def _alarm_of(self, request: InferRequest) -> str:
        held = self._models.find(request.model, request.version)
        return self._contracts.alarm_of(held) if held is not None else ""

    def _apply_notice(self, request: InferRequest, notice: ContractNotice | None) -> None:
        held = self._models.find(request.model, request.version)
        if held is not None:
            self._contracts.apply_notice(held, notice)
