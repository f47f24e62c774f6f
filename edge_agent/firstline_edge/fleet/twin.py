"""This device's half of its twin: takes up what is desired, and says what is so whenever that has changed.

And again now and then, and on each new connection: what a broker drops from a full queue, or loses with its disk, is
lost without a word to either side. A report says which word of the fleet is known here; a lost one is said again.
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
        take_up: told of what is desired; called at once with what is known from before.
        describe: what is so now; session, sequence and revision are filled in here.
        count: what was counted; session and sequence are filled in here.
        session: of this process.
        changes: set by whoever changes what `describe` returns.
        telemetry_s: between two reports of counts.

    Attributes:
        desired: what holds; None where nothing was ever said.
        problem: why the gateway does not hear this device, "" where it does.
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
        """Something may have changed: what is so is looked at now."""
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
            # From the first on they are spread, lest a fleet that was started together speaks together.
            await self._clock.sleep(self._telemetry_s * self._rng.uniform(0.5, 1.0))
            try:
                await self.tell_counts()
            except FirstlineError as error:  # they only grow: the next report has them
                self._failed(error)

    async def tell_counts(self) -> None:
        """Tells what was counted so far.

        Raises:
            FirstlineError: nobody heard.
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
