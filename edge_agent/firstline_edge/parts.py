"""The agent's parts, made from the settings: opened in the order in which they stand here, closed in the reverse."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator, Coroutine
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from firstline_core.clock import Clock
from firstline_core.errors import CapacityError
from firstline_core.hardware.tree import Tree
from firstline_core.protocol.limits import Limits
from firstline_core.runtime.select import RuntimeOptions, check_options
from firstline_core.storage.files import erase
from firstline_core.telemetry.logs import logger
from firstline_core.telemetry.metrics import RequestMetrics
from firstline_core.types import ContractNotice, InferRequest
from firstline_edge.audits.standing import Standings
from firstline_edge.audits.wiring import AuditRoom
from firstline_edge.budgets.sensors import conditions_of, device_sensors
from firstline_edge.budgets.spending import Spending
from firstline_edge.budgets.wiring import escalation_mj, open_spending
from firstline_edge.cache.results import ResultCache
from firstline_edge.cascade.cascade import Cascade
from firstline_edge.cascade.hedging import Hedging
from firstline_edge.cascade.router import Router
from firstline_edge.cloud.chain import BudgetGate, LinkChain, no_budget
from firstline_edge.cloud.client import CloudClient
from firstline_edge.cloud.complaints import Complaints
from firstline_edge.cloud.links import Links, open_links
from firstline_edge.hardware.sampler import MemoryThresholds, Sampler, missing_kernel_files
from firstline_edge.hardware.surveyor import Surveyor
from firstline_edge.identity.wiring import IdentityRoom
from firstline_edge.models.copies import BundleCopies
from firstline_edge.models.held import Models
from firstline_edge.models.loading import hold, open_models
from firstline_edge.models.profiles import Profiles
from firstline_edge.models.reloading import Reloading
from firstline_edge.models.workers import Workers
from firstline_edge.outbox.announcer import Announcer
from firstline_edge.outbox.completions import Completions
from firstline_edge.outbox.database import count_promises
from firstline_edge.outbox.delivery import Delivery
from firstline_edge.outbox.reopening import ReopeningOutbox
from firstline_edge.requests import rows
from firstline_edge.settings.settings import EdgeSettings, link_names
from firstline_edge.state import StateDirectory
from firstline_edge.telemetry import report
from firstline_edge.telemetry.background import Background
from firstline_edge.telemetry.recorder import Recorder
from firstline_edge.wiring import (
    cascade_options,
    hedge_options,
    ladder_loader,
    make_cache,
    make_policy,
    make_recorder,
    open_outbox,
)

if TYPE_CHECKING:
    from firstline_edge.adaptation.switching import VariantSwitcher
    from firstline_edge.audits.auditor import Auditor
    from firstline_edge.fleet.wiring import FleetRoom

log = logger(__name__)

_SWEEP_S = 3600.0


@dataclass(frozen=True, slots=True)
class Parts:
    """What an agent is made of while it runs.

    Args:
        complaints: what the gateway says against models.
        endings: who waits for a promise to end.
        spending: None where nothing has a price.
        identity: of a device that may have joined a gateway.
        fleet: None where this device is none of a fleet.
        switcher: None where each bundle has the one variant that loads first.
        background: what works beside the requests.
    """

    state: StateDirectory
    models: Models
    profiles: Profiles
    cache: ResultCache
    recorder: Recorder
    complaints: Complaints
    endings: Completions
    outbox: ReopeningOutbox
    audits: AuditRoom
    spending: Spending | None
    identity: IdentityRoom
    links: Links
    router: Router
    gateway: CloudClient
    hedging: Hedging
    cascade: Cascade
    reloading: Reloading
    sampler: Sampler
    surveyor: Surveyor
    fleet: FleetRoom | None
    switcher: VariantSwitcher | None
    background: Background


@asynccontextmanager
async def open_parts(  # noqa: PLR0915
    settings: EdgeSettings, metrics: RequestMetrics, limits: Limits, clock: Clock
) -> AsyncIterator[Parts]:
    """Everything, at work until it is left.

    Raises:
        ConfigError: a setting that cannot be used here.
    """
    options = RuntimeOptions(providers=settings.models.providers, threads=settings.models.threads)
    check_options(options, "models.providers")
    async with AsyncExitStack() as opened:
        # What is known and kept.
        state = StateDirectory(settings.state_dir)
        opened.callback(state.close)
        workers = Workers(settings.models.workers, settings.models.queue_limit, clock)
        copies = BundleCopies(state.copies_path, settings.models.copies_limit_bytes)
        directories = [Path(folder) for folder in settings.models.directories]
        fleet, settings = _open_fleet(settings, state, clock)
        profiles = Profiles(settings.state_dir, Path(settings.hardware.root))
        hold_here = partial(
            hold,
            options=options,
            workers=workers,
            load_ladder=ladder_loader(settings),
            profiles=profiles,
            as_planned=settings.models.as_planned,
        )
        models = open_models(
            directories, hold_here, copies, fleet.hold_installed(hold_here) if fleet is not None else []
        )
        opened.callback(models.close)
        opened.callback(workers.close)  # before the models, which its last runs use
        cache = make_cache(settings, state, clock)
        opened.callback(cache.close)
        recorder = make_recorder(settings.log, state, metrics, clock)
        opened.callback(recorder.close)
        complaints, endings = Complaints(), Completions()
        outbox = ReopeningOutbox(
            partial(open_outbox, settings, state, endings, clock),
            partial(count_promises, state.outbox_path),
            partial(erase, state.outbox_path),
            clock,
        )
        opened.callback(outbox.close)
        audits = AuditRoom(settings.audit, state, models, clock)
        opened.push_async_callback(audits.close)

        switcher = _switcher(models, audits.standings, recorder, clock) if settings.adaptation.enabled else None
        if switcher is not None:
            opened.push_async_callback(switcher.close)
        sampler, surveyor = _hardware(settings, state, workers, switcher, clock=clock, fleet=fleet)

        # What leads away, and what that may cost.
        spending = open_spending(
            settings,
            state.spending_path,
            clock,
            link_names=link_names(settings.links),
            links=lambda: links.usable,
            sense=lambda: conditions_of(sampler.latest, settings.costs.heat_limit_c),
        )
        if spending is not None:
            opened.callback(spending.save)
        identity = IdentityRoom(settings, clock)
        birth = partial(report.birth_of, models, audits.standings, fleet.configuration.running if fleet else None)
        links = await open_links(
            settings, birth, limits, clock, _budget_gate(spending, fleet), credentials=identity.credentials
        )
        opened.push_async_callback(links.close)
        identity.renews(links.renewed)

        # What answers.
        chosen = make_policy(settings.policy)
        auditor = audits.auditor(
            cache,
            links,
            certifies=chosen.certifies,
            ample=lambda: spending is None or spending.ample,
            on_drawn=recorder.drawn,
            on_finding=recorder.audited,
        )
        router = Router(
            min_threshold=settings.policy.min_threshold,
            chosen=chosen,
            standings=audits.standings,
            clock=clock,
        )
        gateway = CloudClient(links.chain, cache, clock, complaints, contracts=audits.standings, traffic=audits.traffic)
        opened.push_async_callback(gateway.close)
        hedging = Hedging(gateway, clock, hedge_options(settings))
        cascade = Cascade(
            models=models,
            cache=cache,
            gateway=gateway,
            hedging=hedging,
            router=router,
            spending=spending,
            promises=outbox,
            audits=auditor,
            options=cascade_options(settings.policy),
            clock=clock,
            escalation_mj=escalation_mj(settings, lambda: links.usable),
        )
        opened.push_async_callback(cascade.close)
        opened.push_async_callback(hedging.close)

        # What works beside.
        parts = Parts(
            state=state,
            models=models,
            profiles=profiles,
            cache=cache,
            recorder=recorder,
            complaints=complaints,
            endings=endings,
            outbox=outbox,
            audits=audits,
            spending=spending,
            identity=identity,
            links=links,
            router=router,
            gateway=gateway,
            hedging=hedging,
            cascade=cascade,
            reloading=Reloading(
                models,
                audits.standings,
                directories,
                hold_here,
                copies,
            ),
            sampler=sampler,
            surveyor=surveyor,
            fleet=fleet,
            switcher=switcher,
            background=Background(),
        )
        if fleet is not None:
            opened.push_async_callback(fleet.close)
            fleet.join(parts)
        for name, work in _works(parts, auditor, settings, clock).items():
            parts.background.start(name, work)
            opened.push_async_callback(parts.background.close, name)
        report.add_gauges(metrics, parts)
        yield parts


def _open_fleet(settings: EdgeSettings, state: StateDirectory, clock: Clock) -> tuple[FleetRoom | None, EdgeSettings]:
    """The fleet's part, if there is to be one, and the settings under its configuration."""
    if not settings.fleet.enabled:
        return None, settings
    from firstline_edge.fleet.wiring import FleetRoom  # httpx, which takes time and memory to import

    fleet = FleetRoom(settings, state, clock)
    return fleet, fleet.configuration.settings


