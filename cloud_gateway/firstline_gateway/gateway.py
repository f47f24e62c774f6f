"""The gateway put together from its settings: models, engine, batcher, data plane, identities, MQTT."""

from __future__ import annotations

import asyncio
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from firstline_core.clock import SYSTEM_CLOCK, Clock
from firstline_core.errors import CapacityError
from firstline_core.fleet.twin import LIMIT_BYTES
from firstline_core.runtime.select import RuntimeOptions, check_options
from firstline_core.telemetry.logs import logger
from firstline_gateway import mqtt
from firstline_gateway.api.bodies import BodyBudget
from firstline_gateway.api.heads import Heads
from firstline_gateway.api.unread import REFUSED, Unread
from firstline_gateway.broker.wiring import broker_keeper
from firstline_gateway.contracts.monitor import ContractMonitor
from firstline_gateway.contracts.takeover import take_over
from firstline_gateway.counting import Counting
from firstline_gateway.dataplane import GatewayDataPlane
from firstline_gateway.deliveries.once import Deliveries
from firstline_gateway.executors.base import Executor
from firstline_gateway.executors.engine import check_engine, loads_here, open_engine
from firstline_gateway.fleet.broker import FleetBroker
from firstline_gateway.fleet.fleet import Fleet
from firstline_gateway.identity import identity
from firstline_gateway.identity.folder import AuthorityFolder
from firstline_gateway.identity.identity import Identity
from firstline_gateway.jobs.endings import Endings
from firstline_gateway.jobs.jobs import Jobs
from firstline_gateway.jobs.runner import JobRunner
from firstline_gateway.metrics import GatewayMetrics
from firstline_gateway.models_folder import load_full, load_repository, named
from firstline_gateway.mqtt import MqttConsumer
from firstline_gateway.repository import Repository
from firstline_gateway.residency.memory import Load
from firstline_gateway.residency.residency import Residency
from firstline_gateway.response_cache import ResponseCache
from firstline_gateway.rollouts.engine import Engine
from firstline_gateway.rollouts.rollouts import Rollouts
from firstline_gateway.scheduling.admission import Bounds
from firstline_gateway.scheduling.batcher import Batcher
from firstline_gateway.settings import Settings
from firstline_gateway.statistics import Statistics
from firstline_gateway.store.database import open_database
from firstline_gateway.store.readers import Readers
from firstline_gateway.store.service import ServiceClock
from firstline_gateway.store.writer import GroupWriter
from firstline_gateway.trail.trail import Trail

