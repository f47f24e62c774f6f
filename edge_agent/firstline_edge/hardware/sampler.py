"""Reads the sensors every few seconds beside the requests, which take the latest snapshot as a plain attribute."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial

from msgspec.structs import replace

from firstline_core.clock import Clock
from firstline_core.hardware.sensors.device import Sensors
from firstline_core.hardware.sensors.snapshot import NOTHING_READ, Snapshot, nothing
from firstline_core.telemetry.logs import logger
from firstline_core.waiting import in_daemon_thread

log = logger(__name__)

_SILENT_PERIODS = 3
_SILENT_S = 30.0


class Sampler:
    """One device's.

    Args:
        sensors: read in a thread, one reading at a time.
        period_s: between two readings.
        clock: the agent's.

    Attributes:
        latest: how the device was at the latest reading; all of it absent where that was too long ago.
        listener: is shown each reading, and as often that there is none: what nobody measures keeps nothing back. None
            where nobody acts by them.
    """

    def __init__(self, sensors: Sensors, period_s: float, clock: Clock) -> None:
        self._sensors = sensors
        self._period_s = period_s
        self._clock = clock
        self._limit_s = max(_SILENT_S, _SILENT_PERIODS * period_s)
        self._began_s = clock.monotonic_s()
        self.latest: Snapshot = NOTHING_READ
        self.listener: Callable[[Snapshot], None] | None = None

    async def run(self) -> None:
        """Reads until it is cancelled."""
        async with asyncio.TaskGroup() as tasks:  # two, for a driver may hang, and what it said last grows old
            tasks.create_task(self._keep_reading(), name="sensors")
            tasks.create_task(self._keep_watching(), name="silent sensors")

    async def _keep_reading(self) -> None:
        while True:
            self._began_s = self._clock.monotonic_s()
            found = await in_daemon_thread(partial(self._sensors.read, self._began_s))
            if self._clock.monotonic_s() - self._began_s >= self._limit_s:
                continue  # it was told to be absent meanwhile, and says how the device was before
            self._take(found)
            await self._clock.sleep(self._period_s)

    async def _keep_watching(self) -> None:
        told = False
        while True:
            now_s = self._clock.monotonic_s()
            silent_s = now_s - self._began_s
            hangs = silent_s >= self._limit_s
            if hangs:
                if not told:
                    log.warning("a sensor's driver hangs", seconds=round(silent_s))
                said = nothing(f"The sensors have not answered for {silent_s:.0f} s: a driver hangs.")
                self._take(replace(said, at_s=now_s))
            told = hangs
            await self._clock.sleep(max(self._limit_s - silent_s, self._period_s))

    def _take(self, found: Snapshot) -> None:
        self.latest = found
        if self.listener is not None:
            self.listener(found)
