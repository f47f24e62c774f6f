"""What each scarce thing says of where a device stands: too much, enough, or there is room for a better variant.

A guard acts before the kernel does: heat before the processor is throttled, memory before a process is killed. What
nobody measures guards nothing: an absent or a modelled reading never moves a device.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum
from typing import NamedTuple

from msgspec import Struct

from firstline_core.hardware.readings import measured
from firstline_core.hardware.sensors.snapshot import Snapshot

NOBODY = "nobody measures it"
TREND_POINTS = 3  # fewer say nothing of a trend
_TREND_S = 2.0  # in less time whole degrees make a trend of nothing
_THRASHING_SHARE = 0.5  # of the time that tasks wait for memory: systemd-oomd kills from 0.6 on


class Advice(IntEnum):
    """What one guard wants; the least of several counts."""

    SHED = 0  # nothing is computed
    CHEAPEST = 1
    DOWN = 2
    STAY = 3
    ROOM = 4  # a better variant would be no trouble


class Word(NamedTuple):
    """What one guard said, and of what."""

    advice: Advice
    guard: str
    reason: str


class Limits(Struct, frozen=True):
    """What must not be passed.

    Attributes:
        heat_c: where the hardware begins to throttle, in degrees Celsius.
        heat_margin_c: so far below that it settles (`Thermostat`); below there is room.
        horizon_s: how far ahead the trend of the heat is followed.
        memory_reserve_bytes: that stay available to everything else.
        stalled_share: of the time, for which tasks may wait for memory.
        battery_empty, battery_full: charges (0 to 1) up to which only the cheapest variant runs, and from which on
            the best does.
    """

    heat_c: float = 80.0
    heat_margin_c: float = 3.0
    horizon_s: float = 10.0
    memory_reserve_bytes: int = 64 << 20
    stalled_share: float = 0.1
    battery_empty: float = 0.1
    battery_full: float = 0.6

    @property
    def settles_c(self) -> float:
        """Where heat is made to settle."""
        return self.heat_c - self.heat_margin_c

    @property
    def memory_lows_bytes(self) -> tuple[float, float]:
        """Left of memory: with less than the first only the cheapest runs, with less than the second nothing does."""
        return self.memory_reserve_bytes, self.memory_reserve_bytes / 2


def trend_per_s(points: Sequence[tuple[float, float]]) -> float:
    """How fast a quantity rises, by least squares; 0 where there are too few points, or they are of a moment.

    Args:
        points: (seconds, value), in order.
    """
    if len(points) < TREND_POINTS or points[-1][0] - points[0][0] < _TREND_S:
        return 0.0
    mean_s = sum(at_s for at_s, _ in points) / len(points)
    mean = sum(value for _, value in points) / len(points)
    spread = sum((at_s - mean_s) ** 2 for at_s, _ in points)
    return sum((at_s - mean_s) * (value - mean) for at_s, value in points) / spread


def ahead_c(hottest_c: float, rise_c_per_s: float, limits: Limits) -> float:
    """How hot it will be at the end of the horizon; what cools counts as it is."""
    return hottest_c + max(0.0, rise_c_per_s) * limits.horizon_s


def heat(snapshot: Snapshot, rise_c_per_s: float, limits: Limits) -> Word:
    """Whether heat leaves any choice; how far down it asks a device to stand below the limit says `Thermostat`.

    Monotone: hotter, or sooner hot, never asks for more.

    Args:
        snapshot: as read.
        rise_c_per_s: its trend.
        limits: see there.
    """
    held_back = sorted(cause for cause, reading in snapshot.throttling.items() if measured(reading) == 1)
    hottest_c = measured(snapshot.hottest_c)
    if held_back and (hottest_c is None or hottest_c < limits.heat_c):
        # A weak supply, too, is helped by drawing less; to compute nothing at all would answer no one sooner.
        return Word(Advice.CHEAPEST, "heat", f"the hardware holds itself back ({', '.join(held_back)})")
    if hottest_c is None:
        return Word(Advice.ROOM, "heat", NOBODY)
    soon_c = ahead_c(hottest_c, rise_c_per_s, limits)
    told = f"{hottest_c:.1f} C, {soon_c:.1f} C in {limits.horizon_s:g} s, of {limits.heat_c:g}"
    if hottest_c >= limits.heat_c:
        return Word(Advice.SHED, "heat", told)
    # The thermostat keeps it there; to ask for more would hold down for ever what was stepped down for something else.
    return Word(Advice.ROOM if soon_c < limits.settles_c else Advice.STAY, "heat", told)


def memory(snapshot: Snapshot, better_bytes: int, limits: Limits) -> Word:
    """What is left of the memory.

    Args:
        snapshot: as read.
        better_bytes: that loading the rung above takes; 0 on the best one, and where it is loaded still.
        limits: see there.
    """
    stalled = measured(snapshot.memory_stalled_share)
    if stalled is not None and stalled > limits.stalled_share:
        advice = Advice.SHED if stalled > _THRASHING_SHARE else Advice.CHEAPEST
        return Word(advice, "memory", f"tasks wait for it {stalled:.0%} of the time")
    left_bytes = measured(snapshot.memory_available_bytes)
    if left_bytes is None:
        return Word(Advice.ROOM, "memory", NOBODY)
    told = f"{left_bytes / 1e6:.0f} MB are left, {limits.memory_reserve_bytes / 1e6:.0f} MB are kept back"
    low_bytes, lowest_bytes = limits.memory_lows_bytes
    if left_bytes < lowest_bytes:
        return Word(Advice.SHED, "memory", told)
    if left_bytes < low_bytes:
        return Word(Advice.CHEAPEST, "memory", told)
    needed_bytes = 1.25 * limits.memory_reserve_bytes + better_bytes
    return Word(Advice.ROOM if left_bytes > needed_bytes else Advice.STAY, "memory", told)


def battery(snapshot: Snapshot, place: int, rungs: int, limits: Limits) -> Word:
    """How far down the charge asks a device to stand: the emptier, the further; nowhere while power comes in.

    Args:
        snapshot: as read.
        place: where it stands now.
        rungs: of its ladder.
        limits: see there.
    """
    charge = measured(snapshot.battery_share)
    if measured(snapshot.powered) == 1:
        return Word(Advice.ROOM, "battery", "power comes in")
    if charge is None:
        return Word(Advice.ROOM, "battery", NOBODY)
    used = (limits.battery_full - charge) / (limits.battery_full - limits.battery_empty)
    lowest = min(rungs - 1, max(0, int(used * rungs)))
    advice = Advice.DOWN if place < lowest else Advice.STAY if place == lowest else Advice.ROOM
    return Word(advice, "battery", f"{charge:.0%} of its charge is left")
