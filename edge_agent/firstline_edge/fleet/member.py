"""This device as a member of a fleet: its twin, model updates, remote configuration and profiles."""

from __future__ import annotations

import asyncio
import contextlib
import random
from typing import Any

import msgspec

from firstline_core.clock import Clock
from firstline_core.errors import FirstlineError
from firstline_core.fleet.target import Hardware
from firstline_core.fleet.telemetry import Telemetry
from firstline_core.fleet.twin import UPDATES, Desired, Reported, Update
from firstline_core.runtime.threads import REFUSED
from firstline_core.telemetry.logs import logger
from firstline_edge.fleet.configuration.configurator import Configurator
from firstline_edge.fleet.escalation_limiter import SAVE_EVERY_S
from firstline_edge.fleet.http_client import FleetHttp
from firstline_edge.fleet.report import (
    FleetCounts,
    capabilities,
    running_models,
    stable_catalogue,
)
from firstline_edge.fleet.start import FleetStart, note_end
from firstline_edge.fleet.transports import TwinTransport
from firstline_edge.fleet.twin import Twin
from firstline_edge.fleet.updates.model_updates import Updater
from firstline_edge.hardware.surveyor import Surveyor
from firstline_edge.models.models import Models
from firstline_edge.outbox.reopening import ReopeningOutbox
from firstline_edge.profiling.profiler import Profiler
from firstline_edge.telemetry.recorder import Recorder
from firstline_edge.telemetry.version import VERSION

log = logger(__name__)

_LAST_REPORT_S = 2.0


class FleetMember:
    """Runs and reports the parts that make an agent a member of a fleet.

    Args:
        start: the fleet's state, read before the models were opened.
        updater: all updates of models.
        configurator: all updates of the configuration.
        profiler: measures the profiles that the fleet requests.
        transport: of the twin.
        session: name of this process, which its last will has too.
        http: to the gateway; None on a device without an HTTP link.
        hardware: of the device, for its capabilities.
        models: of the agent.
        counts: answers by model.
        recorder: brings the counts up to date.
        outbox: its size is reported.
        surveyor: the hardware catalogue.
        clock: the agent's.
        rng: for jitter.
    """

    def __init__(
        self,
        start: FleetStart,
        *,
        updater: Updater,
        configurator: Configurator,
        profiler: Profiler,
        transport: TwinTransport,
        session: str,
        http: FleetHttp | None,
        hardware: Hardware,
        models: Models,
        counts: FleetCounts,
        recorder: Recorder,
        outbox: ReopeningOutbox,
        surveyor: Surveyor,
        clock: Clock,
        rng: random.Random,
    ) -> None:
        self._start = start
        self._updater = updater
        self._configurator = configurator
        self._profiler = profiler
        self._http = http
        self._capabilities = capabilities(hardware)
        self._models = models
        self._counts = counts
        self._recorder = recorder
        self._outbox = outbox
        self._surveyor = surveyor
        self._clock = clock
        self._started_s = clock.monotonic_s()
        self._twin = Twin(
            path=start.folder / "desired",
            transport=transport,
            apply=self._apply,
            describe=self._describe,
            count=self._telemetry,
            session=session,
            changes=start.changes,
            telemetry_s=start.own.fleet.telemetry_s,
            clock=clock,
            rng=rng,
        )

    async def run(self) -> None:
        """Works until it is cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._twin.run(), name="twin")
            tasks.create_task(self._save_limiter(), name="brake")
            tasks.create_task(self._updater.run(), name="updater")
            tasks.create_task(self._configurator.run(), name="configuration")
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
        await self._updater.roll_back(model)

    async def roll_back_configuration(self) -> None:
        """Rolls the configuration back; see `Configurator.roll_back`."""
        await self._configurator.roll_back()

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
        self._updater.desire(desired.models)
        self._configurator.desire(desired.configuration)
        self._profiler.desire(desired.profiles)

    def _updates(self) -> tuple[Update, ...]:
        return (*self._updater.updates()[: UPDATES - 1], *self._start.configuration.updates())

    async def _save_limiter(self) -> None:
        while True:
            await self._clock.sleep(SAVE_EVERY_S)
            try:
                await asyncio.to_thread(self._start.limiter.save)
            except REFUSED as error:  # no thread, no memory; the next time is soon
                log.warning("escalations under the brake not stored", error=str(error))

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
