"""Lets points be measured one by one, when the device and its requests can spare what that takes."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from pathlib import Path

from firstline_core.clock import Clock
from firstline_core.hardware.cores import usable_cores
from firstline_core.hardware.sensors.snapshot import Snapshot
from firstline_core.hardware.tree import Tree
from firstline_core.profile.need import Need
from firstline_core.telemetry.logs import logger
from firstline_edge.adaptation.loading import limits_of
from firstline_edge.profiling.yielding import Bounds, Cause, cause_to_end, cause_to_wait, never
from firstline_edge.settings.settings import EdgeSettings

log = logger(__name__)

Say = Callable[[str], Awaitable[None]]
"""Told why measuring waits, in a sentence, and "" once it goes on."""

LOOK_S = 5.0
_SAY_S = 10.0
"""Shorter waits are told to nobody: a report has all that the device says of itself, over what link there is."""
_SHORTEST_S = 0.5
"""Processor time over less says nothing of how busy somebody is."""


class Gate:
    """Of one agent.

    Args:
        latest: how the device is.
        bounds: what measuring keeps to.
        clock: the agent's.
        used_s: processor time that the agent's own work took so far; what measures is another process.
        look_s: between two looks.
    """

    def __init__(
        self,
        latest: Callable[[], Snapshot],
        bounds: Bounds,
        clock: Clock,
        used_s: Callable[[], float] = time.process_time,
        look_s: float = LOOK_S,
    ) -> None:
        self._latest = latest
        self._bounds = bounds
        self._clock = clock
        self._used_s = used_s
        self._look_s = look_s
        self._busy_cores = 0.0
        self._seen = clock.monotonic_s(), used_s()

    async def opens(self, needed: Need, say: Say) -> str:
        """Returns "" once a point may begin; at once why it never may, in a sentence, where no waiting helps.

        Args:
            needed: by the point.
            say: told why it waits, where that lasts.
        """
        began_s, waits_for, told = self._clock.monotonic_s(), "", ""
        while True:
            if why_not := never(self._latest(), needed, self._bounds.limits):
                return why_not
            cause = cause_to_wait(self._latest(), self._busy(), needed, self._bounds, waits_for)
            if cause is None:
                if told:
                    log.info("measuring goes on", waited_s=round(self._clock.monotonic_s() - began_s))
                    await say("")
                return ""
            waits_for = cause.kind
            if told != cause.kind and self._clock.monotonic_s() - began_s >= _SAY_S:
                told = cause.kind
                log.info("measuring waits", why=cause.sentence)
                await say(cause.sentence)
            await self._clock.sleep(self._look_s)

    async def shuts(self, needed: Need) -> Cause:
        """Returns, with the reason, when a point that is under way has to end."""
        while True:
            await self._clock.sleep(self._look_s)
            if cause := cause_to_end(self._latest(), needed, self._bounds.limits):
                return cause

    def _busy(self) -> float:
        """Cores that the agent's own work took since the look before."""
        (at_s, used_s), now = self._seen, (self._clock.monotonic_s(), self._used_s())
        if now[0] - at_s >= _SHORTEST_S:
            self._busy_cores = (now[1] - used_s) / (now[0] - at_s)
            self._seen = now
        return self._busy_cores


def bounds_of(settings: EdgeSettings) -> Bounds:
    """What measuring on this device keeps to."""
    cores, quota = usable_cores(Tree(Path(settings.hardware.root)))
    return Bounds(limits_of(settings), settings.fleet.profiling_battery, cores, shared_quota=quota)
