"""The gateway: its parts put together, begun, drained and ended."""

from __future__ import annotations

import asyncio
from functools import partial
from pathlib import Path

from firstline_core.clock import SYSTEM_CLOCK, Clock
from firstline_core.errors import CapacityError
from firstline_core.protocol.http_server import OverloadGuard
from firstline_core.telemetry.logs import logger
from firstline_gateway import mqtt
from firstline_gateway.api.bodies import BodyBudget
from firstline_gateway.api.overload import OVERLOADED
from firstline_gateway.broker.wiring import broker_keeper
from firstline_gateway.contracts.monitor import ContractMonitor
from firstline_gateway.executors import metrics as executor_metrics
from firstline_gateway.executors.base import Executor, ExecutorReport
from firstline_gateway.fleet.wiring import FleetRoom
from firstline_gateway.identity.identity import Identity
from firstline_gateway.jobs.endings import Endings
from firstline_gateway.jobs.jobs import Jobs
from firstline_gateway.jobs.runner import JobRunner
from firstline_gateway.models.folder import named
from firstline_gateway.models.repository import Repository
from firstline_gateway.models.residency.memory import Load
from firstline_gateway.models.residency.residency import Residency
from firstline_gateway.mqtt import MqttConsumer
from firstline_gateway.serving.answering import Answering
from firstline_gateway.serving.data_plane import GatewayDataPlane
from firstline_gateway.serving.deliveries.deliveries import Deliveries
from firstline_gateway.serving.response_cache import ResponseCache
from firstline_gateway.serving.scheduling.admission import Bounds
from firstline_gateway.serving.scheduling.batcher import Batcher
from firstline_gateway.settings.settings import Settings
from firstline_gateway.store.database import open_database
from firstline_gateway.store.readers import Readers
from firstline_gateway.store.service import ServiceClock
from firstline_gateway.store.writer import StoreWriter
from firstline_gateway.telemetry.counting import Counting
from firstline_gateway.telemetry.metrics import GatewayMetrics
from firstline_gateway.telemetry.statistics import Statistics

# A batch whose clients have left may run as long, before the process ends with it.
_CLOSE_S = 5.0
# How late a replica learns of an alarm or a quota that came by another, at most.
_REFRESH_S = 5.0
# How often what devices counted long ago is forgotten.
_FORGET_S = 3600.0
# For telling the devices whose requests are given up.
_PUBLISH_S = 1.0

log = logger(__name__)