def _switcher(models: Models, standings: Standings, recorder: Recorder, clock: Clock) -> VariantSwitcher:
    from firstline_edge.adaptation.switching import VariantSwitcher  # most devices do not need to import it

    return VariantSwitcher(models, standings, recorder.switched, clock)


def _hardware(
    settings: EdgeSettings,
    state: StateDirectory,
    workers: Workers,
    switcher: VariantSwitcher | None,
    *,
    clock: Clock,
    fleet: FleetRoom | None,
) -> tuple[Sampler, Surveyor]:
    tree, thresholds = Tree(Path(settings.hardware.root)), MemoryThresholds()
    if missing := missing_kernel_files(tree):
        log.warning("the guards see nothing", problem=missing)
    if switcher is not None:
        from firstline_edge.adaptation.loading import limits_of

        thresholds = MemoryThresholds(limits_of(settings).memory_thresholds_bytes)
    sampler = Sampler(
        device_sensors(settings, lambda: workers.waiting),
        settings.hardware.period_s,
        clock,
        thresholds=thresholds,
        on_reading=switcher.update if switcher is not None else lambda _: None,
    )
    surveyor = Surveyor(
        tree,
        state.path,
        state.hardware_path,
        clock=clock,
        measures=settings.hardware.survey,
        on_change=fleet.look if fleet is not None else lambda: None,
    )
    return sampler, surveyor


