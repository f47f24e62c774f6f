"""Promised corrections: stores them, has the full model compute them, and announces them."""

from __future__ import annotations

import asyncio
import random

from firstline_core.clock import Clock
from firstline_edge.cloud.links import Links
from firstline_edge.outbox.announcer import Announcer
from firstline_edge.outbox.correction_client import CorrectionClient
from firstline_edge.outbox.delivery import Delivery, DeliverySettings, OnCorrection
from firstline_edge.outbox.item import OutboxItem
from firstline_edge.outbox.reopening import ReopeningOutbox

_STORED = 64
"""New promises that delivery has not looked at yet."""


class Corrections:
    """Stores promises, delivers them to the full model, and announces the corrections.

    Args:
        outbox: where promises are stored.
        client: asks the full model.
        links: to the gateway; without any, promises end by their age.
        clock: for waits and ages.
        max_age_s: after which a promise expires.
        on_correction: receives each answer that was corrected or has expired.
    """

    def __init__(
        self,
        outbox: ReopeningOutbox,
        client: CorrectionClient,
        links: Links,
        clock: Clock,
        *,
        max_age_s: float,
        on_correction: OnCorrection,
    ) -> None:
        self._outbox = outbox
        self._client = client
        self._links = links
        self._clock = clock
        self._max_age_s = max_age_s
        self._on_correction = on_correction
        self._stored: asyncio.Queue[OutboxItem] = asyncio.Queue(_STORED)

    async def put(self, item: OutboxItem) -> None:
        """Stores a promise, and sends it at once if its caller waits for it (`wait=first`) and a link works.

        Raises:
            CapacityError: the outbox is full, or cannot be used now.
        """
        await self._outbox.current().put(item)
        if not self._stored.full():  # otherwise it is delivered in its turn
            self._stored.put_nowait(item)

    async def run(self) -> None:
        """Delivers promises as soon as the disk lets the outbox be opened, until it is cancelled."""
        outbox, rng = await self._outbox.opened(), random.Random()  # noqa: S311 (jitter)
        settings = DeliverySettings(self._max_age_s)
        delivery = Delivery(
            outbox,
            self._stored,
            self._client,
            self._links.chain,
            clock=self._clock,
            rng=rng,
            settings=settings,
            on_correction=self._on_correction,
        )
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(delivery.run(), name="delivery")
            if self._links.mqtt:
                announcer = Announcer(outbox, self._links, self._clock, rng)
                tasks.create_task(announcer.run(), name="announcer")
