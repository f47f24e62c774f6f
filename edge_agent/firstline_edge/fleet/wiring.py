"""The fleet's part of an agent, put together: imported only where `fleet.enabled` says so."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from firstline_core.clock import Clock
from firstline_core.errors import ConfigError, FirstlineError, UpdateError
from firstline_core.fleet.profiles import own_profile_path
from firstline_core.fleet.telemetry import Telemetry
from firstline_core.fleet.twin import UPDATES, Desired, Reported, Update
from firstline_core.ids import new_request_id
from firstline_core.profile.profile import Profile, encode
from firstline_core.runtime.threads import REFUSED
from firstline_core.telemetry.logs import logger
from firstline_edge.fleet import reported, starts
from firstline_edge.fleet.brake import SAVE_EVERY_S, BrakePedal
from firstline_edge.fleet.configuration.room import ConfigurationRoom
from firstline_edge.fleet.configuration.source import SignedConfigurations
from firstline_edge.fleet.counts import FleetCounts
from firstline_edge.fleet.http_client import FleetHttp
from firstline_edge.fleet.twin import Twin
from firstline_edge.fleet.updates.adapters import AgentServing, NoRegistry, RegistryBytes, SignedCatalogue
from firstline_edge.fleet.updates.history import History
from firstline_edge.fleet.updates.means import Means, Patience, Trials
from firstline_edge.fleet.updates.ports import BYTES_NEED_HTTP
from firstline_edge.fleet.updates.updater import Updater
from firstline_edge.fleet.ways import HttpWay, MqttWay, Way
from firstline_edge.models.held import HeldModel
from firstline_edge.profiling.gate import Gate, bounds_of
from firstline_edge.profiling.measuring import measure_order, order_of
from firstline_edge.profiling.profiler import Profiler
from firstline_edge.settings.settings import EdgeSettings
from firstline_edge.state import StateDirectory
from firstline_edge.telemetry.report import VERSION

if TYPE_CHECKING:
    from firstline_edge.parts import Parts

log = logger(__name__)

_GOODBYE_S = 2.0


class FleetRoom:
    """What makes an agent one of a fleet.

    Args:
        settings: of the agent.
        state: where the fleet's own files and models lie.
        clock: the agent's.

    Attributes:
        pedal: stands at the gate of the links.
        history: of this device's updates.
        updater: None until it has joined.
        configuration: which settings of the fleet the agent starts with, and goes on with.

    Raises:
        ConfigError: there is no way to a gateway.
    """

    def __init__(self, settings: EdgeSettings, state: StateDirectory, clock: Clock) -> None:
        if not settings.links:
            raise ConfigError("fleet.enabled is true, but there is no way to a gateway; join one, or add [[links]].")
        self._settings = settings
        self._folder = folder = state.fleet_path
        self._clock = clock
        self._started_s = clock.monotonic_s()
        self._starts = starts.begin(folder / "starts")
        self._http: FleetHttp | None = None
        self._instead: dict[str, Path] = {}
        self.pedal = BrakePedal(folder / "brake", clock)
        self._twin: Twin | None = None
        self.updater: Updater | None = None
        self._profiler: Profiler | None = None
        self.history = History(state.updates_path)
        self.history.start(clock.wall_s())
        self.configuration = ConfigurationRoom(settings, state.configuration_path, clock)

    def hold_installed(self, hold: Callable[[Path], HeldModel]) -> list[HeldModel]:
        """The models that run from a slot; one that cannot makes way for what ran before.

        Args:
            hold: opens, loads and measures one bundle.
        """
        self._hold = hold
        found = []
        for name in self.history.names:
            while (path := self.history.path(name, self.history.pointer(name).slot)) is not None:
                try:
                    held = hold(path)
                    if held.edge is None and held.manifest.edge:
                        raise UpdateError(held.problem)
                    found.append(held)
                    self._instead[name] = path
                    break
                except UpdateError as error:
                    log.error("an installed model cannot run", model=name, path=str(path), error=error.message)
                    try:
                        self.history.give_up(name, "damaged", error.message, self._clock.wall_s())
                    except OSError as refusal:
                        log.error("going back is not on the disk yet", model=name, error=str(refusal))
        return found

    def join(self, parts: Parts) -> None:
        """Takes its place among the other parts, which must all be there.

        Raises:
            ConfigError: a token or authorities that cannot be read.
        """
        rng = random.Random()  # noqa: S311 (jitter)
        section = next((link for link in self._settings.links if link.kind == "http"), None)
        if section is not None:
            self._http = FleetHttp(section, parts.identity.credentials)
        way, session = self._way(parts, rng)
        standings = parts.audits.standings

        def alarmed(held: HeldModel) -> bool:
            return standings.of(held).alarmed

        counts = FleetCounts(parts.models, alarmed)
        parts.recorder.listener = counts
        capabilities = reported.capabilities(reported.hardware(parts.state.path))
        parts.reloading.instead |= self._instead
        self._make_updaters(parts, counts, rng)
        gate = Gate(lambda: parts.sampler.latest, bounds_of(self._settings), self._clock)
        self._profiler = Profiler(
            parts.state.profiling_path,
            partial(order_of, self._settings, parts.models, has_http=self._http is not None),
            self._upload,
            clock=self._clock,
            rng=rng,
            measure=partial(measure_order, gate=gate),
            on_change=self.look,
        )
        self._twin = Twin(
            self._folder / "desired",
            way,
            take_up=self._take_up,
            describe=partial(self._describe, parts, capabilities),
            count=partial(self._counted, parts, counts),
            session=session,
            telemetry_s=self._settings.fleet.telemetry_s,
            clock=self._clock,
            rng=rng,
        )

    async def _upload(self, profile: Profile) -> None:
        assert self._http is not None  # noqa: S101 (else nothing is measured)
        await self._http.send(own_profile_path(profile.bundle, profile.version), encode(profile))

    def _make_updaters(self, parts: Parts, counts: FleetCounts, rng: random.Random) -> None:
        section, credentials = self._settings.fleet, parts.identity.credentials
        now_s = credentials.floor.now_s if credentials is not None else self._clock.wall_s
        catalogue: SignedCatalogue | NoRegistry = NoRegistry()
        source: RegistryBytes | NoRegistry = NoRegistry()
        if self._http is not None:
            root = Path(section.root_file) if section.root_file else None
            catalogue = SignedCatalogue(parts.state.path / "metadata", self._http, root, now_s)
            source = RegistryBytes(self._http)
        else:
            log.warning("nothing can come from the fleet", why=BYTES_NEED_HTTP)
        serving = AgentServing(
            parts.reloading,
            self._hold,
            running=parts.models.find,
            answered=counts.answered_of,
            hardware=partial(reported.hardware, parts.state.path, several=self._settings.adaptation.enabled),
        )
        means = Means(
            self.history,
            catalogue,
            source,
            serving,
            clock=self._clock,
            now_s=now_s,
            rng=rng,
            patience=Patience(section.download_bytes_per_s, section.download_jitter_s),
            trials=Trials(section.trial_tries, section.trial_s),
            changed=self.look,
        )
        self.updater = Updater(means)
        configurations = SignedConfigurations(catalogue, source)
        self.configuration.join(parts, configurations, counts.answered_of, rng, self.look)

    def look(self) -> None:
        if self._twin is not None:
            self._twin.look()

    def _way(self, parts: Parts, rng: random.Random) -> tuple[Way, str]:
        """To the gateway, and the name of this process, which its last will has too."""
        if parts.links.mqtt:
            return MqttWay(parts.links.mqtt[0]), parts.links.mqtt[0].session_id
        assert self._http is not None  # noqa: S101 (a link is one or the other)
        return HttpWay(self._http, self._settings.fleet.poll_s, self._clock, rng), new_request_id()

    async def run(self) -> None:
        """Works until it is cancelled."""
        assert self._twin is not None  # noqa: S101 (it joined)
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._twin.run(), name="twin")
            tasks.create_task(self._keep_brake(), name="brake")
            if self.updater is not None:
                tasks.create_task(self.updater.run(), name="updater")
            if self.configuration.configurator is not None:
                tasks.create_task(self.configuration.configurator.run(), name="configuration")
            if self._profiler is not None:
                tasks.create_task(self._profiler.run(), name="profiling")

    async def close(self) -> None:
        """Says what was counted last, if that is quickly done, and notes that this process ended as it should."""
        if self._twin is not None and not self._twin.problem:
            with contextlib.suppress(FirstlineError, TimeoutError):
                async with asyncio.timeout(_GOODBYE_S):
                    await self._twin.tell_counts()
        if self._http is not None:
            await self._http.close()
        self.pedal.save()
        starts.end(self._folder / "starts", self._starts)

    def status(self) -> dict[str, Any]:
        """For `GET /firstline/v1/status`."""
        twin = self._twin
        desired = twin.desired if twin is not None else None
        return {
            "revision": desired.revision if desired is not None else None,
            "brake": self.pedal.status(),
            "starts": self._starts.starts,
            "unclean_ends": self._starts.unclean,
            "configuration": self.configuration.running(),
            "profiles": [msgspec.to_builtins(one) for one in self._profiler.progress()] if self._profiler else [],
            "updates": [msgspec.to_builtins(update) for update in self._updates()],
            "problem": (twin.problem if twin is not None else "") or None,
        }

    def _take_up(self, desired: Desired) -> None:
        self.pedal.brake = desired.brake
        if self.updater is not None:
            self.updater.desire(desired.models)
        if self.configuration.configurator is not None:
            self.configuration.configurator.desire(desired.configuration)
        if self._profiler is not None:
            self._profiler.desire(desired.profiles)

    def _updates(self) -> tuple[Update, ...]:
        if self.updater is not None:
            found = self.updater.updates()
        else:
            found = tuple(record.update() for record in self.history.records.values())
        return (*found[: UPDATES - 1], *self.configuration.updates())

    async def _keep_brake(self) -> None:
        while True:
            await self._clock.sleep(SAVE_EVERY_S)
            try:
                await asyncio.to_thread(self.pedal.save)
            except REFUSED as error:  # no thread, no memory; the next time is soon
                log.warning("cannot keep what was escalated under the brake", error=str(error))

    def _describe(self, parts: Parts, capabilities: dict[str, Any]) -> Reported:
        held = self.configuration.kept.running
        return Reported(
            "-",
            0,
            models=reported.running(parts.models),
            updates=self._updates(),
            configuration=held.version if held is not None else 0,
            configuration_name=held.name if held is not None else "",
            configuration_sha256=held.sha256 if held is not None else "",
            braked=self.pedal.holds is not None,
            agent_version=VERSION,
            capabilities=capabilities,
            hardware=reported.catalogue(parts.surveyor.catalogue),
            profiles=self._profiler.progress() if self._profiler is not None else (),
        )

    def _counted(self, parts: Parts, counts: FleetCounts) -> Telemetry:
        parts.recorder.flush()
        return Telemetry(
            "-",
            0,
            uptime_s=self._clock.monotonic_s() - self._started_s,
            models=counts.counts(),
            starts=self._starts.starts,
            unclean=self._starts.unclean,
            outbox_items=parts.outbox.depth,
        )
