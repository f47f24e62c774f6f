"""A gateway's own logic on simulated time: data plane, batcher, contracts. Model and transport are simulated."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from sqlalchemy import Connection, select
from support.databases import sqlite_store
from support.executor import ExecutorWithoutFiles, single_executor

from chaos.simulation.disk import Disk, SimulatedWriter
from chaos.simulation.models import full_says, served
from chaos.simulation.plan import Plan
from firstline_core.clock import Clock
from firstline_core.errors import FirstlineError, InferenceError, LinkDownError
from firstline_core.processing.decoding import FileDecoding
from firstline_core.protocol.limits import DEFAULT_LIMITS
from firstline_core.telemetry.metrics import RequestMetrics
from firstline_core.types import PROBABILITIES, Arrays, InferRequest, InferResponse, ModelKey
from firstline_gateway.contracts import records
from firstline_gateway.contracts.monitor import ContractMonitor
from firstline_gateway.contracts.records import AUDITS
from firstline_gateway.executors.base import Outcome
from firstline_gateway.models.residency import Residency
from firstline_gateway.serving.data_plane import GatewayDataPlane, ServingStatistics
from firstline_gateway.serving.deliveries.deliveries import Deliveries
from firstline_gateway.serving.deliveries.records import DELIVERIES
from firstline_gateway.serving.scheduling.admission import Bounds
from firstline_gateway.serving.scheduling.batcher import Batcher
from firstline_gateway.settings.settings import ContractsSection
from firstline_gateway.store.database import Database
from firstline_gateway.store.service_clock import ServiceClock
from firstline_gateway.tables import open_database

if TYPE_CHECKING:
    from chaos.simulation.book import Book

_QUEUE_S = 10.0
_MAX_BATCH_ROWS = 8
_REFRESH_S = 15.0


class SimulatedStore(SimulatedWriter[Connection]):
    """The part of a `Store` that a gateway's path of requests uses."""

    def __init__(self, disk: Disk, database: Database) -> None:
        super().__init__(disk, database.begin)
        self.database = database


class SimulatedExecutor(ExecutorWithoutFiles):
    """Implements `executors.base.Executor`: computes what the full model says, in simulated time; some batches fail."""

    def __init__(self, plan: Plan, clock: Clock, rng: random.Random, book: Book) -> None:
        super().__init__(plan.slots)
        self._plan = plan
        self._clock = clock
        self._rng = rng
        self._book = book

    async def run(self, key: ModelKey, inputs: Sequence[Arrays], deadlines_s: Sequence[float | None]) -> list[Outcome]:
        self.running += 1
        try:
            await self._clock.sleep(self._plan.service_s * self._rng.uniform(0.5, 1.5))
        finally:
            self.running -= 1
        quiet = self._clock.monotonic_s() >= self._plan.quiet_from_s
        if not quiet and self._rng.random() < self._plan.failing:
            self._book.failed += 1
            failure: list[Outcome] = [InferenceError("The full model's runtime failed.")]
            return failure * len(inputs)
        return [{PROBABILITIES: full_says(each["x"][:, 0])} for each in inputs]


