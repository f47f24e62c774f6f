"""This device as a member of a fleet: the tasks that the fleet gives it, and its reports."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Sequence
from typing import Any

import msgspec

from firstline_core.clock import Clock
from firstline_core.errors import FirstlineError
from firstline_core.fleet.twin import UPDATES, Desired, Profiling, Reported, Update
from firstline_core.runtime.threads import REFUSED
from firstline_core.telemetry.logs import logger
from firstline_core.types import InferResponse
from firstline_edge.audits.auditor import Auditor
from firstline_edge.fleet.configuration.configurator import Configurator
from firstline_edge.fleet.escalation_limiter import SAVE_EVERY_S
from firstline_edge.fleet.report import CountsReport, StateReport, ended_promises
from firstline_edge.fleet.start import FleetStart, note_end
from firstline_edge.fleet.transports import TwinTransport
from firstline_edge.fleet.twin import Twin
from firstline_edge.fleet.updates.model_updates import Updater
from firstline_edge.profiling.profiler import Profiler
from firstline_edge.settings.settings import EdgeSettings

log = logger(__name__)

_LAST_REPORT_S = 2.0


class FleetTasks:
    """The tasks that the fleet gives this device: updates of models and configuration, profiles, audits, a limit.

    Args:
        start: the fleet's state, read before the models were opened.
        updater: all updates of models.
        configurator: all updates of the configuration.
        profiler: measures the profiles that the fleet requests.
        auditor: audits the bundles that a rollout compares.
        clock: the agent's.
    """

    def __init__(
        self,
        start: FleetStart,
        updater: Updater,
        configurator: Configurator,
        profiler: Profiler,
        auditor: Auditor,
        *,
        clock: Clock,
    ) -> None:
        self._start = start
        self._updater = updater
        self._configurator = configurator
        self._profiler = profiler
        self._auditor = auditor
        self._clock = clock

    async def run(self) -> None:
        """Works until it is cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._save_limiter(), name="escalation limiter")
            tasks.create_task(self._updater.run(), name="updater")
            tasks.create_task(self._configurator.run(), name="configuration")
            tasks.create_task(self._profiler.run(), name="profiling")

    def receive(self, desired: Desired) -> None:
        """Takes what the fleet desires now."""
        self._start.limiter.brake = desired.brake
        self._updater.receive(desired.models)
        self._configurator.receive(desired.configuration)
        self._profiler.receive(desired.profiles)
        self._auditor.audit_for_rollouts(desired.audits)
        if desired.answers:
            self._start.reporting.set()
        else:
            self._start.reporting.clear()

    def adopt_own(self, settings: EdgeSettings) -> None:
        """Uses other settings of the device itself; see `Configurator.adopt_own`."""
        self._configurator.adopt_own(settings)
        self._start.changes.set()

    def updates(self) -> tuple[Update, ...]:
        """Returns the state of the latest updates of models and of the configuration."""
        return (*self._updater.updates()[: UPDATES - 1], *self._start.configuration.updates())

    def profiles(self) -> tuple[Profiling, ...]:
        """Returns the progress of each requested profile."""
        return self._profiler.progress()

    async def roll_back(self, model: str) -> None:
        """Rolls a model back; see `Updater.roll_back`."""
        await self._updater.roll_back(model)

    async def roll_back_configuration(self) -> None:
        """Rolls the configuration back; see `Configurator.roll_back`."""
        await self._configurator.roll_back()

    async def _save_limiter(self) -> None:
        while True:
            await self._clock.sleep(SAVE_EVERY_S)
            try:
                await asyncio.to_thread(self._start.limiter.save)
            except REFUSED as error:  # no thread, no memory; the next time is soon
                log.warning("escalations under the brake not stored", error=str(error))


class FleetMember:
    """Keeps the device's twin: passes on what the fleet desires, and reports the actual state.

    Args:
        start: the fleet's state, read before the models were opened.
        tasks: that the fleet gives.
        state_report: the device's actual state.
        counts_report: counts of answers.
        transport: of the twin.
        clock: the agent's.
        rng: for jitter.
    """

    def __init__(
        self,
        start: FleetStart,
        tasks: FleetTasks,
        state_report: StateReport,
        counts_report: CountsReport,
        transport: TwinTransport,
        *,
        clock: Clock,
        rng: random.Random,
    ) -> None:
        self._start = start
        self._tasks = tasks
        self._state_report = state_report
        self._twin = Twin(
            path=start.folder / "desired",
            transport=transport,
            apply=tasks.receive,
            describe=self._describe,
            count=counts_report.telemetry,
            changes=start.changes,
            telemetry_s=start.own.fleet.telemetry_s,
            clock=clock,
            rng=rng,
        )

    async def run(self) -> None:
        """Works until it is cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._twin.run(), name="twin")
            tasks.create_task(self._tasks.run(), name="tasks of the fleet")

    async def report_ended(self, answers: Sequence[InferResponse]) -> None:
        """Reports promises that have ended, if the fleet asks for them.

        Args:
            answers: that ended them, at most `ENDED_LIMIT`.

        Raises:
            FirstlineError: the report did not arrive.
        """
        if self._start.reporting.is_set():
            await self._twin.send_counts(ended_promises(answers))

    async def close(self) -> None:
        """Reports the latest counts if that takes little time, and notes that this process ended cleanly."""
        if not self._twin.problem:
            with contextlib.suppress(FirstlineError, TimeoutError):
                async with asyncio.timeout(_LAST_REPORT_S):
                    await self._twin.send_counts()
        try:
            await asyncio.to_thread(self._store_end)
        except REFUSED:  # no thread; a missing end would count as a crash
            self._store_end()

    def _store_end(self) -> None:
        self._start.limiter.save()
        note_end(self._start.folder, self._start.starts)

    def status(self) -> dict[str, Any]:
        """Returns the fleet's section of `GET /firstline/v1/status`."""
        desired = self._twin.desired
        return {
            "revision": desired.revision if desired is not None else None,
            "brake": self._start.limiter.status(),
            "starts": self._start.starts.starts,
            "unclean_ends": self._start.starts.unclean,
            "configuration": self._start.configuration.running(),
            "profiles": [msgspec.to_builtins(one) for one in self._tasks.profiles()],
            "updates": [msgspec.to_builtins(update) for update in self._tasks.updates()],
            "problem": self._twin.problem or None,
        }

    def _describe(self) -> Reported:
        return self._state_report.reported(self._tasks.updates(), self._tasks.profiles())
