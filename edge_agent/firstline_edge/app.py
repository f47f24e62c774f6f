"""The agent: builds all parts from the settings, starts them in order, and stops them in the reverse order.

In process:

    async with EdgeAgent(settings) as agent:
        response = await agent.data_plane.infer_file("digits", png_bytes)
"""

from __future__ import annotations

import asyncio
import random
import signal
from collections.abc import Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path
from types import MappingProxyType, TracebackType
from typing import TYPE_CHECKING

from firstline_core.clock import SYSTEM_CLOCK, Clock
from firstline_core.file_route import FileRoute
from firstline_core.hardware.kernel_files import Tree
from firstline_core.hardware.readings import limited
from firstline_core.processing.decoding import FileDecoding
from firstline_core.runtime.select import RuntimeOptions, check_options
from firstline_core.telemetry import logs
from firstline_core.telemetry.logs import logger
from firstline_core.telemetry.metrics import RequestMetrics
from firstline_core.telemetry.settings_reload import SettingsReload
from firstline_edge.adaptation.variants import VariantChooser
from firstline_edge.api.access import Access, TokenAccess, access_of, parse_tokens
from firstline_edge.api.app import App
from firstline_edge.api.data_plane import EdgeDataPlane
from firstline_edge.api.operations import Operations, birth_message
from firstline_edge.api.server import Drain, bound_sockets, release_startup_memory, serving, serving_grpc
from firstline_edge.audits import certificate_reports
from firstline_edge.audits.audit_sender import AuditSender
from firstline_edge.audits.auditor import Auditor
from firstline_edge.audits.certificate_states import CertificateStates
from firstline_edge.audits.samples import SampleLog
from firstline_edge.budgets import spending as budget_metrics
from firstline_edge.budgets.from_settings import device_sensors, escalation_mj, open_spending
from firstline_edge.cache import results as cache_metrics
from firstline_edge.cache.results import open_cache
from firstline_edge.cascade import hedging as hedge_metrics
from firstline_edge.cascade.cascade import Cascade, EdgeRuns, LiveSettings, RowDecisions, TierRouter, policy_from
from firstline_edge.cascade.escalation import Escalation
from firstline_edge.cascade.hedging import Hedging
from firstline_edge.cloud import links as cloud_links
from firstline_edge.cloud.chain import BudgetGate
from firstline_edge.cloud.client import CloudClient, LiveTraffic, ModelRefusals
from firstline_edge.cloud.links import open_links
from firstline_edge.hardware.sampler import MemoryThresholds, Sampler, add_sensor_gauges, missing_kernel_files
from firstline_edge.hardware.surveyor import Surveyor
from firstline_edge.identity.credentials import DeviceIdentity
from firstline_edge.identity.renewal import CredentialRenewal
from firstline_edge.models.copies import BundleCopies
from firstline_edge.models.loading import load_bundle, open_models
from firstline_edge.models.profiles import Profiles
from firstline_edge.models.reloading import Reloading
from firstline_edge.models.workers import Workers
from firstline_edge.outbox import outbox as outbox_metrics
from firstline_edge.outbox.delivery import CorrectionClient, deliver_corrections
from firstline_edge.outbox.outbox import open_outbox
from firstline_edge.requests.recorder import Recorder
from firstline_edge.settings.check import check
from firstline_edge.settings.settings import EdgeSettings
from firstline_edge.state import StateDirectory
from firstline_edge.telemetry.background import Background, Work

if TYPE_CHECKING:  # these are imported only if the settings enable them
    from firstline_edge.adaptation.switching import VariantSwitcher
    from firstline_edge.fleet.fleet_state import FleetState
    from firstline_edge.fleet.http_client import FleetHttp
    from firstline_edge.fleet.member import FleetMember
    from firstline_edge.fleet.report import FleetCounts
    from firstline_edge.fleet.updater import Updater

log = logger(__name__)