def _budget_gate(spending: Spending | None, fleet: FleetRoom | None) -> BudgetGate:
    """What stands at the gate of the links: the fleet's brake, then the budgets."""
    budget_gate = no_budget if spending is None else spending.paid
    return budget_gate if fleet is None else fleet.pedal.before(budget_gate)


def _works(
    parts: Parts, auditor: Auditor, settings: EdgeSettings, clock: Clock
) -> dict[str, Coroutine[Any, Any, None]]:
    """What goes on beside the requests, by what it is for."""
    works = {
        "outbox": _keep_promises(parts, settings, clock),
        "housekeeping": _forget_old(parts, clock),
        "audits": parts.audits.run(auditor, parts.links),
        "identity": parts.identity.run(),
        "sensors": parts.sampler.run(),
        "survey": parts.surveyor.run(),
    }
    if parts.spending is not None:
        works["budgets"] = parts.spending.keep()
    if parts.fleet is not None:
        works["fleet"] = parts.fleet.run()
    return works


async def _keep_promises(parts: Parts, settings: EdgeSettings, clock: Clock) -> None:
    """Delivers what the outbox promised, once the disk gives it; without any link promises still end by their age."""
    outbox, rng = await parts.outbox.opened(), random.Random()  # noqa: S311 (jitter)
    chain = parts.links.chain or LinkChain([], [], clock)

    def alarm(request: InferRequest) -> str:
        held = parts.models.find(request.model, request.version)
        return parts.audits.standings.alarm_of(held) if held is not None else ""

    def heed(request: InferRequest, notice: ContractNotice | None) -> None:
        held = parts.models.find(request.model, request.version)
        if held is not None:
            parts.audits.standings.heed(held, notice)

    delivery = Delivery(
        outbox,
        chain,
        rows.merge,
        clock,
        rng,
        max_age_s=settings.outbox.max_age_s,
        on_correction=parts.recorder.corrected,
        complaints=parts.complaints,
        alarm=alarm,
        heed=heed,
        retries=chain.retries,
    )
    parts.outbox.on_put = delivery.hurry
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(delivery.run(), name="delivery")
        if parts.links.mqtt:
            announcer = Announcer(outbox, parts.links, clock, rng)
            tasks.create_task(announcer.run(), name="announcer")


async def _forget_old(parts: Parts, clock: Clock) -> None:
    """Sees to it that nothing is kept for longer than the settings say, also where nothing new comes."""
    while True:
        parts.cache.expire()
        with contextlib.suppress(CapacityError):  # told by whoever writes; there is a next time
            await parts.outbox.forget_old()
        await clock.sleep(_SWEEP_S)
