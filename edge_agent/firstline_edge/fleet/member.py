"""This device as a member of a fleet: its twin, model updates, remote configuration and profiles."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from firstline_core.clock import Clock
from firstline_core.errors import FirstlineError
from firstline_core.fleet.profiles import own_profile_path
from firstline_core.fleet.telemetry import Telemetry
from firstline_core.fleet.twin import UPDATES, Desired, Reported, Update
from firstline_core.ids import new_request_id
from firstline_core.profile.profile import Profile, encode
from firstline_core.runtime.threads import REFUSED
from firstline_core.telemetry.logs import logger
from firstline_edge.cloud.links import Links
from firstline_edge.fleet.configuration.configurator import Configurator
from firstline_edge.fleet.configuration.settings_changes import SettingsAdoption
from firstline_edge.fleet.escalation_limiter import SAVE_EVERY_S
from firstline_edge.fleet.http_client import FleetHttp
from firstline_edge.fleet.report import (
    FleetCounts,
    capabilities,
    device_hardware,
    running_models,
    stable_catalogue,
)
from firstline_edge.fleet.start import FleetStart, note_end
from firstline_edge.fleet.transports import HttpTransport, MqttTransport, TwinTransport
from firstline_edge.fleet.twin import Twin
from firstline_edge.fleet.updates.model_updates import Updater, UpdateServices
from firstline_edge.fleet.updates.registry import GatewayRegistry
from firstline_edge.fleet.updates.state_machine import TrialLimits
from firstline_edge.fleet.updates.trial import AgentServing
from firstline_edge.hardware.sampler import Sampler
from firstline_edge.hardware.surveyor import Surveyor
from firstline_edge.identity.credentials import Credentials
from firstline_edge.models.models import DeviceModel, Models
from firstline_edge.models.reloading import Reloading
from firstline_edge.outbox.reopening import ReopeningOutbox
from firstline_edge.profiling.gate import Gate, bounds_of
from firstline_edge.profiling.measuring import measure_order, order_of
from firstline_edge.profiling.profiler import Profiler
from firstline_edge.settings.settings import EdgeSettings
from firstline_edge.state import StateDirectory
from firstline_edge.telemetry.recorder import Recorder
from firstline_edge.telemetry.version import VERSION

log = logger(__name__)

_LAST_REPORT_S = 2.0


class FleetMember:
    """The parts that make an agent a member of a fleet.

    Args:
        start: the fleet's state, read before the models were opened.
        state: stores the fleet's files and models.
        models: of the agent.
        reloading: exchanges models.
        hold: opens, loads and measures one bundle.
        adoption: exchanges settings.
        counts: answers by model.
        recorder: brings the counts up to date.
        outbox: its size is reported.
        sampler: sensor readings, for profiles.
        surveyor: the hardware catalogue.
        links: to the gateway.
        credentials: None on a device that has not joined.
        clock: the agent's.

    Attributes:
        updater: all updates of models.
        configurator: all updates of the configuration.

    Raises:
        ConfigError: a token or authorities that cannot be read.
    """

    def __init__(
        self,
        start: FleetStart,
        state: StateDirectory,
        *,
        models: Models,
        reloading: Reloading,
        hold: Callable[[Path], DeviceModel],
        adoption: SettingsAdoption,
        counts: FleetCounts,
        recorder: Recorder,
        outbox: ReopeningOutbox,
        sampler: Sampler,
        surveyor: Surveyor,
        links: Links,
        credentials: Credentials | None,
        clock: Clock,
    ) -> None:
        settings, rng = start.own, random.Random()  # noqa: S311 (jitter)
        section = next((link for link in settings.links if link.kind == "http"), None)
        now_s = credentials.floor.now_s if credentials is not None else clock.wall_s
        self._start = start
        self._clock = clock
        self._started_s = clock.monotonic_s()
        self._models = models
        self._counts = counts
        self._recorder = recorder
        self._outbox = outbox
        self._surveyor = surveyor
        self._capabilities = capabilities(device_hardware(state.path))
        self._http = FleetHttp(section, credentials) if section is not None else None
        registry = GatewayRegistry(self._http, state.path / "metadata", settings.fleet.root_file, now_s)
        serving = AgentServing(
            reloading,
            hold,
            running=models.find,
            answered=counts.answered_of,
            hardware=partial(device_hardware, state.path, several=settings.adaptation.enabled),
        )
        limits = TrialLimits(settings.fleet.trial_tries, settings.fleet.trial_s)
        services = UpdateServices(
            start.store,
            registry,
            serving,
            clock=clock,
            now_s=now_s,
            rng=rng,
            limits=limits,
            bytes_per_s=settings.fleet.download_bytes_per_s,
            jitter_s=settings.fleet.download_jitter_s,
            changed=start.changes.set,
        )
        self.updater = Updater(services)
        self.configurator = Configurator(
            start.configuration,
            start.own,
            registry,
            adopt=adoption.adopt,
            failed=adoption.failed,
            clock=clock,
            rng=rng,
            limits=limits,
            jitter_s=settings.fleet.download_jitter_s,
        )
        self._profiler = self._make_profiler(state, sampler, rng)
        transport, session = _transport(links, self._http, settings, clock, rng)
        self._twin = Twin(
            path=start.folder / "desired",
            transport=transport,
            apply=self._apply,
            describe=self._describe,
            count=self._telemetry,
            session=session,
            changes=start.changes,
            telemetry_s=settings.fleet.telemetry_s,
            clock=clock,
            rng=rng,
        )

    def _make_profiler(self, state: StateDirectory, sampler: Sampler, rng: random.Random) -> Profiler:
        settings = self._start.own
        gate = Gate(lambda: sampler.latest, bounds_of(settings), self._clock)
        return Profiler(
            state.profiling_path,
            partial(order_of, settings, self._models, has_http=self._http is not None),
            self._upload,
            clock=self._clock,
            rng=rng,
            measure=partial(measure_order, gate=gate),
            on_change=self._start.changes.set,
        )

    async def run(self) -> None:
        """Works until it is cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._twin.run(), name="twin")
            tasks.create_task(self._save_limiter(), name="brake")
            tasks.create_task(self.updater.run(), name="updater")
            tasks.create_task(self.configurator.run(), name="configuration")
            tasks.create_task(self._profiler.run(), name="profiling")

    async def close(self) -> None:
        """Reports the latest counts if that takes little time, and notes that this process ended cleanly."""
        if not self._twin.problem:
            with contextlib.suppress(FirstlineError, TimeoutError):
                async with asyncio.timeout(_LAST_REPORT_S):
                    await self._twin.send_counts()
        if self._http is not None:
            await self._http.close()
        self._start.limiter.save()
        note_end(self._start.folder, self._start.starts)

    async def roll_back(self, model: str) -> None:
        """Rolls a model back; see `Updater.roll_back`."""
        await self.updater.roll_back(model)

    async def roll_back_configuration(self) -> None:
        """Rolls the configuration back; see `Configurator.roll_back`."""
        await self.configurator.roll_back()

    def status(self) -> dict[str, Any]:
        """Returns the fleet's section of `GET /firstline/v1/status`."""
        desired = self._twin.desired
        return {
            "revision": desired.revision if desired is not None else None,
            "brake": self._start.limiter.status(),
            "starts": self._start.starts.starts,
            "unclean_ends": self._start.starts.unclean,
            "configuration": self._start.configuration.running(),
            "profiles": [msgspec.to_builtins(one) for one in self._profiler.progress()],
            "updates": [msgspec.to_builtins(update) for update in self._updates()],
            "problem": self._twin.problem or None,
        }

    def _apply(self, desired: Desired) -> None:
        self._start.limiter.brake = desired.brake
        self.updater.desire(desired.models)
        self.configurator.desire(desired.configuration)
        self._profiler.desire(desired.profiles)

    def _updates(self) -> tuple[Update, ...]:
        return (*self.updater.updates()[: UPDATES - 1], *self._start.configuration.updates())

    async def _upload(self, profile: Profile) -> None:
        assert self._http is not None  # noqa: S101 (otherwise nothing is measured)
        await self._http.send(own_profile_path(profile.bundle, profile.version), encode(profile))

    async def _save_limiter(self) -> None:
        while True:
            await self._clock.sleep(SAVE_EVERY_S)
            try:
                await asyncio.to_thread(self._start.limiter.save)
            except REFUSED as error:  # no thread, no memory; the next time is soon
                log.warning("cannot save the escalations under the brake", error=str(error))

    def _describe(self) -> Reported:
        running = self._start.configuration.state.running
        return Reported(
            "-",
            0,
            models=running_models(self._models),
            updates=self._updates(),
            configuration=running.version if running is not None else 0,
            configuration_name=running.name if running is not None else "",
            configuration_sha256=running.sha256 if running is not None else "",
            braked=self._start.limiter.active_brake is not None,
            agent_version=VERSION,
            capabilities=self._capabilities,
            hardware=stable_catalogue(self._surveyor.catalogue),
            profiles=self._profiler.progress(),
        )

    def _telemetry(self) -> Telemetry:
        self._recorder.flush()
        return Telemetry(
            "-",
            0,
            uptime_s=self._clock.monotonic_s() - self._started_s,
            models=self._counts.counts(),
            starts=self._start.starts.starts,
            unclean=self._start.starts.unclean,
            outbox_items=self._outbox.depth,
        )


def _transport(
    links: Links, http: FleetHttp | None, settings: EdgeSettings, clock: Clock, rng: random.Random
) -> tuple[TwinTransport, str]:
    """Returns the transport of the twin, and the name of this process, which its last will has too."""
    if links.mqtt:
        return MqttTransport(links.mqtt[0]), links.mqtt[0].session_id
    assert http is not None  # noqa: S101 (a link is one or the other)
    return HttpTransport(http, settings.fleet.poll_s, clock, rng), new_request_id()
