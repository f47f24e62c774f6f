"""Builds the gateway and its servers from the settings, starts the gateway, drains it and stops it."""

from __future__ import annotations

import asyncio
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from fastapi import FastAPI

from firstline_core.clock import SYSTEM_CLOCK, Clock
from firstline_core.errors import ConfigError
from firstline_core.file_route import FileRoute
from firstline_core.fleet.twin import LIMIT_BYTES
from firstline_core.processing.decoding import FileDecoding
from firstline_core.protocol.cors import with_cors
from firstline_core.protocol.http import BodyBudget
from firstline_core.protocol.http_server import HttpServer, ServerLimits
from firstline_core.telemetry import logs
from firstline_core.telemetry.logs import logger
from firstline_core.telemetry.metrics import RequestMetrics
from firstline_gateway import mqtt
from firstline_gateway.api.app import create_app
from firstline_gateway.api.infer import InferenceApp
from firstline_gateway.api.overload import OverloadGuard, overloaded
from firstline_gateway.background import PeriodicTask
from firstline_gateway.broker.files import BrokerFolder
from firstline_gateway.broker.updater import BrokerUpdater
from firstline_gateway.checks import check_files, models_folder, runtime_options
from firstline_gateway.contracts.monitor import ContractMonitor
from firstline_gateway.executors import metrics as executor_metrics
from firstline_gateway.executors.dispatch.dispatcher import Dispatcher
from firstline_gateway.executors.factory import open_executors
from firstline_gateway.fleet.broker import FleetBroker
from firstline_gateway.fleet.fleet import Fleet
from firstline_gateway.fleet.gauges import REFRESH_S, FleetGauges
from firstline_gateway.identity import identity
from firstline_gateway.identity.audit_head import AuditLog
from firstline_gateway.identity.authorities import had_store
from firstline_gateway.identity.identity import IdentityService
from firstline_gateway.jobs.jobs import Jobs
from firstline_gateway.models import residency
from firstline_gateway.models.fetched_bundles import FetchedBundles
from firstline_gateway.models.folder import load_full
from firstline_gateway.models.memory import Load
from firstline_gateway.models.repository import Repository
from firstline_gateway.models.residency import Residency
from firstline_gateway.mqtt import MqttConsumer
from firstline_gateway.profiles import records as profile_records
from firstline_gateway.profiles.profiles import Profiles
from firstline_gateway.registry import metrics as registry_metrics
from firstline_gateway.rollouts.bundle_use import reason_to_keep
from firstline_gateway.rollouts.driver import RolloutDriver
from firstline_gateway.rollouts.metrics import RolloutGauges
from firstline_gateway.rollouts.rollouts import Rollouts
from firstline_gateway.serving.data_plane import GatewayDataPlane, ServingStatistics
from firstline_gateway.serving.deliveries.deliveries import Deliveries
from firstline_gateway.serving.response_cache import ResponseCache
from firstline_gateway.serving.scheduling import batcher as scheduling
from firstline_gateway.serving.scheduling.admission import Bounds
from firstline_gateway.serving.scheduling.batcher import Batcher
from firstline_gateway.settings.settings import Settings
from firstline_gateway.store import store
from firstline_gateway.store.service_clock import ServiceClock
from firstline_gateway.store.store import Store
from firstline_gateway.tables import open_database
from firstline_gateway.webhooks.webhooks import Webhooks

if TYPE_CHECKING:
    from firstline_core.protocol.grpc.server import GrpcServer
    from firstline_gateway.registry.registry import Registry
    from firstline_gateway.rollouts.full_models import FullModels

# How long a batch whose clients have disconnected may run before the process stops.
_CLOSE_S = 5.0
# The longest delay until a replica reads an alarm or a quota that another replica recorded, until answers by tier are
# stored, and until the stored service time advances.
_REFRESH_INTERVAL_S = 5.0
_CLEANUP_INTERVAL_S = 3600.0
_MAINTENANCE_INTERVAL_S = 60.0
# Time to publish errors to the devices whose requests are abandoned.
_PUBLISH_S = 1.0

LIVE_KEYS = frozenset(
    {
        "api.drain_s",
        "contracts.audit_spacing_s",
        "contracts.audits_per_device_hour",
        "contracts.escalations_per_hour",
        "execution.queue_bytes",
        "execution.queue_requests",
        "log.format",
        "log.level",
    }
)
"""The settings that can change while the gateway runs."""

log = logger(__name__)


class _Service(Protocol):
    """A component that works in the background."""

    async def start(self) -> None: ...

    async def close(self) -> None: ...


