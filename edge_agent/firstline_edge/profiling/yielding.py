"""When measuring gives way to the device and to its requests: before a point, and in the middle of one. Pure.

A run at full load heats, drains, and takes memory. So a point begins only where every guard of the variants
(`firstline_core.adaptation.guards`) has room to spare, and ends at once where one would have the device step down:
what is measured must not be what makes live answers worse. What nobody measures keeps nothing from being measured.
"""

from __future__ import annotations

from typing import NamedTuple

from msgspec import Struct

from firstline_core.adaptation.guards import Advice, Limits, heat_guard, memory_guard
from firstline_core.hardware.readings import measured
from firstline_core.hardware.sensors.snapshot import Snapshot
from firstline_core.profile.need import Need

_BUSY, _QUIET = 0.5, 0.25
"""Of the cores: what requests may take while something is measured, and below which measuring goes on."""
_IDLE = 0.05
_CHARGED = 0.05
"""More charge than the limit before measuring goes on: a battery that rests seems to have gained some."""
_RESERVES = 1.25  # as `guards.memory` has it


class Bounds(Struct, frozen=True):
    """What measuring keeps to.

    Attributes:
        limits: of heat and memory, as the variants' guards have them.
        battery: charge (0 to 1) below which nothing is measured, where no power comes in.
        cores: that this process may use.
        shared_quota: they are a control group's quota, in which measuring takes from requests whatever its priority:
            the kernel stops the whole group when it is used up.
    """

    limits: Limits = Limits()
    battery: float = 0.5
    cores: float = 1.0
    shared_quota: bool = False


class Cause(NamedTuple):
    """Why nothing is measured now: of what kind, and a sentence for people."""

    kind: str
    sentence: str


def cause_to_wait(now: Snapshot, busy_cores: float, needed: Need, bounds: Bounds, waits_for: str = "") -> Cause | None:
    """Why a point may not begin; None where it may.

    Args:
        now: as the sensors say.
        busy_cores: that the agent's own work took of late.
        needed: by the point.
        bounds: see there.
        waits_for: kind of the cause for which it waits already: that one has to be over for good.
    """
    found = (
        None if needed.heats else _hot(now, bounds.limits, waits_for == "heat"),
        _drained(now, bounds.battery, waits_for == "battery"),
        _short(now, needed, bounds.limits),
        _taken(now, busy_cores, needed, bounds, waits_for == "requests"),
    )
    return next((cause for cause in found if cause is not None), None)


def cause_to_end(now: Snapshot, needed: Need, limits: Limits) -> Cause | None:
    """Why a point must not go on; None where it may. Requests are no such cause: they run before it in any case."""
    word, hottest_c = heat_guard(now, 0.0, limits), measured(now.hottest_c)
    is_hot = word.advice < Advice.STAY or (hottest_c is not None and hottest_c >= limits.target_c)
    if not needed.heats and is_hot:
        return Cause("heat", f"the device became too hot ({word.reason})")
    word = memory_guard(now, 0, limits)
    if word.advice < Advice.STAY:
        return Cause("memory", f"memory became short ({word.reason})")
    return None


def never(now: Snapshot, needed: Need, limits: Limits) -> str:
    """Why no waiting helps, in a sentence; "" where it may."""
    total_bytes, wanted_bytes = measured(now.memory_total_bytes), _wanted_bytes(needed, limits)
    if total_bytes is None or total_bytes > wanted_bytes:
        return ""
    return f"It needs {_mb(wanted_bytes)} of memory with what is kept back; the device has {_mb(total_bytes)} in all."


def _hot(now: Snapshot, limits: Limits, waits: bool) -> Cause | None:
    word, hottest_c = heat_guard(now, 0.0, limits), measured(now.hottest_c)
    on_c = limits.heat_c - 3 * limits.heat_margin_c
    is_warm = hottest_c is not None and hottest_c >= on_c
    is_near = hottest_c is not None and hottest_c >= limits.target_c - limits.heat_margin_c
    if word.advice is Advice.ROOM and not is_near and not (waits and is_warm):
        return None
    if not is_warm:
        return Cause("heat", f"Measuring waits: {word.reason}.")
    cooler = f"it is at {hottest_c:.0f} C, and on it goes below {on_c:g} C"
    return Cause("heat", f"Measuring waits for the device to cool: {cooler}.")


def _drained(now: Snapshot, least: float, waits: bool) -> Cause | None:
    charge = measured(now.battery_share)
    if charge is None or measured(now.powered) == 1:
        return None
    on = min(1.0, least + _CHARGED)
    if charge >= (on if waits else least):
        return None
    has, goes_on = f"{100 * charge:.0f} %", f"{100 * on:.0f} % (fleet.profiling_battery)"
    sentence = f"Measuring waits for power: the battery has {has}, nothing charges it, and on it goes from {goes_on}."
    return Cause("battery", sentence)


def _short(now: Snapshot, needed: Need, limits: Limits) -> Cause | None:
    word = memory_guard(now, int(needed.memory_bytes), limits)
    if word.advice is Advice.ROOM:
        return None
    left_bytes = measured(now.memory_available_bytes)
    if left_bytes is None or word.advice is not Advice.STAY:
        return Cause("memory", f"Measuring waits for memory: {word.reason}.")
    wanted = _mb(_wanted_bytes(needed, limits))
    return Cause("memory", f"Measuring waits for memory: {_mb(left_bytes)} are left, and on it goes with {wanted}.")


def _taken(now: Snapshot, busy_cores: float, needed: Need, bounds: Bounds, waits: bool) -> Cause | None:
    most = (_QUIET if waits else _BUSY) * bounds.cores
    if bounds.shared_quota:
        most = min(most, max(bounds.cores - needed.cores, _IDLE * bounds.cores))
    waiting = measured(now.queue_items) or 0.0
    if busy_cores <= most and not waiting:
        return None
    told = f"{waiting:.0f} of them wait" if waiting else f"they take {busy_cores:.1f} of {bounds.cores:g} cores"
    return Cause("requests", f"Measuring waits for requests to ebb: {told}.")


def _wanted_bytes(needed: Need, limits: Limits) -> float:
    return _RESERVES * limits.memory_reserve_bytes + needed.memory_bytes


def _mb(size_bytes: float) -> str:
    return f"{size_bytes / 1e6:.0f} MB"