class Gateway:
    """One gateway, free of any transport's server.

    Args:
        settings: as `settings/load.py` gave them.
        repository: the models, loaded.
        executor: runs them; the gateway closes it.
        load: one of them into memory; None where they run elsewhere.
        clock: what deadlines and durations are on.

    Raises:
        ConfigError: the token file, the store, the contracts' file, the broker's password or the topics are no good.
    """

    def __init__(
        self,
        settings: Settings,
        repository: Repository,
        executor: Executor,
        *,
        load: Load | None = None,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self.settings = settings
        self.repository = repository
        self.clock = clock
        self.metrics = GatewayMetrics()
        self.bodies = BodyBudget(settings.api.bodies_limit_bytes)
        self._executor = executor
        self._refreshing: asyncio.Task[None] | None = None
        statistics = Statistics()
        concurrency_of = settings.models.concurrency_of
        batcher = Batcher(
            executor,
            clock=clock,
            bounds=Bounds(
                requests=settings.execution.queue_requests,
                size_bytes=settings.execution.queue_bytes,
                seconds=settings.execution.queue_s,
                batch_rows=settings.execution.max_batch_rows,
            ),
            concurrency=lambda key: concurrency_of.get(key.name, settings.models.concurrency),
            on_batch=self.metrics.batch,
            on_late=self.metrics.late,
            on_ran=statistics.ran,
        )
        self.residency = Residency(
            repository,
            executor,
            load=load,
            find=partial(
                named,
                Path(settings.models.directory),
                must_be_whole=load is not None,
                fetched=settings.fetched_models,
            ),
            budget_bytes=settings.models.memory_budget_mb << 20,
            patience_s=settings.execution.queue_s,
            background=not settings.models.wait,
            clock=clock,
        )
        memory = self.residency.memory
        self.metrics.models(lambda: len(memory.resident), lambda: memory.used_bytes)
        self.overload = OverloadGuard(lambda: batcher.wait_s, lambda: self.metrics.error(OVERLOADED))
        executor_metrics.register(self.metrics, executor.report)
        self.metrics.queue(lambda: batcher.depth, lambda: batcher.wait_s)
        self.database = open_database(settings.store)
        self.writer = StoreWriter(self.database)
        service = ServiceClock(self.database, clock)
        self.identity = Identity(settings, self.database, self.writer, clock=clock)
        self.contracts = ContractMonitor(
            self.database,
            self.writer,
            repository,
            settings.contracts,
            metrics=self.metrics,
            clock=clock,
            service=service,
        )
        self.deliveries = Deliveries(
            self.database, self.writer, settings.store, metrics=self.metrics, clock=clock, service=service
        )
        self.metrics.store(lambda: float(not self.writer.trouble))
        counting = Counting(self.metrics, statistics, clock)
        self.answering = Answering(
            repository,
            batcher,
            self.contracts,
            self.deliveries,
            counting=counting,
            residency=self.residency,
            cache=ResponseCache(settings.cache.limit_bytes) if settings.cache.limit_bytes else None,
            clock=clock,
        )
        self.plane = GatewayDataPlane(
            repository,
            batcher,
            self.answering,
            counting=counting,
            residency=self.residency,
            limits=settings.limits,
            looks_after_fleet=bool(settings.registry.blobs),
        )
        self._readers = Readers(self.database)
        endings = Endings(self._readers, clock, settings.jobs.waiting_limit)
        self.jobs = Jobs(self._readers, self.writer, settings.jobs, clock=clock, service=service, endings=endings)
        self._job_runner = JobRunner(
            self.plane,
            self._readers,
            self.writer,
            settings.jobs,
            endings=endings,
            metrics=self.metrics,
            clock=clock,
            service=service,
        )
        self.jobs.on_new = self._job_runner.wake
        known = self.identity.gatekeeper.known
        self._broker = broker_keeper(settings, self.identity.folder, known, clock)
        if self._broker is not None:
            self._broker.refresh()  # the password that the next lines read may be made by this
        self.fleet_room = FleetRoom(
            settings,
            self.database,
            self._readers,
            self.writer,
            identity=self.identity,
            repository=repository,
            orders=self.residency.orders,
            must_be_whole=load is not None,
            clock=clock,
            service=service,
        )
        self.fleet, self.rollouts = self.fleet_room.fleet, self.fleet_room.rollouts
        self.profiles, self.profile_requests = self.fleet_room.profiles, self.fleet_room.profile_requests
        self.registry, self.trail = self.fleet_room.registry, self.fleet_room.trail
        self.metrics.expiries(lambda: {} if self.registry is None else self.registry.keeper.expiries)
        self._mqtt = (
            MqttConsumer(self.plane, settings.mqtt, metrics=self.metrics, clock=clock, is_revoked=known.is_revoked)
            if settings.mqtt.enabled
            else None
        )

    @property
    def executors(self) -> tuple[ExecutorReport, ...]:
        """How each of several executors is; none where there is one."""
        return self._executor.report().executors

    async def start(self) -> None:
        """Begins to follow the store, and to take requests over MQTT; a broker that is away is tried again."""
        self._refreshing = asyncio.create_task(self._refresh())
        await self._executor.start()
        await self.residency.start()
        await self.identity.start()
        await self._job_runner.start()
        if self._broker is not None:
            self._broker.start(mqtt.connection_settings(self.settings.mqtt, self.plane.limits.body_bytes))
        if self._mqtt is not None:
            await self._mqtt.start()
        await self.fleet_room.start()

    async def drain(self, timeout_s: float) -> bool:
        """Refuses new requests and waits for those in flight; False where they took longer than `timeout_s`.

        Jobs that run are left to whoever comes next.
        """
        await self.jobs.endings.close()
        await self._job_runner.close()
        try:
            async with asyncio.timeout(timeout_s):
                if self._mqtt is not None:
                    # First: what the broker gave while this gateway refuses would be refused, though others have room.
                    await self._mqtt.stop_taking()
                await self.answering.drain()
                if self._mqtt is not None:
                    await self._mqtt.drain()
        except TimeoutError:
            return False
        return True

    async def abandon(self) -> None:
        """Answers what a drain did not wait for with `NotReadyError`, over MQTT too."""
        self.answering.abandon()
        if self._mqtt is not None:
            try:
                async with asyncio.timeout(_PUBLISH_S):
                    await self._mqtt.drain()
            except TimeoutError:
                log.warning("answers not published", after_s=_PUBLISH_S)

    async def close(self, timeout_s: float = _CLOSE_S) -> bool:
        """Ends MQTT, writes what is to be kept and frees the models; what is at work has `timeout_s` to finish.

        Returns:
            False where a batch runs on, or a database says nothing: only the end of the process ends those.
        """
        if self._mqtt is not None:
            await self._mqtt.close()
        await self.fleet_room.close()
        if self._broker is not None:
            await self._broker.close()
        await self.jobs.endings.close()
        await self._job_runner.close()
        await self.identity.close()
        await self.residency.close()
        if self._refreshing is not None:
            self._refreshing.cancel()
        self.contracts.close()
        ends = (self.deliveries.close, self.identity.readers.close, self._readers.close, self.writer.close)
        ended = await asyncio.gather(
            self._executor.close(timeout_s), *(asyncio.to_thread(end, timeout_s) for end in ends)
        )
        if all(ended):
            self.database.close()
        return all(ended)

    async def _refresh(self) -> None:
        """Learns what other replicas put into the store, and has it forget; one that is away leaves what is known."""
        forgotten_s = self.clock.monotonic_s()
        while True:
            await self.clock.sleep(_REFRESH_S)
            try:
                if self.clock.monotonic_s() - forgotten_s >= _FORGET_S:
                    forgotten_s = self.clock.monotonic_s()
                    await self.fleet.forget_old()
                await asyncio.wrap_future(self.contracts.refresh())
                await self.fleet.keep_tiers()
                await self.deliveries.advance()  # a write, however small, that tells whether the store takes any
            except CapacityError:
                pass  # the writer says so, once
            except Exception:  # the outermost loop of a task that must never end
                log.exception("the store could not be followed")
