"""The device's side of its twin: takes up the desired state, and reports the actual state whenever it changes.

It repeats its report now and then, and on each new connection: a broker may drop a message without notice to either
    side. A report names the latest known revision of the desired state, so that the gateway repeats a lost one.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from pathlib import Path

from msgspec.structs import replace

from firstline_core.clock import Clock, first_of
from firstline_core.errors import FirstlineError
from firstline_core.fleet.telemetry import Telemetry
from firstline_core.fleet.twin import Desired, Reported
from firstline_core.protocol.backoff import full_jitter_s
from firstline_core.telemetry.logs import logger
from firstline_edge.fleet.desired import keep_desired, read_desired
from firstline_edge.fleet.transports import TwinTransport

log = logger(__name__)

_LOOK_S = 5.0
_RETRY_S, _RETRY_MAX_S = 5.0, 600.0
_AGAIN_S = 900.0


class Twin:
    """One device's.

    Args:
        path: where what is desired is kept.
        transport: to the gateway.
        take_up: receives the desired state; called at once with the one from the disk.
        describe: returns the actual state; session, sequence and revision are filled in here.
        count: returns the counts; session and sequence are filled in here.
        session: of this process.
        changes: set when the result of `describe` changes.
        telemetry_s: between two reports of counts.

    Attributes:
        desired: the desired state; None if the fleet never sent one.
        problem: why no report reaches the gateway; "" if reports do.
    """

    def __init__(
        self,
        path: Path,
        transport: TwinTransport,
        *,
        take_up: Callable[[Desired], None],
        describe: Callable[[], Reported],
        count: Callable[[], Telemetry],
        session: str,
        changes: asyncio.Event,
        telemetry_s: float,
        clock: Clock,
        rng: random.Random,
    ) -> None:
        self._path = path
        self._transport = transport
        self._take_up = take_up
        self._describe = describe
        self._count = count
        self._session = session
        self._telemetry_s = telemetry_s
        self._clock = clock
        self._rng = rng
        self._changes = changes
        self._sequence = 0
        self.problem = ""
        self.desired = read_desired(path)
        if self.desired is not None:
            take_up(self.desired)

    def look(self) -> None:
        """Has the actual state compared with the latest report now."""
        self._changes.set()

    async def run(self) -> None:
        """Listens and speaks until it is cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._listen(), name="desired")
            tasks.create_task(self._report(), name="reported")
            tasks.create_task(self._tell_counts(), name="telemetry")

    async def _listen(self) -> None:
        while True:
            desired = await self._transport.desired(self._known)
            if desired != self.desired:
                log.info("the fleet desires", revision=desired.revision, models=len(desired.models))
                await asyncio.to_thread(keep_desired, self._path, desired)
                self.desired = desired
                self._take_up(desired)
            self.look()

    async def _report(self) -> None:
        told: tuple[Reported, int] | None = None
        failures, again_s = 0, 0.0
        while True:
            self._changes.clear()
            said = replace(self._describe(), session=self._session, revision=self._known)
            now = said, self._transport.connections
            if now != told or self._clock.monotonic_s() >= again_s:
                try:
                    await self._transport.report(replace(said, sequence=self._next()))
                    told, failures, self.problem = now, 0, ""
                    again_s = self._clock.monotonic_s() + _AGAIN_S * self._rng.uniform(0.5, 1.0)
                except FirstlineError as error:
                    self._failed(error)
                    failures += 1
                    pause_s = full_jitter_s(self._rng, failures, base_s=_RETRY_S, max_s=_RETRY_MAX_S)
                    await self._clock.sleep(pause_s)
                    continue
            await first_of(self._changes.wait(), self._clock.sleep(_LOOK_S))

    async def _tell_counts(self) -> None:
        while True:
            # Random delays from the first report on prevent a thundering herd.
            await self._clock.sleep(self._telemetry_s * self._rng.uniform(0.5, 1.0))
            try:
                await self.tell_counts()
            except FirstlineError as error:  # they only grow: the next report has them
                self._failed(error)

    async def tell_counts(self) -> None:
        """Reports the counts.

        Raises:
            FirstlineError: the report did not arrive.
        """
        await self._transport.count(replace(self._count(), session=self._session, sequence=self._next()))

    @property
    def _known(self) -> int:
        return self.desired.revision if self.desired is not None else 0

    def _next(self) -> int:
        self._sequence += 1
        return self._sequence

    def _failed(self, error: FirstlineError) -> None:
        if not self.problem:
            log.warning("the fleet does not hear this device", error=error.message)
        self.problem = error.message
