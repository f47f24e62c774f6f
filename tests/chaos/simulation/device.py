"""An agent's own logic on simulated time, over the outbox's own file; it can be killed and started again."""

from __future__ import annotations

import asyncio
import random
import shutil
from collections.abc import Coroutine
from pathlib import Path
from typing import TYPE_CHECKING, Any

from support.budgets import unpriced_spending
from support.edge import NoAudits, NoContracts

from chaos.simulation import models
from chaos.simulation.cloud import Cloud
from chaos.simulation.disk import Disk, outbox_writer
from chaos.simulation.plan import Plan
from chaos.simulation.wire import CorrectionPublisher, GatewayLink
from firstline_core.clock import Clock
from firstline_core.errors import FirstlineError
from firstline_core.processing.decoding import FileDecoding
from firstline_core.types import InferRequest
from firstline_edge.adaptation.variants import VariantChooser
from firstline_edge.cache.results import ResultCache
from firstline_edge.cascade.cascade import Cascade, EdgeRuns, RowDecisions, TierRouter
from firstline_edge.cascade.escalation import Escalation
from firstline_edge.cascade.hedging import Hedging
from firstline_edge.cloud.breaker import CircuitBreaker
from firstline_edge.cloud.chain import LinkChain
from firstline_edge.cloud.client import CloudClient, LiveTraffic, ModelRefusals
from firstline_edge.models.models import Models
from firstline_edge.outbox.announcer import Announcer
from firstline_edge.outbox.database import Receiver
from firstline_edge.outbox.delivery import CorrectionClient, Delivery
from firstline_edge.outbox.outbox import Outbox
from firstline_edge.requests.context import RequestContext
from firstline_edge.settings.settings import HedgeSection, OutboxSection

if TYPE_CHECKING:
    from chaos.simulation.book import Book

_TIMEOUT_S = 2.0
_RESERVE_S = 0.02


class Device:
    """See the module.

    Args:
        plan: what goes wrong.
        folder: empty; each life of the process has a folder of its own there.
        cloud: at the far end of its link.
    """

    def __init__(self, plan: Plan, folder: Path, clock: Clock, rng: random.Random, *, cloud: Cloud, book: Book) -> None:
        self._plan = plan
        self._folder = folder
        self._clock = clock
        self._rng = rng
        self._cloud = cloud
        self._book = book
        self._lives = 0
        self._tasks: set[asyncio.Task[Any]] = set()
        self.up = False
        self.outbox: Outbox
        self.chain: LinkChain

    @property
    def state(self) -> Path:
        """The outbox's file in this life."""
        return self._folder / f"life-{self._lives}" / "outbox.db"

    async def start(self) -> None:
        """As `EdgeAgent` builds an agent."""
        plan, clock, rng = self._plan, self._clock, self._rng
        self.disk = Disk(plan.fsync_s)
        limits = OutboxSection(limit_items=plan.outbox_items, max_age_s=plan.max_age_s)
        writer = outbox_writer(self.disk, self._book.committed)
        self.outbox = Outbox(self.state, limits, announcing=lambda: [Receiver.APPLICATIONS], clock=clock, writer=writer)
        link = GatewayLink(plan.weather, self._cloud, clock, rng, self._book)
        self.chain = chain = LinkChain([link], [CircuitBreaker(clock, rng)], clock)
        cache = ResultCache(limit_bytes=1 << 20, ttl_s=60, disk=None, clock=clock)
        model_refusals = ModelRefusals(clock)
        gateway = CloudClient(chain, cache, clock, model_refusals, contracts=NoContracts(), traffic=LiveTraffic())
        spending = unpriced_spending(clock)
        hedging = Hedging(gateway, clock, HedgeSection(), _RESERVE_S, spending)
        device_models = Models(models.held(plan.row_ms, clock))
        client = CorrectionClient(chain, device_models, NoContracts(), model_refusals, clock)
        delivery = Delivery(self.outbox, client, chain, clock=clock, rng=rng, max_age_s=plan.max_age_s)
        edge_runs = EdgeRuns(cache, spending, FileDecoding(1, 1 << 28, clock), clock)
        self._cascade = Cascade(
            models=device_models,
            chooser=VariantChooser(gateway, clock, _RESERVE_S, lambda _: 0.0),
            edge_runs=edge_runs,
            decisions=RowDecisions(TierRouter(min_threshold=0.0, clock=clock), cache, spending, clock),
            hedging=hedging,
            escalation=Escalation(gateway, self.outbox, NoAudits(), edge_runs.compute, clock, reserve_s=_RESERVE_S),
            audits=NoAudits(),
            limit_bytes=1 << 20,
        )
        self._closes = (hedging.close, edge_runs.close, gateway.close, chain.close)
        await self._book.started(self.outbox)
        await chain.start()
        self._spawn(delivery.run())
        broker = CorrectionPublisher(plan.mutes, clock, self._book)
        announcer = Announcer(self.outbox, Receiver.APPLICATIONS, broker.publish, broker.wait_connected, clock, rng)
        self._spawn(announcer.run())
        self.up = True

    async def kill(self) -> None:
        """`kill -9`: it writes and sends nothing any more; the disk stays as it was."""
        if not self.up:
            return
        self.up = False
        self.disk.dead = True
        before = self.state.parent
        self._lives += 1
        shutil.copytree(before, self.state.parent)  # with its journal, as a process leaves it that is not asked
        running = list(self._tasks)
        for task in running:
            task.cancel()
        try:
            await asyncio.gather(*running, return_exceptions=True)
            for close in self._closes:
                await close()
        finally:
            self.outbox.close()

    def ask(self, request: InferRequest) -> None:
        """As over a connection that ends with the process."""
        self._spawn(self._ask(request))

    async def _ask(self, request: InferRequest) -> None:
        try:
            deadline_s = request.deadline_s or self._clock.monotonic_s() + _TIMEOUT_S
            response = await self._cascade.infer(RequestContext(request, deadline_s))
        except FirstlineError as error:
            self._book.refused(request.request_id, error)
        except asyncio.CancelledError:
            self._book.cut(request.request_id)
            raise
        else:
            self._book.answered(request.request_id, response)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            self._book.broke(task.exception())
