"""This device as a member of a fleet: it follows the fleet's desired state, and reports its actual state.

Both states together are the device's twin, which the gateway stores. The report is repeated now and then, and after
each new connection, because a broker may drop a message without notice. A report names the latest known revision of the
desired state, so that the gateway repeats a lost one.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass, field
from pathlib import Path
from typing import Any

import msgspec
from msgspec.structs import replace

from firstline_core.clock import Clock, first_of
from firstline_core.errors import FirstlineError
from firstline_core.fleet.telemetry import EndedPromise
from firstline_core.fleet.twin import Desired, Reported
from firstline_core.protocol.backoff import full_jitter_s
from firstline_core.runtime.threads import REFUSED
from firstline_core.telemetry.logs import logger
from firstline_core.types import InferResponse
from firstline_edge.audits.auditor import Auditor
from firstline_edge.fleet.configuration.installed_configuration import described
from firstline_edge.fleet.escalation_limiter import SAVE_EVERY_S
from firstline_edge.fleet.fleet_state import FleetState
from firstline_edge.fleet.report import FleetReport, ended_promises, within_limit
from firstline_edge.fleet.transports import FleetTransport
from firstline_edge.fleet.updater import Updater
from firstline_edge.profiling.profiler import Profiler
from firstline_edge.state import read_stored, store

log = logger(__name__)

_CHECK_S = 5.0
_RETRY_S, _RETRY_MAX_S = 5.0, 600.0
_REPEAT_S = 900.0
_LAST_REPORT_S = 2.0


@dataclass(eq=False)
class FleetMember:
    """The membership of one device; the stored desired state is applied at once.

    Args:
        state: stored on the device for the fleet.
        updater: all updates of models and of the configuration.
        profiler: measures the profiles that the fleet requests.
        auditor: audits the bundles that a rollout compares.
        report: describes the device.
        transport: of the twin.
        clock: the agent's.
        rng: for jitter.

    Attributes:
        desired: the desired state; None if the fleet never sent one, or the file cannot be used. The gateway then sends
            it again.
    """

    state: FleetState
    updater: Updater
    profiler: Profiler
    auditor: Auditor
    _: KW_ONLY
    report: FleetReport
    transport: FleetTransport
    clock: Clock
    rng: random.Random
    desired: Desired | None = field(init=False)
    _report_problem: str = field(default="", init=False)
    _telemetry_problem: str = field(default="", init=False)
    _sequence: int = field(default=0, init=False)

    def __post_init__(self) -> None:
        self.desired = read_stored(self._path, Desired, "desired state")
        if self.desired is not None:
            self._apply(self.desired)

    @property
    def problem(self) -> str:
        """Why the latest report or the latest telemetry did not reach the gateway; "" if both did."""
        return self._report_problem or self._telemetry_problem

    async def run(self) -> None:
        """Works until it is cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._keep_receiving(), name="desired")
            tasks.create_task(self._keep_reporting(), name="reported")
            tasks.create_task(self._keep_sending_telemetry(), name="telemetry")
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
            await self._send_telemetry(ended_promises(answers))

    async def close(self) -> None:
        """Reports the latest counts if that takes little time, and notes that this process ended cleanly."""
        if not self.problem:
            with contextlib.suppress(FirstlineError, TimeoutError):
                async with asyncio.timeout(_LAST_REPORT_S):
                    await self._send_telemetry()
        try:
            await asyncio.to_thread(self.state.close)
        except REFUSED:  # no thread; a missing end would count as a crash
            self.state.close()

    def status(self) -> dict[str, Any]:
        """Returns the fleet's section of `GET /firstline/v1/status`."""
        starts = self.state.starts
        return {
            "revision": self.desired.revision if self.desired is not None else None,
            "brake": self.state.limiter.status(),
            "starts": starts.starts,
            "unclean_ends": starts.unclean,
            "configuration": described(self.state.configuration),
            "profiles": [msgspec.to_builtins(one) for one in self.profiler.progress()],
            "updates": [msgspec.to_builtins(update) for update in self.updater.updates()],
            "problem": self.problem or None,
        }

    async def _keep_receiving(self) -> None:
        while True:
            desired = await self.transport.desired(self._revision)
            if desired != self.desired:
                log.info("desired state received", revision=desired.revision, models=len(desired.models))
                try:
                    await asyncio.to_thread(store, self._path, desired, "desired state")
                except REFUSED as error:  # no thread, no memory; after a restart the gateway sends it again
                    log.warning("desired state not stored", error=str(error))
                self.desired = desired
                self._apply(desired)
            self.state.changes.set()

    def _apply(self, desired: Desired) -> None:
        self.state.limiter.brake = desired.brake
        self.updater.receive(desired.models, desired.configuration)
        self.profiler.receive(desired.profiles)
        self.auditor.audit_for_rollouts(desired.audits)
        if desired.answers:
            self.state.reporting.set()
        else:
            self.state.reporting.clear()

    async def _keep_reporting(self) -> None:
        reported: tuple[Reported, int] | None = None
        failures, repeat_s = 0, 0.0
        while True:
            self.state.changes.clear()
            actual = self.report.reported(self.updater.updates(), self.profiler.progress())
            state = replace(actual, session=self.transport.session, revision=self._revision)
            now = state, self.transport.connections
            if now != reported or self.clock.monotonic_s() >= repeat_s:
                try:
                    await self.transport.report(within_limit(replace(state, sequence=self._next())))
                    reported, failures, self._report_problem = now, 0, ""
                    repeat_s = self.clock.monotonic_s() + _REPEAT_S * self.rng.uniform(0.5, 1.0)
                except FirstlineError as error:
                    self._log_first(error)
                    self._report_problem = error.message
                    failures += 1
                    pause_s = full_jitter_s(self.rng, failures, base_s=_RETRY_S, max_s=_RETRY_MAX_S)
                    await self.clock.sleep(pause_s)
                    continue
            await first_of(self.state.changes.wait(), self.clock.sleep(_CHECK_S))

    async def _keep_sending_telemetry(self) -> None:
        while True:
            # Random delays from the first report on prevent a thundering herd.
            await self.clock.sleep(self.state.own.fleet.telemetry_s * self.rng.uniform(0.5, 1.0))
            try:
                await self._send_telemetry()
                self._telemetry_problem = ""
            except FirstlineError as error:  # counts only grow: the next report includes them
                self._log_first(error)
                self._telemetry_problem = error.message

    async def _send_telemetry(self, ended: tuple[EndedPromise, ...] = ()) -> None:
        """Reports the counts, and promises that have ended; raises FirstlineError if the report did not arrive."""
        counts = self.report.telemetry()
        telemetry = replace(counts, session=self.transport.session, sequence=self._next(), ended=ended)
        await self.transport.send_telemetry(telemetry)

    async def _save_limiter(self) -> None:
        while True:
            await self.clock.sleep(SAVE_EVERY_S)
            try:
                await asyncio.to_thread(self.state.limiter.save)
            except REFUSED as error:  # no thread, no memory; the next time is soon
                log.warning("escalations under the brake not stored", error=str(error))

    @property
    def _path(self) -> Path:
        """The file of the desired state."""
        return self.state.folder / "desired"

    @property
    def _revision(self) -> int:
        return self.desired.revision if self.desired is not None else 0

    def _next(self) -> int:
        self._sequence += 1
        return self._sequence

    def _log_first(self, error: FirstlineError) -> None:
        if not self.problem:
            log.warning("reports not delivered", error=error.message)