async def run_agent(
    settings: EdgeSettings,
    ready: Callable[[str], None],
    read: Callable[[], EdgeSettings],
    *,
    problems: Mapping[Path, str] = MappingProxyType({}),
) -> None:
    """Runs the agent and its API until SIGTERM or SIGINT. SIGHUP reloads the configuration.

    Args:
        settings: see `settings/settings.py`.
        ready: called with the URL once requests are answered.
        read: reads the settings again.
        problems: startup problems by file, for `status`.

    Raises:
        ConfigError: the settings make no sense on this machine.
        CapacityError: an address is not available.
    """
    access, stop, hangup = access_of(settings.api), asyncio.Event(), asyncio.Event()
    with bound_sockets(settings.api) as (listeners, url):
        async with EdgeAgent(settings, problems=problems) as agent:
            agent.state.publish_url(url)
            app = App(agent.data_plane, agent.files, agent.outbox, agent.operations, access)
            for number, event in ((signal.SIGTERM, stop), (signal.SIGINT, stop), (signal.SIGHUP, hangup)):
                asyncio.get_running_loop().add_signal_handler(number, event.set)
            agent.start_reloading(read, access, hangup)
            drain = Drain()
            async with serving_grpc(agent.data_plane, access, app.bodies, drain), serving(app, listeners, drain=drain):
                release_startup_memory()
                ready(url)
                await stop.wait()


