"""The device's side of its twin: stores and applies the desired state, and reports the actual state when it changes.

The report is repeated now and then, and after each new connection, because a broker may drop a message without notice.
A report names the latest known revision of the desired state, so that the gateway repeats a lost one.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from msgspec.structs import replace

from firstline_core.clock import Clock, first_of
from firstline_core.errors import FirstlineError
from firstline_core.fleet.telemetry import EndedPromise, Telemetry
from firstline_core.fleet.twin import Desired, Reported
from firstline_core.protocol.backoff import full_jitter_s
from firstline_core.telemetry.logs import logger
from firstline_edge.fleet.transports import TwinTransport
from firstline_edge.state import read_stored, store

log = logger(__name__)

_CHECK_S = 5.0
_RETRY_S, _RETRY_MAX_S = 5.0, 600.0
_REPEAT_S = 900.0


@dataclass(kw_only=True)
class Twin:
    """The twin of one device.

    Args:
        path: stores the desired state; the gateway sends it again if the file cannot be used.
        transport: to the gateway.
        apply: receives the desired state; called at once with the stored one.
        describe: returns the actual state; its session, sequence and revision are filled in here.
        count: returns the counts; session, sequence and ended promises are filled in here.
        changes: set when the result of `describe` changes.
        telemetry_s: between two reports of counts.
        clock: for waits.
        rng: for jitter.

    Attributes:
        desired: the desired state; None if the fleet never sent one.
        problem: why no report reaches the gateway; "" if reports do.
    """

    path: Path
    transport: TwinTransport
    apply: Callable[[Desired], None]
    describe: Callable[[], Reported]
    count: Callable[[], Telemetry]
    changes: asyncio.Event
    telemetry_s: float
    clock: Clock
    rng: random.Random
    desired: Desired | None = field(init=False)
    problem: str = field(default="", init=False)
    _sequence: int = field(default=0, init=False)

    def __post_init__(self) -> None:
        self.desired = read_stored(self.path, Desired, "desired state")
        if self.desired is not None:
            self.apply(self.desired)

    async def run(self) -> None:
        """Receives and reports until it is cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._receive(), name="desired")
            tasks.create_task(self._report(), name="reported")
            tasks.create_task(self._keep_sending_telemetry(), name="telemetry")

    async def _receive(self) -> None:
        while True:
            desired = await self.transport.desired(self._revision)
            if desired != self.desired:
                log.info("desired state received", revision=desired.revision, models=len(desired.models))
                await asyncio.to_thread(store, self.path, desired, "desired state")
                self.desired = desired
                self.apply(desired)
            self.changes.set()

    async def _report(self) -> None:
        reported: tuple[Reported, int] | None = None
        failures, repeat_s = 0, 0.0
        while True:
            self.changes.clear()
            state = replace(self.describe(), session=self.transport.session, revision=self._revision)
            now = state, self.transport.connections
            if now != reported or self.clock.monotonic_s() >= repeat_s:
                try:
                    await self.transport.report(replace(state, sequence=self._next()))
                    reported, failures, self.problem = now, 0, ""
                    repeat_s = self.clock.monotonic_s() + _REPEAT_S * self.rng.uniform(0.5, 1.0)
                except FirstlineError as error:
                    self._failed(error)
                    failures += 1
                    pause_s = full_jitter_s(self.rng, failures, base_s=_RETRY_S, max_s=_RETRY_MAX_S)
                    await self.clock.sleep(pause_s)
                    continue
            await first_of(self.changes.wait(), self.clock.sleep(_CHECK_S))

    async def _keep_sending_telemetry(self) -> None:
        while True:
            # Random delays from the first report on prevent a thundering herd.
            await self.clock.sleep(self.telemetry_s * self.rng.uniform(0.5, 1.0))
            try:
                await self.send_telemetry()
            except FirstlineError as error:  # counts only grow: the next report includes them
                self._failed(error)

    async def send_telemetry(self, ended: tuple[EndedPromise, ...] = ()) -> None:
        """Reports the counts, and promises that have ended.

        Raises:
            FirstlineError: the report did not arrive.
        """
        telemetry = replace(self.count(), session=self.transport.session, sequence=self._next(), ended=ended)
        await self.transport.send_telemetry(telemetry)

    @property
    def _revision(self) -> int:
        return self.desired.revision if self.desired is not None else 0

    def _next(self) -> int:
        self._sequence += 1
        return self._sequence

    def _failed(self, error: FirstlineError) -> None:
        if not self.problem:
            log.warning("reports not delivered", error=error.message)
        self.problem = error.message