class Gateway:
    """The components of one gateway.

    Args:
        settings: the result of `settings/load.py`.
        repository: the models to serve.
        dispatcher: runs the models; the gateway closes it.
        load: loads one model into memory; None if models run in other processes.

    Raises:
        ConfigError: the token file, the store, the contracts' file, the broker's password or a topic is invalid.
    """

    def __init__(
        self, settings: Settings, repository: Repository, dispatcher: Dispatcher, *, load: Load | None = None
    ) -> None:
        self.settings = settings
        self.repository = repository
        self.clock: Clock = SYSTEM_CLOCK
        self.metrics = RequestMetrics("gateway")
        self.bodies = BodyBudget(settings.api.bodies_limit_bytes, fair=True)
        self.dispatcher = dispatcher
        self._folder = models_folder(settings, must_be_whole=load is not None)
        self.store = Store(open_database(settings.store, must_exist=had_store(settings.identity)))
        service = ServiceClock(self.store.database, self.clock)
        self.identity = IdentityService(settings, self.store, clock=self.clock)
        identity.register_metrics(self.metrics, self.identity)
        self._build_serving(service, load)
        self.jobs = Jobs(self.plane, self.store, settings.jobs, metrics=self.metrics, clock=self.clock, service=service)
        # In the order of their starts.
        self._services: list[_Service] = [self.residency, self.identity, self.jobs]
        self._build_mqtt()
        self._build_fleet(service)

    def _build_serving(self, service: ServiceClock, load: Load | None) -> None:
        settings, clock, repository, dispatcher = self.settings, self.clock, self.repository, self.dispatcher
        statistics = ServingStatistics(self.metrics, clock)
        self._batcher = batcher = Batcher(
            dispatcher,
            clock=clock,
            bounds=_bounds_of(settings),
            concurrency=settings.models.concurrency,
            concurrency_of=settings.models.concurrency_of,
            on_batch=statistics.started,
            on_late=statistics.late,
            on_ran=statistics.ran,
        )
        self.residency = Residency(
            repository,
            dispatcher,
            load=load,
            find=self._folder.find,
            budget_bytes=settings.models.memory_budget_mb << 20,
            patience_s=settings.execution.queue_s,
            background=not settings.models.wait,
            clock=clock,
        )
        residency.register_metrics(self.metrics, self.residency)
        self.overload = OverloadGuard(lambda: batcher.wait_s, lambda: self.metrics.count_error(overloaded()))
        executor_metrics.register(self.metrics, dispatcher.report)
        scheduling.register_metrics(self.metrics, batcher)
        self.contracts = ContractMonitor(
            self.store, repository, settings.contracts, metrics=self.metrics, clock=clock, service=service
        )
        self.decoding = FileDecoding(settings.sessions, settings.decoding.total_memory_bytes, clock)
        self.deliveries = Deliveries(self.store, settings.store, metrics=self.metrics, clock=clock, service=service)
        store.register_metrics(self.metrics, self.store)
        self.plane = GatewayDataPlane(
            repository,
            batcher,
            self.contracts,
            self.deliveries,
            dispatcher=dispatcher,
            counts=statistics,
            residency=self.residency,
            cache=ResponseCache(settings.cache.limit_bytes) if settings.cache.limit_bytes else None,
            clock=clock,
            limits=settings.limits,
            decoding=self.decoding,
            has_registry=bool(settings.registry.blobs),
        )
        self.files = FileRoute(self.plane, self.decoding, settings.decoding.limits)

    def _build_mqtt(self) -> None:
        """Builds the MQTT client, after the broker's files, which contain the client's password."""
        settings, clock = self.settings, self.clock
        if settings.broker.directory:
            updater = BrokerUpdater(
                BrokerFolder(settings),
                self.identity.folder,
                self.identity.gatekeeper.credentials,
                partial(mqtt.connection_settings, settings.mqtt, self.plane.limits.body_bytes),
                refresh_s=settings.auth.refresh_s,
                clock=clock,
            )
            updater.refresh()
            self._services.append(updater.task)
        self._mqtt = (
            MqttConsumer(
                self.plane,
                settings.mqtt,
                bodies=self.bodies,
                metrics=self.metrics,
                clock=clock,
                admit=self.identity.admit_device,
            )
            if settings.mqtt.enabled
            else None
        )

    def _build_fleet(self, service: ServiceClock) -> None:
        settings, clock = self.settings, self.clock
        desired_changed = asyncio.Event()
        self.fleet = Fleet(
            self.store,
            settings.fleet,
            clock=clock,
            service=service,
            on_desired=desired_changed.set,
            monitors=self.contracts.monitors,
            wants_answers=any("answers" in each.events for each in settings.webhooks.values()),
            delete_with_device=(profile_records.delete_device,),
        )
        self.fleet_gauges = FleetGauges(
            self.store,
            self.metrics,
            settings.fleet,
            certificate_days=settings.identity.certificate_days,
            clock=clock,
            activity=self.fleet.activity,
        )
        rollout_gauges = RolloutGauges(self.store, self.metrics)
        self.profiles = Profiles(self.store, clock=clock, on_desired=desired_changed.set)
        self.audit_log = AuditLog(self.store, Path(settings.identity.directory), clock=clock)
        self.webhooks = Webhooks(settings.webhooks, self.store, metrics=self.metrics, clock=clock, service=service)
        self.rollout_driver = RolloutDriver(self.store, clock=clock, service=service, on_desired=desired_changed.set)
        self._services += (
            PeriodicTask(name, action, interval_s=interval_s, clock=clock)
            for name, action, interval_s in (
                ("contract refresh", self.contracts.refreshed, _REFRESH_INTERVAL_S),
                ("fleet statistics", self.fleet.store_tiers, _REFRESH_INTERVAL_S),
                ("fleet metrics", self.fleet_gauges.refresh, REFRESH_S),
                ("rollout metrics", rollout_gauges.refresh, REFRESH_S),
                ("service clock", self.deliveries.advance, _REFRESH_INTERVAL_S),
                ("fleet history cleanup", self.fleet.forget_old, _CLEANUP_INTERVAL_S),
            )
        )
        self._services.append(self.rollout_driver)
        self._build_registry()
        self.rollouts = Rollouts(
            self.store,
            clock=clock,
            service=service,
            delta=settings.contracts.delta,
            find_listed=self.registry.catalogue.listed if self.registry is not None else None,
            on_change=self.rollout_driver.wake,
            before_start=self.full_models.prepare if self.full_models is not None else None,
        )
        if settings.mqtt.enabled and settings.fleet.mqtt:
            self._services.append(
                FleetBroker(
                    self.fleet,
                    mqtt.connection_settings(settings.mqtt, LIMIT_BYTES),
                    settings.mqtt.prefix,
                    self.identity.admit_device,
                    desired_changed,
                    metrics=self.metrics,
                    clock=clock,
                )
            )
        self._services.append(self.webhooks)
        if self._mqtt is not None:
            self._services.append(self._mqtt)

    def _build_registry(self) -> None:
        settings, clock = self.settings.registry, self.clock
        self.registry: Registry | None = None
        self.full_models: FullModels | None = None
        if settings.blobs:
            # Imported here: a gateway without a registry does not load python-tuf.
            from firstline_gateway.registry.files import Files
            from firstline_gateway.registry.registry import Registry, open_blobs
            from firstline_gateway.rollouts.full_models import FullModels

            blobs = open_blobs(settings.blobs, endpoint=settings.s3_endpoint, region=settings.s3_region)
            files = Files(blobs, settings, clock=clock)
            self.registry = Registry(self.store, files, self.identity.folder, in_use=reason_to_keep, clock=clock)
            maintain = self.registry.maintain
            self._services.append(
                PeriodicTask("registry maintenance", maintain, interval_s=_MAINTENANCE_INTERVAL_S, clock=clock)
            )
            if self.settings.fetched_models is not None:
                self.full_models = FullModels(
                    FetchedBundles(self.settings.fetched_models, self.registry.files.read),
                    self.registry.catalogue,
                    self.repository,
                    self.residency.orders,
                    self.store,
                    retire_after_s=settings.retire_after_s,
                    read=self._folder.read,
                    clock=clock,
                )
                self._services.append(self.full_models)
        registry = self.registry
        registry_metrics.register(self.metrics, lambda: {} if registry is None else registry.latest_expiries)

    def control_plane(self) -> FastAPI:
        """Returns the HTTP application for all requests except those for inference."""
        return create_app(self)

    def http_server(self, limits: ServerLimits) -> HttpServer:
        """Returns the HTTP server, not started yet.

        Args:
            limits: of connections.
        """
        app = InferenceApp(
            self.control_plane(),
            self.plane,
            self.files,
            self.jobs,
            self.identity,
            overload=self.overload,
            bodies=self.bodies,
            metrics=self.metrics,
            clock=self.clock,
        )
        tls = self.identity.tls
        return HttpServer(
            with_cors(app, self.settings.api.cors_origins),
            limits=limits,
            clock=self.clock,
            tls=tls.context if tls is not None else None,
            peers=self.identity.gatekeeper.connections,
        )

    def grpc_server(self) -> GrpcServer | None:
        """Returns the gRPC server if the settings enable it; it listens once it is started.

        Raises:
            ConfigError: its packages are not installed.
            CapacityError: its address is in use.
        """
        if not self.settings.grpc.enabled:
            return None
        try:
            from firstline_gateway.api.grpc import grpc_server
        except ModuleNotFoundError as error:
            raise ConfigError(
                f"grpc.enabled is set, but the package '{error.name}' is not installed; install "
                "firstline[gateway,grpc]."
            ) from error
        server = grpc_server(
            self.settings,
            self.plane,
            self.identity,
            overload=self.overload,
            bodies=self.bodies,
            metrics=self.metrics,
            clock=self.clock,
        )
        log.info("listening for gRPC", port=server.port)
        return server

    async def adopt(self, settings: Settings) -> list[str]:
        """Uses other settings, which differ in `LIVE_KEYS` only; returns the paths of the TLS files that it read again.

        Raises:
            ConfigError: the certificate cannot be used; nothing has changed.
        """
        read = []
        if self.identity.tls is not None:
            await self.identity.tls.refresh()
            read = [str(self.identity.tls.files.certificate), str(self.identity.tls.files.key)]
        logs.configure(settings.log.level, settings.log.format)
        self._batcher.adopt(_bounds_of(settings))
        self.contracts.adopt(settings.contracts)
        self.settings = settings
        return read

    async def start(self) -> None:
        """Starts the background tasks and the MQTT clients, which retry until the broker is available."""
        await self.dispatcher.start()
        self.overload.watch(asyncio.get_running_loop())
        for service in self._services:
            await service.start()

    async def drain(self, timeout_s: float) -> bool:
        """Refuses new requests and waits for those in flight; returns False after `timeout_s`.

        Running jobs are left to another replica or the next process.
        """
        await self.jobs.close()
        try:
            async with asyncio.timeout(timeout_s):
                if self._mqtt is not None:
                    # First, so that the broker sends its requests to gateways that do not refuse them.
                    await self._mqtt.stop_taking()
                await self.plane.drain()
                if self._mqtt is not None:
                    await self._mqtt.drain()
        except TimeoutError:
            return False
        return True

    async def abandon(self) -> None:
        """Answers the requests that a drain did not wait for with `NotReadyError`, also over MQTT."""
        self.plane.abandon()
        if self._mqtt is not None:
            try:
                async with asyncio.timeout(_PUBLISH_S):
                    await self._mqtt.drain()
            except TimeoutError:
                log.warning("answers not published", after_s=_PUBLISH_S)

    async def close(self, timeout_s: float = _CLOSE_S) -> bool:
        """Closes MQTT, writes pending data and frees the models; running work has `timeout_s` to finish.

        Returns:
            False if a batch still runs or the database does not respond; only the end of the process stops those.
        """
        for service in reversed(self._services):
            await service.close()
        self.contracts.close()
        ends = (self.deliveries.close, self.identity.readers.close, self.store.close)
        ended = await asyncio.gather(
            self.dispatcher.close(timeout_s), *(asyncio.to_thread(end, timeout_s) for end in ends)
        )
        await asyncio.to_thread(self.decoding.close)
        if all(ended):
            self.store.database.close()
        return all(ended)