class EdgeAgent:
    """One agent; an async context manager. Its parts become attributes when it is entered, and stay after it is left.

    Args:
        settings: see `settings/settings.py`.
        clock: for tests.
        problems: startup problems by file, for `status`.

    Attributes:
        data_plane: answers requests.
        files: the route of inference by file.
        operations: for operators.
        state: the state directory, to which `run_agent` publishes the URL.
        outbox: promises, and the answers that ended them; the API reads it.

    The other parts are attributes for tests and benchmarks.
    """

    data_plane: EdgeDataPlane
    files: FileRoute
    operations: Operations

    def __init__(
        self,
        settings: EdgeSettings,
        *,
        clock: Clock = SYSTEM_CLOCK,
        problems: Mapping[Path, str] = MappingProxyType({}),
    ) -> None:
        # The device's own settings. The parts that a fleet may configure (policy, budget, costs, audit) are built from
        # `_configured`, which has the fleet's values of this start; later changes reach them by `SettingsAdoption`.
        self.settings = settings
        self.metrics = RequestMetrics("edge")
        self.background = Background()
        self._clock = clock
        self._problems = problems
        self._opened = AsyncExitStack()

    async def __aenter__(self) -> EdgeAgent:
        async with AsyncExitStack() as opened:
            self._open_state(opened)
            self._open_models(opened)
            self._open_storage(opened)
            self._open_hardware(opened)
            await self._open_links(opened)
            self._open_cascade(opened)
            self._open_fleet(opened)
            self._open_api()
            self._register_metrics()
            self._start_background(opened)
            self._opened = opened.pop_all()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.data_plane.stop()
        await self._opened.aclose()

    def _open_state(self, opened: AsyncExitStack) -> None:
        models = self.settings.models
        decoding = self.settings.decoding.limits
        self._options = RuntimeOptions(providers=models.providers, threads=models.threads, decoding=decoding)
        check_options(self._options, "models.providers")
        self.state = StateDirectory(self.settings.state_dir)
        opened.callback(self.state.close)
        self._configured = self.settings
        self._fleet_state: FleetState | None = None
        if self.settings.fleet.enabled:
            from firstline_edge.fleet.fleet_state import FleetState  # httpx takes time and memory to import

            self._fleet_state = FleetState(self.settings, self.state, self._clock)
            self._configured = self._fleet_state.settings

    def _open_models(self, opened: AsyncExitStack) -> None:
        settings, clock = self._configured, self._clock
        self._workers = Workers(settings.models.workers, settings.models.queue_limit, clock)
        self.profiles = Profiles(settings.state_dir, Path(settings.hardware.root))
        load_ladder = None
        if settings.adaptation.enabled:
            from firstline_edge.adaptation import loading  # most devices do not need to import it

            load_ladder = partial(loading.load_ladder, settings=settings)
        self._load_bundle = partial(
            load_bundle,
            options=self._options,
            workers=self._workers,
            load_ladder=load_ladder,
            profiles=self.profiles,
            as_planned=settings.models.as_planned,
        )
        installed = {}
        if self._fleet_state is not None:
            from firstline_edge.fleet.updates.model_store import load_installed

            installed = load_installed(self._fleet_state.models, self._load_bundle, clock)
        directories = settings.models.folders
        copies = BundleCopies(self.state.copies_path, settings.models.copies_limit_bytes)
        self.models = open_models(directories, self._load_bundle, copies, list(installed.values()))
        opened.callback(self._close_models)
        opened.callback(self._workers.close)  # before the models, which its last runs use
        self.samples = SampleLog(self.state.samples_path, settings.audit.samples_limit_bytes)
        opened.callback(self.samples.close)
        self.certificates = CertificateStates(
            self.state.certificates_path, self.models.all, self.samples, settings.audit, clock
        )
        opened.push_async_callback(self.certificates.close)
        replacements = {device_model.manifest.name: path for path, device_model in installed.items()}
        self.reloading = Reloading(
            self.models, self.certificates, directories, self._load_bundle, copies, replacements=replacements
        )

    def _close_models(self) -> None:
        if self._workers.ended:  # otherwise the last run, which uses them, ends with the process
            self.models.close()

    def _open_storage(self, opened: AsyncExitStack) -> None:
        settings, state, clock = self._configured, self.state, self._clock
        self.cache = open_cache(settings.cache, settings.encryption, state.cache_path, clock)
        opened.callback(self.cache.close)
        self._counts: FleetCounts | None = None
        if self._fleet_state is not None:
            from firstline_edge.fleet.report import FleetCounts

            self._counts = FleetCounts(self.models, self.certificates, escalation_mj(settings, self._usable_links))
        self.recorder = Recorder(
            metrics=self.metrics,
            decisions_path=state.decisions_path,
            decisions_limit_bytes=settings.log.decisions_limit_bytes,
            log_requests=settings.log.requests,
            clock=clock,
            observer=self._counts,
        )
        opened.callback(self.recorder.close)
        reporting = self._fleet_state.reporting if self._fleet_state is not None else None
        self.outbox = open_outbox(settings, state.outbox_path, clock, reporting, self.recorder.damaged)
        opened.callback(self.outbox.close)

    def _open_hardware(self, opened: AsyncExitStack) -> None:
        settings, state, clock = self._configured, self.state, self._clock
        tree, thresholds = Tree(Path(settings.hardware.root)), MemoryThresholds()
        if missing := missing_kernel_files(tree):
            log.warning("sensors unavailable", problem=missing)
        self.switcher: VariantSwitcher | None = None
        if settings.adaptation.enabled:
            from firstline_edge.adaptation.loading import limits_of
            from firstline_edge.adaptation.switching import VariantSwitcher

            self.switcher = VariantSwitcher(self.models, self.certificates, self.recorder.switched, clock)
            opened.push_async_callback(self.switcher.close)
            thresholds = MemoryThresholds(limits_of(settings).memory_thresholds_bytes)
        self.sampler = Sampler(
            device_sensors(settings, lambda: self._workers.waiting),
            settings.hardware.period_s,
            clock,
            thresholds=thresholds,
            on_reading=self.switcher.update if self.switcher is not None else lambda _: None,
        )
        self.surveyor = Surveyor(
            tree,
            state.path,
            clock=clock,
            measures=settings.hardware.survey,
            on_change=self._fleet_state.changes.set if self._fleet_state is not None else lambda: None,
        )

    async def _open_links(self, opened: AsyncExitStack) -> None:
        settings, clock, fleet = self._configured, self._clock, self._fleet_state
        self.spending = open_spending(
            settings, self.state.spending_path, clock, links=self._usable_links, sampler=self.sampler
        )
        opened.callback(self.spending.save)
        budget_gate: BudgetGate = self.spending.paid
        if fleet is not None:
            budget_gate = fleet.limiter.before(budget_gate)
        self.identity = DeviceIdentity(settings, clock)
        credentials = self.identity.credentials
        configuration: Callable[[], object] | None = None
        if fleet is not None:
            from firstline_edge.fleet.configuration.installed_configuration import described

            configuration = partial(described, fleet.configuration)
        birth = partial(birth_message, self.models, configuration)
        self.links = await open_links(settings, birth, clock, budget_gate, credentials=credentials)
        opened.push_async_callback(self.links.chain.close)
        self.renewal: CredentialRenewal | None = None
        if credentials is not None:
            rng = random.Random()  # noqa: S311 (jitter)
            self.renewal = CredentialRenewal(credentials, self.links.reconnect, clock, rng)

    def _usable_links(self) -> Sequence[str]:
        """Returns the names of the links that a request may use now, by which the budgets choose."""
        return self.links.chain.usable_names()

    def _open_cascade(self, opened: AsyncExitStack) -> None:
        settings, clock, traffic = self._configured, self._clock, LiveTraffic()
        policy, spending, chain = policy_from(settings.policy), self.spending, self.links.chain
        reserve_s = settings.policy.deadline_reserve_ms / 1000
        self.model_refusals = ModelRefusals(clock)
        self.audit_sender = AuditSender(
            chain,
            self.cache,
            self.certificates,
            traffic,
            clock,
            on_drawn=self.recorder.drawn,
            on_ended=self.recorder.audited,
        )
        rng = random.Random()  # noqa: S311 (guessing which answer is audited gains nothing)
        self.auditor = Auditor(
            self.audit_sender,
            self.certificates,
            settings.audit,
            clock,
            rng,
            certifies=policy.certifies,
            spending=spending,
        )
        self.router = TierRouter(
            min_threshold=settings.policy.min_threshold, policy=policy, certificates=self.certificates, clock=clock
        )
        self.live_settings = LiveSettings(self.router, self.certificates, self.auditor, spending)
        self.client = CloudClient(
            chain, self.cache, clock, self.model_refusals, contracts=self.certificates, traffic=traffic
        )
        opened.push_async_callback(self.client.close)
        self.hedging = Hedging(self.client, clock, settings.hedge, reserve_s, spending)
        correction_client = CorrectionClient(chain, self.models, self.certificates, self.model_refusals, clock)
        self._deliver = partial(
            deliver_corrections,
            self.outbox,
            correction_client,
            self.links,
            clock,
            max_age_s=settings.outbox.max_age_s,
            on_correction=self.recorder.corrected,
        )
        self.decoding = FileDecoding(settings.models.workers, settings.decoding.total_memory_bytes, clock)
        opened.callback(self.decoding.close)
        edge_runs = EdgeRuns(self.cache, spending, self.decoding, clock)
        opened.push_async_callback(edge_runs.close)
        self.cascade = Cascade(
            models=self.models,
            chooser=VariantChooser(self.client, clock, reserve_s, escalation_mj(settings, self._usable_links)),
            edge_runs=edge_runs,
            decisions=RowDecisions(self.router, self.cache, spending, clock),
            hedging=self.hedging,
            escalation=Escalation(
                self.client, self.outbox, self.auditor, edge_runs.compute, clock, reserve_s=reserve_s
            ),
            audits=self.auditor,
            limit_bytes=settings.policy.limit_bytes,
        )
        opened.push_async_callback(self.hedging.close)

    def _open_fleet(self, opened: AsyncExitStack) -> None:
        self.fleet: FleetMember | None = None
        if self._fleet_state is None or self._counts is None:
            return
        from firstline_edge.fleet.http_client import fleet_http, upload_profile
        from firstline_edge.fleet.member import FleetMember
        from firstline_edge.fleet.report import FleetReport, device_hardware
        from firstline_edge.fleet.transports import fleet_transport
        from firstline_edge.profiling.profiler import BundleMeasurement, Profiler

        fleet, settings, clock = self._fleet_state, self.settings, self._clock
        rng = random.Random()  # noqa: S311 (jitter)
        http = fleet_http(settings.links, self.identity.credentials)
        if http is not None:
            opened.push_async_callback(http.close)
        updater = self._fleet_updates(fleet, self._counts, http, rng)
        measurement = BundleMeasurement(settings, self.models, lambda: self.sampler.latest, has_http=http is not None)
        profiler = Profiler(
            measurement.measure, partial(upload_profile, http), clock=clock, rng=rng, on_change=fleet.changes.set
        )
        report = FleetReport(
            state=fleet,
            hardware=device_hardware(self.state.path),
            models=self.models,
            auditor=self.auditor,
            surveyor=self.surveyor,
            counts=self._counts,
            recorder=self.recorder,
            outbox=self.outbox,
            chain=self.links.chain,
            credentials=self.identity.credentials,
            readings=lambda: self.sampler.latest,
            clock=clock,
            started_s=clock.monotonic_s(),
        )
        transport = fleet_transport(self.links, http, settings.fleet.poll_s, clock, rng)
        self.fleet = FleetMember(
            fleet, updater, profiler, self.auditor, report=report, transport=transport, clock=clock, rng=rng
        )
        opened.push_async_callback(self.fleet.close)

    def _fleet_updates(
        self, fleet: FleetState, counts: FleetCounts, http: FleetHttp | None, rng: random.Random
    ) -> Updater:
        """Returns the updates of the device's models and configuration."""
        from firstline_edge.fleet.configuration.configurator import Configurator, SettingsAdoption
        from firstline_edge.fleet.report import device_hardware
        from firstline_edge.fleet.updater import Updater
        from firstline_edge.fleet.updates.installation import Installer
        from firstline_edge.fleet.updates.registry import GatewayRegistry
        from firstline_edge.fleet.updates.state_machine import UpdateServices
        from firstline_edge.fleet.updates.trial import AgentServing

        section, credentials, clock = self.settings.fleet, self.identity.credentials, self._clock
        now_s = credentials.floor.now_s if credentials is not None else clock.wall_s
        registry = GatewayRegistry(http, self.state.path / "metadata", section.root_file, now_s)
        services = UpdateServices(clock, now_s, rng, section, fleet.changes.set)
        serving = AgentServing(
            reloading=self.reloading,
            answered=counts.answered_of,
            read_hardware=partial(device_hardware, self.state.path, several=self.settings.adaptation.enabled),
        )
        adoption = SettingsAdoption(models=self.models, live=self.live_settings, answered=counts.answered_of)
        configurator = Configurator(fleet.configuration, self.settings, registry, adoption, services)
        return Updater(fleet.models, Installer(registry, services), serving, configurator)

    def _open_api(self) -> None:
        self.data_plane = EdgeDataPlane(
            self.settings,
            models=self.models,
            reloading=self.reloading,
            cascade=self.cascade,
            links=self.links,
            recorder=self.recorder,
            clock=self._clock,
        )
        self.files = FileRoute(self.data_plane, self.decoding, self.settings.decoding.limits)
        self.operations = Operations(
            plane=self.data_plane,
            metrics=self.metrics,
            startup_problems=self._problems,
            state=self.state,
            profiles=self.profiles,
            cache=self.cache,
            outbox=self.outbox,
            certificates=self.certificates,
            router=self.router,
            model_refusals=self.model_refusals,
            identity=self.identity,
            renewal=self.renewal,
            spending=self.spending,
            sampler=self.sampler,
            background=self.background,
            fleet=self.fleet,
        )

    def _register_metrics(self) -> None:
        outbox_metrics.register_metrics(self.metrics, self.outbox)
        cache_metrics.register_metrics(self.metrics, self.cache)
        cloud_links.register_metrics(self.metrics, self.links, self.client)
        certificate_reports.register_metrics(self.metrics, self.certificates)
        budget_metrics.register_metrics(self.metrics, self.spending)
        hedge_metrics.register_metrics(self.metrics, self.hedging)
        add_sensor_gauges(self.metrics, lambda: limited(self.sampler.latest))
        if self.switcher is not None:
            from firstline_edge.adaptation.switching import add_gauges

            add_gauges(self.metrics, self.models, self.switcher)

    def _start_background(self, opened: AsyncExitStack) -> None:
        report = self.fleet.report_ended if self.fleet is not None else None
        self._start(opened, "outbox", partial(self._deliver, report=report))
        self._start(opened, "housekeeping", self.cache.keep_expiring, self.outbox.keep_expiring)
        self._start(opened, "audits", self.audit_sender.run, self.certificates.keep_saving)
        if self.renewal is not None:
            self._start(opened, "identity", self.renewal.run)
        self._start(opened, "sensors", self.sampler.run)
        self._start(opened, "survey", self.surveyor.run)
        self._start(opened, "budgets", self.spending.keep)
        if self.fleet is not None:
            self._start(opened, "fleet", self.fleet.run)

    def start_reloading(self, read: Callable[[], EdgeSettings], access: Access, requested: asyncio.Event) -> None:
        """Starts to reload the settings on request.

        Args:
            read: reads the settings again.
            access: reads its token file again.
            requested: is set for each reload.
        """

        def live() -> set[str]:
            from firstline_core.fleet.configuration import KEYS  # an agent without reloads does not need to import it

            return {"log.level", "log.format", *KEYS}

        async def apply(settings: EdgeSettings) -> list[str]:
            check(settings)
            files = [settings.api.token_file] if isinstance(access, TokenAccess) else []
            tokens = [await asyncio.to_thread(parse_tokens, file, "api.token_file") for file in files]
            if self.fleet is not None and self.fleet.updater.configurator is not None:
                self.fleet.updater.configurator.adopt_own(settings)
            else:
                self.live_settings.adopt(settings)
            if isinstance(access, TokenAccess):
                access.adopt(*tokens)
            logs.configure(settings.log.level, settings.log.format)
            return files

        self._start(
            self._opened, "configuration", partial(SettingsReload(self.settings, read, apply, live).keep, requested)
        )

    def _start(self, opened: AsyncExitStack, name: str, *works: Work) -> None:
        self.background.start(name, *works)
        opened.push_async_callback(self.background.close, name)