class Cloud:
    """A gateway that can be killed: what runs then is never answered, and it answers only after it is started again.

    Implements `simulation.network.Gateway`.
    """

    def __init__(self, plan: Plan, folder: Path, clock: Clock, rng: random.Random, book: Book) -> None:
        self._plan = plan
        self._store = sqlite_store(folder)
        self._clock = clock
        self._rng = rng
        self._book = book
        self._tasks: set[asyncio.Task[InferResponse]] = set()
        self._plane: GatewayDataPlane | None = None
        self._repository = served()
        self._keys = [model.key for model in self._repository]

    def start(self) -> None:
        executor = SimulatedExecutor(self._plan, self._clock, self._rng, self._book)
        dispatcher = single_executor(executor, self._repository, clock=self._clock)
        batcher = Batcher(
            dispatcher,
            clock=self._clock,
            bounds=Bounds(
                requests=self._plan.queue_requests, size_bytes=1 << 20, seconds=_QUEUE_S, batch_rows=_MAX_BATCH_ROWS
            ),
        )
        database = open_database(self._store)
        metrics = RequestMetrics("gateway")
        disk = Disk(self._plan.fsync_s)
        store = SimulatedStore(disk, database)
        service = ServiceClock(database, self._clock)
        contracts = ContractMonitor(
            store, self._repository, ContractsSection(), metrics=metrics, clock=self._clock, service=service
        )
        self._deliveries = deliveries = Deliveries(
            store, self._store, metrics=metrics, clock=self._clock, service=service
        )
        statistics = ServingStatistics(metrics, self._clock)
        residency = Residency(self._repository, executor, clock=self._clock)
        decoding = FileDecoding(1, 1 << 20, self._clock)  # its threads start with the first image
        self._plane = GatewayDataPlane(
            self._repository,
            batcher,
            contracts,
            deliveries,
            dispatcher=dispatcher,
            counts=statistics,
            residency=residency,
            decoding=decoding,
            clock=self._clock,
            limits=DEFAULT_LIMITS,
        )
        self._executor, self._batcher, self._database, self._disk = executor, batcher, database, disk

    async def refresh(self, until_s: float) -> None:
        """As `Gateway._refresh`: brings the store's own clock forward, and has it forget."""
        while self._clock.monotonic_s() < until_s:
            await self._clock.sleep(_REFRESH_S)
            if self._plane is not None:
                self._deliveries.advance().add_done_callback(lambda ended: ended.cancelled() or ended.exception())

    async def kill(self) -> None:
        """What runs is never answered, and who asks is refused; harmless where it is dead already."""
        if self._plane is None:
            return
        self._plane = None
        self._disk.dead = True
        running = list(self._tasks)
        for task in running:
            task.cancel()
        try:
            await asyncio.gather(*running, return_exceptions=True)
        finally:
            self._database.close()

    def check_up(self) -> None:
        """Raises LinkDownError without a listener."""
        if self._plane is None:
            raise LinkDownError("The connection was refused.")

    def check_bounds(self) -> None:
        """Raises where more waits or runs than may."""
        if not self._tasks:
            return
        for key in self._keys:
            waiting = self._batcher._queue.of(key).requests
            self._book.holds(
                waiting <= self._plan.queue_requests, "{} requests for {} wait at the gateway", waiting, key.name
            )
        self._book.holds(self._executor.running <= self._plan.slots, "{} batches run at once", self._executor.running)

    async def answer(self, request: InferRequest) -> InferResponse:
        """As over a connection: a client that leaves does not cancel its request.

        Raises:
            LinkDownError: there is no listener, or the gateway died meanwhile.
            FirstlineError: its words.
        """
        self.check_up()
        self._book.reached(request)
        work = asyncio.create_task(self._plane.infer(request))
        self._tasks.add(work)
        work.add_done_callback(self._ended)
        await asyncio.wait({work})
        if work.cancelled():
            raise LinkDownError("The connection was reset.")
        response = work.result()
        if request.promised:
            self._book.delivered(response)
        return response

    def recorded(self) -> set[str]:
        """The ids of all deliveries that were answered."""
        with self._database.reading() as connection:
            return set(connection.execute(select(DELIVERIES.c.request_id)).scalars())

    def audits(self) -> tuple[set[str], int]:
        """The ids of those that are known as counted, and how many count in the pools."""
        with self._database.reading() as connection:
            audited_ids = set(connection.execute(select(AUDITS.c.request_id)).scalars())
            return audited_ids, sum(pool.state.audits for pool in records.pools(connection))

    def _ended(self, work: asyncio.Task[InferResponse]) -> None:
        self._tasks.discard(work)
        if not work.cancelled() and not isinstance(work.exception(), FirstlineError | None):
            self._book.broke(work.exception())
