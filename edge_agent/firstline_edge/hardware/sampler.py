"""Reads the sensors every few seconds beside the requests, which take the latest snapshot as a plain attribute.

Sooner where memory gets short: what a neighbour takes between two readings may be all that there is.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial

from msgspec.structs import replace

from firstline_core.clock import Clock
from firstline_core.hardware.readings import measured
from firstline_core.hardware.sensors.device import Sensors
from firstline_core.hardware.sensors.snapshot import NOTHING_READ, Snapshot, nothing
from firstline_core.runtime.threads import REFUSED, in_daemon_thread
from firstline_core.telemetry.logs import logger
from firstline_edge.hardware.memory_watch import MemoryWatch

log = logger(__name__)

_SILENT_PERIODS = 3
_SILENT_S = 30.0
_HANGS = "a driver hangs"
_WHY_CHARACTERS = 200


class Sampler:
    """One device's.

    Args:
        sensors: read in a thread, one reading at a time.
        period_s: between two readings.
        clock: the agent's.
        watch: when to read sooner; None for never.

    Attributes:
        latest: how the device was at the latest reading; all of it absent where that was too long ago.
        listener: is shown each reading, and as often that there is none: what nobody measures keeps nothing back. None
            where nobody acts by them.
    """

    def __init__(self, sensors: Sensors, period_s: float, clock: Clock, watch: MemoryWatch | None = None) -> None:
        self._sensors = sensors
        self._period_s = period_s
        self._clock = clock
        self._watch = watch or MemoryWatch()
        self._limit_s = max(_SILENT_S, _SILENT_PERIODS * period_s)
        self._silent_since_s = clock.monotonic_s()
        self._why = _HANGS
        self.latest: Snapshot = NOTHING_READ
        self.listener: Callable[[Snapshot], None] | None = None

    async def run(self) -> None:
        """Reads until it is cancelled."""
        try:
            async with asyncio.TaskGroup() as tasks:  # two, for a driver may hang, and what it said last grows old
                tasks.create_task(self._keep_reading(), name="sensors")
                tasks.create_task(self._keep_watching(), name="silent sensors")
        finally:
            self.latest = nothing("The sensors are not read any more.")

    async def _keep_reading(self) -> None:
        while True:
            began_s = self._clock.monotonic_s()
            if self._why == _HANGS:
                self._silent_since_s = began_s
            try:
                found = await in_daemon_thread(partial(self._sensors.read, began_s))
            except Exception as error:  # noqa: BLE001 (one reading; guards are to outlive whatever ends it)
                self._cannot(error)
            else:
                self._why, self._silent_since_s = _HANGS, began_s
                if self._clock.monotonic_s() - began_s >= self._limit_s:
                    continue  # it was told to be absent meanwhile, and says how the device was before
                self._take(found)
            await self._rest(self._clock.monotonic_s() + self._period_s)

    async def _rest(self, until_s: float) -> None:
        """Until the next reading is due: then, or once less memory is left than somebody waits for."""
        left_bytes = measured(self.latest.memory_available_bytes)
        before = self._watch.passed(left_bytes)
        while True:
            pause_s, rest_s = self._watch.pause_s(left_bytes), until_s - self._clock.monotonic_s()
            if pause_s >= rest_s:
                await self._clock.sleep(max(0.0, rest_s))
                return
            await self._clock.sleep(pause_s)
            try:
                left = await in_daemon_thread(self._sensors.memory_available)
            except Exception:  # noqa: BLE001 (the reading tells of it)
                return
            left_bytes = measured(left)
            if self._watch.passed(left_bytes) > before:
                # At once: what else is to be read may be a slow driver's.
                self._take(replace(self.latest, at_s=self._clock.monotonic_s(), memory_available_bytes=left))
                return

    def _cannot(self, error: Exception) -> None:
        """The system may give no thread or no memory for a while: guards that end for it would be off for good."""
        why = f"{type(error).__name__}: {error}"[:_WHY_CHARACTERS]
        if self._why == _HANGS:
            unforeseen = None if isinstance(error, REFUSED) else error
            log.warning("the sensors cannot be read; it is tried again", error=why, exc_info=unforeseen)
        self._why = why

    @property
    def _where(self) -> str:
        """Of a driver that hangs."""
        reading = self._sensors.tree.reading
        return f" (/{reading})" if reading and self._why == _HANGS else ""

    async def _keep_watching(self) -> None:
        told = False
        while True:
            now_s = self._clock.monotonic_s()
            silent_s = now_s - self._silent_since_s
            silent = silent_s >= self._limit_s
            if silent:
                if not told:
                    log.warning("the sensors say nothing", seconds=round(silent_s), why=self._why + self._where)
                said = nothing(f"The sensors have not answered for {silent_s:.0f} s: {self._why}{self._where}.")
                self._take(replace(said, at_s=now_s))
            told = silent
            await self._clock.sleep(max(self._limit_s - silent_s, self._period_s))

    def _take(self, found: Snapshot) -> None:
        self.latest = found
        if self.listener is None:
            return
        try:
            self.listener(found)
        except Exception:
            log.exception("a reading was not acted upon; the next one is")
