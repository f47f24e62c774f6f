"""Decides when a point may be measured, and when one that is being measured must end.

A run at full load heats the device, drains its battery and takes memory. A point begins only if every guard of the
variants (`firstline_core.adaptation.guards`) has room to spare, and ends as soon as a guard would step the device down:
measuring must not make live answers worse. Missing sensors do not prevent measuring.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import NamedTuple

from msgspec import Struct

from firstline_core.adaptation.guards import Advice, Limits, heat_guard, memory_guard
from firstline_core.clock import Clock
from firstline_core.hardware.kernel_files import Tree
from firstline_core.hardware.readings import Snapshot, measured
from firstline_core.hardware.survey import usable_cores
from firstline_core.profile.measure import Need
from firstline_core.telemetry.logs import logger
from firstline_edge.adaptation.loading import limits_of
from firstline_edge.settings.settings import EdgeSettings

log = logger(__name__)

Report = Callable[[str], Awaitable[None]]
"""Receives why measuring waits, in a sentence, and "" once it continues."""

CHECK_S = 5.0
_REPORT_S = 10.0
"""Shorter waits are not reported: a report contains everything that the device says about itself."""
_SHORTEST_S = 0.5
"""Processor time over a shorter time does not show how busy the agent is."""
_BUSY, _QUIET = 0.5, 0.25
"""Share of the cores that requests may use while a point is measured, and below which measuring continues."""
_IDLE = 0.05
_CHARGE_HYSTERESIS = 0.05
"""Charge above the limit at which measuring continues: a battery at rest seems to gain some."""
_RESERVES = 1.25  # as in `memory_guard`


class Bounds(Struct, frozen=True):
    """Bounds that measuring keeps.

    Attributes:
        limits: of temperature and memory, as for the variants' guards.
        battery: charge (0 to 1) below which nothing is measured without external power.
        cores: that this process may use.
        shared_quota: whether they are a control group's quota. The kernel stops the whole group when it is used up, so
            that measuring takes time from requests whatever its priority.
    """

    limits: Limits = Limits()
    battery: float = 0.5
    cores: float = 1.0
    shared_quota: bool = False


def bounds_of(settings: EdgeSettings) -> Bounds:
    """Returns the bounds that the settings state."""
    cores, quota = usable_cores(Tree(Path(settings.hardware.root)))
    return Bounds(limits_of(settings), settings.fleet.profiling_battery, cores, shared_quota=quota)


class Cause(NamedTuple):
    """Why nothing is measured now: the kind of cause, and a sentence for people."""

    kind: str
    sentence: str


def cause_to_wait(now: Snapshot, busy_cores: float, needed: Need, bounds: Bounds, waits_for: str = "") -> Cause | None:
    """Returns why a point may not begin; None if it may.

    Args:
        now: the sensor readings.
        busy_cores: that the agent's own work used since the last check.
        needed: by the point.
        bounds: to keep.
        waits_for: kind of the cause that it waits for already; that one has to be over with a margin.
    """
    causes = {
        "heat": "" if needed.heats else _hot(now, bounds.limits, waits_for == "heat"),
        "battery": _drained(now, bounds.battery, waits_for == "battery"),
        "memory": _short_of_memory(now, needed, bounds.limits),
        "requests": _busy(now, busy_cores, needed, bounds, waits_for == "requests"),
    }
    return next((Cause(kind, f"Measuring waits{why}.") for kind, why in causes.items() if why), None)


def cause_to_end(now: Snapshot, needed: Need, limits: Limits) -> Cause | None:
    """Returns why a point must end; None if it may continue. Requests have priority over it, so they are no cause."""
    verdict, hottest_c = heat_guard(now, 0.0, limits), measured(now.hottest_c)
    is_hot = verdict.advice < Advice.STAY or (hottest_c is not None and hottest_c >= limits.target_c)
    if not needed.heats and is_hot:
        return Cause("heat", f"the device became too hot ({verdict.reason})")
    verdict = memory_guard(now, 0, limits)
    if verdict.advice < Advice.STAY:
        return Cause("memory", f"memory became short ({verdict.reason})")
    return None


def never(now: Snapshot, needed: Need, limits: Limits) -> str:
    """Returns why waiting cannot help, in a sentence; "" if it can."""
    total_bytes, wanted_bytes = measured(now.memory_total_bytes), _wanted_bytes(needed, limits)
    if total_bytes is None or total_bytes > wanted_bytes:
        return ""
    return f"It needs {_mb(wanted_bytes)} of memory with the reserve; the device has {_mb(total_bytes)} in all."


def _hot(now: Snapshot, limits: Limits, waits: bool) -> str:
    verdict, hottest_c = heat_guard(now, 0.0, limits), measured(now.hottest_c)
    resume_c = limits.heat_c - 3 * limits.heat_margin_c
    is_warm = hottest_c is not None and hottest_c >= resume_c
    is_near = hottest_c is not None and hottest_c >= limits.target_c - limits.heat_margin_c
    if verdict.advice is Advice.ROOM and not is_near and not (waits and is_warm):
        return ""
    if not is_warm:
        return f": {verdict.reason}"
    return f" for the device to cool: it is at {hottest_c:.0f} C, and continues below {resume_c:g} C"


def _drained(now: Snapshot, least: float, waits: bool) -> str:
    charge, resume = measured(now.battery_share), min(1.0, least + _CHARGE_HYSTERESIS)
    if charge is None or measured(now.powered) == 1 or charge >= (resume if waits else least):
        return ""
    return (
        f" for power: the battery has {100 * charge:.0f} %, nothing charges it, and measuring continues from "
        f"{100 * resume:.0f} % (fleet.profiling_battery)"
    )


def _short_of_memory(now: Snapshot, needed: Need, limits: Limits) -> str:
    verdict = memory_guard(now, int(needed.memory_bytes), limits)
    if verdict.advice is Advice.ROOM:
        return ""
    available_bytes = measured(now.memory_available_bytes)
    if available_bytes is None or verdict.advice is not Advice.STAY:
        return f" for memory: {verdict.reason}"
    return f" for memory: {_mb(available_bytes)} available, {_mb(_wanted_bytes(needed, limits))} needed"


def _busy(now: Snapshot, busy_cores: float, needed: Need, bounds: Bounds, waits: bool) -> str:
    most = (_QUIET if waits else _BUSY) * bounds.cores
    if bounds.shared_quota:
        most = min(most, max(bounds.cores - needed.cores, _IDLE * bounds.cores))
    waiting = measured(now.queue_items) or 0.0
    if busy_cores <= most and not waiting:
        return ""
    load = f"{waiting:.0f} of them wait" if waiting else f"they use {busy_cores:.1f} of {bounds.cores:g} cores"
    return f" for fewer requests: {load}"


def _wanted_bytes(needed: Need, limits: Limits) -> float:
    return _RESERVES * limits.memory_reserve_bytes + needed.memory_bytes


def _mb(size_bytes: float) -> str:
    return f"{size_bytes / 1e6:.0f} MB"


class Gate:
    """Admits points one by one.

    Args:
        latest: returns the latest sensor readings.
        bounds: to keep.
        clock: the agent's clock.
        used_s: returns the processor time that the agent's own work has used; points are measured in other processes.
        check_s: time between two checks.
    """

    def __init__(
        self,
        latest: Callable[[], Snapshot],
        bounds: Bounds,
        clock: Clock,
        used_s: Callable[[], float] = time.process_time,
        check_s: float = CHECK_S,
    ) -> None:
        self._latest = latest
        self._bounds = bounds
        self._clock = clock
        self._used_s = used_s
        self._check_s = check_s
        self._busy_cores = 0.0
        self._checked = clock.monotonic_s(), used_s()

    async def admit(self, needed: Need, report: Report) -> str:
        """Returns "" once a point may begin; returns at once why it never may, if waiting cannot help."""
        began_s, waits_for, reported = self._clock.monotonic_s(), "", ""
        while True:
            if why_not := never(self._latest(), needed, self._bounds.limits):
                return why_not
            cause = cause_to_wait(self._latest(), self._used_cores(), needed, self._bounds, waits_for)
            if cause is None:
                if reported:
                    log.info("measuring continues", waited_s=round(self._clock.monotonic_s() - began_s))
                    await report("")
                return ""
            waits_for = cause.kind
            if reported != cause.kind and self._clock.monotonic_s() - began_s >= _REPORT_S:
                reported = cause.kind
                log.info("measuring waits", why=cause.sentence)
                await report(cause.sentence)
            await self._clock.sleep(self._check_s)

    async def must_end(self, needed: Need) -> Cause:
        """Returns, with the reason, when a point that is being measured has to end."""
        while True:
            await self._clock.sleep(self._check_s)
            if cause := cause_to_end(self._latest(), needed, self._bounds.limits):
                return cause

    def _used_cores(self) -> float:
        (at_s, used_s), now = self._checked, (self._clock.monotonic_s(), self._used_s())
        if now[0] - at_s >= _SHORTEST_S:
            self._busy_cores = (now[1] - used_s) / (now[0] - at_s)
            self._checked = now
        return self._busy_cores
