"""This device as a member of a fleet: takes what the fleet desires, and reports the actual state."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass, field
from typing import Any

import msgspec

from firstline_core.clock import Clock
from firstline_core.errors import FirstlineError
from firstline_core.fleet.twin import Desired, Reported
from firstline_core.runtime.threads import REFUSED
from firstline_core.telemetry.logs import logger
from firstline_core.types import InferResponse
from firstline_edge.audits.auditor import Auditor
from firstline_edge.fleet.configuration.installed_configuration import described
from firstline_edge.fleet.escalation_limiter import SAVE_EVERY_S
from firstline_edge.fleet.fleet_state import FleetState
from firstline_edge.fleet.report import FleetReport, ended_promises
from firstline_edge.fleet.transports import TwinTransport
from firstline_edge.fleet.twin import Twin
from firstline_edge.fleet.updater import Updater
from firstline_edge.profiling.profiler import Profiler

log = logger(__name__)

_LAST_REPORT_S = 2.0


@dataclass(eq=False)
class FleetMember:
    """Keeps the device's twin: passes on what the fleet desires, and reports the actual state.

    Args:
        state: stored on the device for the fleet.
        updater: all updates of models and of the configuration.
        profiler: measures the profiles that the fleet requests.
        auditor: audits the bundles that a rollout compares.
        report: describes the device.
        transport: of the twin.
        clock: the agent's.
        rng: for jitter.
    """

    state: FleetState
    updater: Updater
    profiler: Profiler
    auditor: Auditor
    _: KW_ONLY
    report: FleetReport
    transport: TwinTransport
    clock: Clock
    rng: random.Random
    _twin: Twin = field(init=False)

    def __post_init__(self) -> None:
        self._twin = Twin(
            path=self.state.folder / "desired",
            transport=self.transport,
            apply=self._receive,
            describe=self._describe,
            count=self.report.telemetry,
            changes=self.state.changes,
            telemetry_s=self.state.own.fleet.telemetry_s,
            clock=self.clock,
            rng=self.rng,
        )

    async def run(self) -> None:
        """Works until it is cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._twin.run(), name="twin")
            tasks.create_task(self._save_limiter(), name="escalation limiter")
            tasks.create_task(self.updater.run(), name="updates")
            tasks.create_task(self.profiler.run(), name="profiling")

    async def report_ended(self, answers: Sequence[InferResponse]) -> None:
        """Reports promises that have ended, if the fleet asks for them.

        Args:
            answers: that ended them, at most `ENDED_LIMIT`.

        Raises:
            FirstlineError: the report did not arrive.
        """
        if self.state.reporting.is_set():
            await self._twin.send_telemetry(ended_promises(answers))

    async def close(self) -> None:
        """Reports the latest counts if that takes little time, and notes that this process ended cleanly."""
        if not self._twin.problem:
            with contextlib.suppress(FirstlineError, TimeoutError):
                async with asyncio.timeout(_LAST_REPORT_S):
                    await self._twin.send_telemetry()
        try:
            await asyncio.to_thread(self.state.close)
        except REFUSED:  # no thread; a missing end would count as a crash
            self.state.close()

    def status(self) -> dict[str, Any]:
        """Returns the fleet's section of `GET /firstline/v1/status`."""
        desired, starts = self._twin.desired, self.state.starts
        return {
            "revision": desired.revision if desired is not None else None,
            "brake": self.state.limiter.status(),
            "starts": starts.starts,
            "unclean_ends": starts.unclean,
            "configuration": described(self.state.configuration),
            "profiles": [msgspec.to_builtins(one) for one in self.profiler.progress()],
            "updates": [msgspec.to_builtins(update) for update in self.updater.updates()],
            "problem": self._twin.problem or None,
        }

    def _receive(self, desired: Desired) -> None:
        self.state.limiter.brake = desired.brake
        self.updater.receive(desired.models, desired.configuration)
        self.profiler.receive(desired.profiles)
        self.auditor.audit_for_rollouts(desired.audits)
        if desired.answers:
            self.state.reporting.set()
        else:
            self.state.reporting.clear()

    def _describe(self) -> Reported:
        return self.report.reported(self.updater.updates(), self.profiler.progress())

    async def _save_limiter(self) -> None:
        while True:
            await self.clock.sleep(SAVE_EVERY_S)
            try:
                await asyncio.to_thread(self.state.limiter.save)
            except REFUSED as error:  # no thread, no memory; the next time is soon
                log.warning("escalations under the brake not stored", error=str(error))