def _bounds_of(settings: Settings) -> Bounds:
    execution = settings.execution
    return Bounds(
        requests=execution.queue_requests,
        size_bytes=execution.queue_bytes,
        seconds=execution.queue_s,
        batch_rows=execution.max_batch_rows,
    )


def open_gateway(settings: Settings) -> Gateway:
    """Builds the gateway; with `models.wait`, loads the models first.

    Raises:
        ConfigError: a setting names something that is missing or invalid.
    """
    check_files(settings)
    options = runtime_options(settings)
    here = settings.loads_here
    repository = models_folder(settings).load(
        options if here and settings.models.wait else None, settings.models.memory_budget_mb << 20 if here else 0
    )
    load = partial(load_full, options=options) if here else None
    dispatcher = open_executors(settings, repository, options)
    gateway = Gateway(settings, repository, dispatcher, load=load)
    if not repository.models:
        log.warning("no model to serve", directory=settings.models.directory)
    for name in repository.unknown(settings.models.concurrency_of):  # its bundle may be added later
        log.warning("models.concurrency_of names an unknown model; is it misspelt?", model=ascii(name))
    if gateway.identity.requires_credentials and gateway.identity.gatekeeper.credentials.is_empty:
        log.warning(
            "no API key and no device yet, so no caller can authenticate", create="firstline-gateway key create NAME"
        )
    return gateway
