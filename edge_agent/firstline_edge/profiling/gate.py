"""Decides when a point may be measured, and when one that is being measured must end.

A run at full load heats the device, drains its battery and takes memory. A point begins only if every guard of the
variants (`firstline_core.adaptation.guards`) has room to spare, and ends as soon as a guard would step the device down:
measuring must not make live answers worse. Missing sensors do not prevent measuring.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from msgspec import Struct

from firstline_core.adaptation.guards import Advice, Limits, heat_guard, memory_guard
from firstline_core.hardware.kernel_files import Tree, usable_cores
from firstline_core.hardware.readings import Snapshot, measured
from firstline_core.profile.measure import Gate, Need
from firstline_core.telemetry.logs import logger
from firstline_edge.adaptation.loading import limits_of
from firstline_edge.settings.settings import EdgeSettings

log = logger(__name__)

CHECK_S = 5.0
_REPORTED_CHECKS = 2
"""Shorter waits are not reported: a report contains everything that the device says about itself."""
_SHORTEST_S = 0.5
"""Processor time over a shorter time does not show how busy the agent is."""
_BUSY, _IDLE = 0.5, 0.05
"""Share of the cores that requests may use while a point is measured; and always, with a quota."""


class MeasuringBounds(Struct, frozen=True):
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


def bounds_of(settings: EdgeSettings) -> MeasuringBounds:
    """Returns the bounds that the settings state."""
    cores, quota = usable_cores(Tree(Path(settings.hardware.root)))
    return MeasuringBounds(limits_of(settings), settings.fleet.profiling_battery, cores, shared_quota=quota)


class WaitCause(NamedTuple):
    """Why nothing is measured now: the kind of cause, and a sentence for people."""

    kind: str
    sentence: str


def cause_to_wait(now: Snapshot, busy_cores: float, needed: Need, bounds: MeasuringBounds) -> WaitCause | None:
    """Returns why a point may not begin; None if it may.

    Args:
        now: the sensor readings.
        busy_cores: that the agent's own work used since the last check.
        needed: by the point.
        bounds: to keep.
    """
    limits, hottest_c, charge = bounds.limits, measured(now.hottest_c), measured(now.battery_share)
    heat, memory = heat_guard(now, 0.0, limits), memory_guard(now, int(needed.memory_bytes), limits)
    cool_c = limits.target_c - limits.heat_margin_c
    if heat.advice is not Advice.ROOM or (hottest_c is not None and hottest_c >= cool_c):
        return WaitCause("heat", f"Measuring waits for the device to cool below {cool_c:g} C: {heat.reason}.")
    if charge is not None and measured(now.powered) != 1 and charge < bounds.battery:
        return WaitCause(
            "battery",
            f"Measuring waits for power: the battery has {100 * charge:.0f} %, nothing charges it, and "
            f"{100 * bounds.battery:.0f} % are needed (fleet.profiling_battery).",
        )
    if memory.advice is not Advice.ROOM:
        return WaitCause("memory", f"Measuring waits for memory: {memory.reason}, {_wanted(needed, limits)} needed.")
    most = _BUSY * bounds.cores
    if bounds.shared_quota:
        most = min(most, max(bounds.cores - needed.cores, _IDLE * bounds.cores))
    waiting = measured(now.queue_items) or 0.0
    if busy_cores > most or waiting:
        load = f"{waiting:.0f} of them wait" if waiting else f"they use {busy_cores:.1f} of {bounds.cores:g} cores"
        return WaitCause("requests", f"Measuring waits for fewer requests: {load}.")
    return None


def cause_to_end(now: Snapshot, limits: Limits) -> str:
    """Returns why a point must end; "" if it may continue. Requests have priority over it, so they are no cause."""
    heat, memory, hottest_c = heat_guard(now, 0.0, limits), memory_guard(now, 0, limits), measured(now.hottest_c)
    if heat.advice < Advice.STAY or (hottest_c is not None and hottest_c >= limits.target_c):
        return f"the device became too hot ({heat.reason})"
    return f"memory became short ({memory.reason})" if memory.advice < Advice.STAY else ""


def never(now: Snapshot, needed: Need, limits: Limits) -> str:
    """Returns why waiting cannot help, in a sentence; "" if it can."""
    total_bytes = measured(now.memory_total_bytes)
    if total_bytes is None or total_bytes > limits.needed_bytes(needed.memory_bytes):
        return ""
    total = f"{total_bytes / 1e6:.0f} MB"
    return f"It needs {_wanted(needed, limits)} of memory with the reserve; the device has {total} in all."


def _wanted(needed: Need, limits: Limits) -> str:
    return f"{limits.needed_bytes(needed.memory_bytes) / 1e6:.0f} MB"


@dataclass
class DeviceGate(Gate):
    """Admits points one by one, by the device's sensors.

    Args:
        latest: returns the latest sensor readings.
        bounds: to keep.
        report: receives why measuring waits, in a sentence, and "" once it continues.
        pause: waits for the given seconds; an exception that it raises ends the measurement.
        used_s: returns the processor time that the agent's own work has used; points are measured in other processes.
    """

    latest: Callable[[], Snapshot]
    bounds: MeasuringBounds
    report: Callable[[str], None]
    pause: Callable[[float], None] = time.sleep
    used_s: Callable[[], float] = time.process_time
    _busy_cores: float | None = field(default=None, init=False)
    _checked: tuple[float, float] = field(default=(0.0, 0.0), init=False)

    def __post_init__(self) -> None:
        self._checked = time.monotonic(), self.used_s()

    def wait(self, needed: Need) -> str:
        checks, reported = 0, ""
        while True:
            now = self.latest()
            if why_not := never(now, needed, self.bounds.limits):
                return why_not
            cause = cause_to_wait(now, self._used_cores(), needed, self.bounds)
            if cause is None:
                if reported:
                    log.info("measuring continues")
                    self.report("")
                return ""
            if cause.kind != reported and checks >= _REPORTED_CHECKS:
                reported = cause.kind
                log.info("measuring waits", why=cause.sentence)
                self.report(cause.sentence)
            self.pause(CHECK_S)
            checks += 1

    def must_end(self) -> str:
        self.pause(0)
        return cause_to_end(self.latest(), self.bounds.limits)

    def _used_cores(self) -> float:
        if self._busy_cores is None and time.monotonic() - self._checked[0] < _SHORTEST_S:
            self.pause(2 * _SHORTEST_S)  # a new gate knows no earlier time to compare with
        (at_s, used_s), now = self._checked, (time.monotonic(), self.used_s())
        if now[0] - at_s >= _SHORTEST_S:
            self._busy_cores = (now[1] - used_s) / (now[0] - at_s)
            self._checked = now
        return self._busy_cores or 0.0