if TYPE_CHECKING:
    from firstline_gateway.full_models.keeper import FullModels
    from firstline_gateway.registry.wiring import RegistryRoom

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
        settings: as `settings_load.py` gave them.
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
        self.heads = Heads()
        self.unread = Unread(
            lambda: batcher.wait_s,
            lambda: self.metrics.error(REFUSED),
            settings.auth.proxy_certificate_header.lower(),
        )
        self.metrics.engine(executor.report)
        self.metrics.queue(lambda: batcher.depth, lambda: batcher.wait_s)
        self.database = open_database(settings.store)
        self.writer = GroupWriter(self.database)
        service = ServiceClock(self.database, clock)
        self.identity = Identity(settings, self.database, self.writer, clock=clock)
        if settings.contracts.state_file:
            take_over(Path(settings.contracts.state_file), self.database)
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
        self.plane = GatewayDataPlane(
            repository,
            batcher,
            self.contracts,
            self.deliveries,
            counting=Counting(self.metrics, statistics, clock),
            residency=self.residency,
            cache=ResponseCache(settings.cache.limit_bytes) if settings.cache.limit_bytes else None,
            clock=clock,
            limits=settings.limits,
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
        self.fleet = Fleet(self._readers, self.writer, settings.fleet, clock=clock)
        self.registry = _registry(self, settings, self._readers)
        listed = self.registry.bundles.digest if self.registry is not None else None
        self.rollouts = Rollouts(self._readers, self.writer, clock=clock, service=service, listed=listed)
        self.trail = Trail(self._readers, Path(settings.identity.directory), clock=clock)
        # Asked of the fleet each time: who is to be told is only known further down.
        told = partial(_tell, self.fleet)
        self._engine = Engine(self.database, self.writer, clock=clock, service=service, on_told=told)
        self.rollouts.on_change = self._engine.wake
        self.full_models = _full_models(self, settings, self._readers, must_be_whole=load is not None)
        if self.full_models is not None:
            self.rollouts.before_start = self.full_models.before
        self.metrics.expiries(lambda: {} if self.registry is None else self.registry.keeper.expiries)
        known = self.identity.gatekeeper.known
        self._broker = broker_keeper(settings, self.identity.folder, known, clock)
        if self._broker is not None:
            self._broker.refresh()  # the password that the next line reads may be made by this
        self._mqtt = (
            MqttConsumer(self.plane, settings.mqtt, metrics=self.metrics, clock=clock, is_revoked=known.is_revoked)
            if settings.mqtt.enabled
            else None
        )
        self._fleet_broker = (
            FleetBroker(
                self.fleet,
                mqtt.connection_settings(settings.mqtt, LIMIT_BYTES),
                settings.mqtt.prefix,
                known.is_revoked,
            )
            if settings.mqtt.enabled and settings.fleet.mqtt
            else None
        )

    async def start(self) -> None:
        """Begins to follow the store, and to take requests over MQTT; a broker that is away is tried again."""
        self._refreshing = asyncio.create_task(self._refresh())
        await self._executor.start()
        await self.residency.start()
        await self.identity.start()
        await self._job_runner.start()
        self._engine.start()
        if self.registry is not None:
            self.registry.keeper.start()
        if self.full_models is not None:
            self.full_models.start()
        if self._broker is not None:
            self._broker.start(mqtt.connection_settings(self.settings.mqtt, self.plane.limits.body_bytes))
        if self._mqtt is not None:
            await self._mqtt.start()
        if self._fleet_broker is not None:
            await self._fleet_broker.start()

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
                await self.plane.drain()
                if self._mqtt is not None:
                    await self._mqtt.drain()
        except TimeoutError:
            return False
        return True

    async def abandon(self) -> None:
        """Answers what a drain did not wait for with `NotReadyError`, over MQTT too."""
        self.plane.abandon()
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
        if self._fleet_broker is not None:
            await self._fleet_broker.close()
        if self._broker is not None:
            await self._broker.close()
        await self.jobs.endings.close()
        await self._job_runner.close()
        await self._engine.close()
        await self.identity.close()
        if self.registry is not None:
            await self.registry.keeper.close()
        if self.full_models is not None:
            await self.full_models.close()
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


def _tell(fleet: Fleet) -> None:
    fleet.on_desired()


def _registry(gateway: Gateway, settings: Settings, readers: Readers) -> RegistryRoom | None:
    """The registry, where there is one; python-tuf is loaded for no other gateway."""
    if not settings.registry.blobs:
        return None
    from firstline_gateway.registry.wiring import open_registry

    return open_registry(
        settings.registry,
        readers,
        gateway.writer,
        gateway.identity.folder,
        clock=gateway.clock,
    )


def _full_models(gateway: Gateway, settings: Settings, readers: Readers, *, must_be_whole: bool) -> FullModels | None:
    """Who fetches full models from the registry, where that is asked for."""
    folder = settings.fetched_models
    if gateway.registry is None or folder is None:
        return None
    from firstline_gateway.full_models.keeper import FullModels
    from firstline_gateway.full_models.shelf import Shelf

    return FullModels(
        Shelf(folder, gateway.registry.files.read),
        gateway.registry.bundles,
        gateway.repository,
        gateway.residency.orders,
        readers,
        retire_after_s=settings.registry.retire_after_s,
        must_be_whole=must_be_whole,
        clock=gateway.clock,
    )


def open_gateway(settings: Settings) -> Gateway:
    """Puts the gateway together; where it is to wait for its models, that takes as long as they take to load.

    Raises:
        ConfigError: a setting names something that is not there or no good.
    """
    check_files(settings)
    options = runtime_options(settings)
    here = loads_here(settings)
    repository = load_repository(
        Path(settings.models.directory),
        options if here and settings.models.wait else None,
        budget_bytes=settings.models.memory_budget_mb << 20 if here else 0,
        fetched=settings.fetched_models,
    )
    had_authority = AuthorityFolder(Path(settings.identity.directory), SYSTEM_CLOCK).exists
    load = partial(load_full, options=options) if here else None
    gateway = Gateway(settings, repository, open_engine(settings, repository, options), load=load)
    if not repository.models:
        log.warning("no model to serve", directory=settings.models.directory)
    for name in repository.unknown(settings.models.concurrency_of):  # its bundle may come later
        log.warning("models.concurrency_of names a model that there is not; is it misspelt?", model=ascii(name))
    if gateway.identity.required and not gateway.identity.gatekeeper.known.anybody:
        log.warning("no API key and no device yet, so nobody may call", create="firstline-gateway key create NAME")
        if had_authority:
            log.warning(
                "devices that had joined are in another store: is store.url right, or is a backup to be restored?",
                store=gateway.database.shown,
            )
    return gateway


def runtime_options(settings: Settings) -> RuntimeOptions:
    """How this gateway's models run: sessions side by side, each on one thread.

    Raises:
        ConfigError: an execution provider that this onnxruntime does not offer.
    """
    options = RuntimeOptions(providers=settings.execution.providers, threads=1)
    check_options(options, "execution.providers")
    return options


def check_files(settings: Settings) -> None:
    """Tries what the settings name beside the models.

    Raises:
        ConfigError: the token file, the broker's password or certificate, the topics, or what the engine needs are no
            good.
    """
    check_engine(settings)
    identity.check_files(settings)
    if settings.mqtt.enabled and not settings.broker.directory:  # else what it reads is made with the gateway
        mqtt.check(settings.mqtt)
