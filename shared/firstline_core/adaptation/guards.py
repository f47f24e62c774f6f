"""Guards for temperature, memory and battery: each says whether to step down, to stay, or that a better variant fits.

A guard acts before the kernel does: before the processor throttles, and before a process is killed. Guards act only on
measured readings; an absent or modelled reading never moves a device.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum
from statistics import linear_regression
from typing import NamedTuple

from msgspec import Struct

from firstline_core.hardware.readings import Snapshot, measured

UNMEASURED = "no sensor measures it"
TREND_POINTS = 3  # fewest readings of a trend
_TREND_S = 2.0  # over a shorter time, readings in whole degrees show no trend
_THRASHING_SHARE = 0.5  # of the time that tasks wait for memory; systemd-oomd kills from 0.6


class Advice(IntEnum):
    """The request of a guard; the lowest advice of all guards decides."""

    SHED = 0  # compute nothing
    CHEAPEST = 1
    DOWN = 2
    STAY = 3
    ROOM = 4  # a better variant would fit


class GuardVerdict(NamedTuple):
    """The advice of one guard, with its reason."""

    advice: Advice
    guard: str
    reason: str


class Limits(Struct, frozen=True):
    """Limits that the guards keep.

    Attributes:
        heat_c: temperature at which the hardware begins to throttle, in degrees Celsius.
        heat_margin_c: the temperature settles this far below `heat_c`; below that there is room.
        horizon_s: how far ahead the temperature trend is extrapolated.
        memory_reserve_bytes: memory that stays available to other processes.
        stalled_share: share of the time that tasks may wait for memory.
        battery_empty, battery_full: charges (0 to 1) at or below which only the cheapest variant runs, and at or above
            which the best one may.
    """

    heat_c: float = 80.0
    heat_margin_c: float = 3.0
    horizon_s: float = 10.0
    memory_reserve_bytes: int = 64 << 20
    stalled_share: float = 0.1
    battery_empty: float = 0.1
    battery_full: float = 0.6

    @property
    def target_c(self) -> float:
        """Temperature at which the device settles."""
        return self.heat_c - self.heat_margin_c

    @property
    def memory_thresholds_bytes(self) -> tuple[float, float]:
        """Available memory below which only the cheapest variant runs, and below which nothing is computed."""
        return self.memory_reserve_bytes, self.memory_reserve_bytes / 2

    def needed_bytes(self, loaded_bytes: float) -> float:
        """Returns the available memory that loading this much needs; the reserve has a margin of a quarter."""
        return 1.25 * self.memory_reserve_bytes + loaded_bytes


def slope_per_s(points: Sequence[tuple[float, float]]) -> float:
    """Returns the slope by least squares; 0 if there are too few points or they cover too short a time.

    Args:
        points: (seconds, value), in order.
    """
    if len(points) < TREND_POINTS or points[-1][0] - points[0][0] < _TREND_S:
        return 0.0
    return linear_regression(*zip(*points, strict=True)).slope


def forecast_c(hottest_c: float, rise_c_per_s: float, limits: Limits) -> float:
    """Returns the temperature at the end of the horizon; a falling temperature is taken as constant."""
    return hottest_c + max(0.0, rise_c_per_s) * limits.horizon_s


def heat_guard(snapshot: Snapshot, rise_c_per_s: float, limits: Limits) -> GuardVerdict:
    """Judges temperature and throttling. Below the limit, `controller.Thermostat` decides how far to step down.

    The guard is monotone: a higher or faster rising temperature never raises the advice.
    """
    throttled_by = sorted(cause for cause, reading in snapshot.throttling.items() if measured(reading) == 1)
    hottest_c = measured(snapshot.hottest_c)
    if throttled_by and (hottest_c is None or hottest_c < limits.heat_c):
        # A weak supply, too, needs less power; computing nothing at all would answer no request sooner.
        return GuardVerdict(Advice.CHEAPEST, "heat", f"the hardware throttles ({', '.join(throttled_by)})")
    if hottest_c is None:
        return GuardVerdict(Advice.ROOM, "heat", UNMEASURED)
    soon_c = forecast_c(hottest_c, rise_c_per_s, limits)
    reason = f"{hottest_c:.1f} C, {soon_c:.1f} C in {limits.horizon_s:g} s, of {limits.heat_c:g}"
    if hottest_c >= limits.heat_c:
        return GuardVerdict(Advice.SHED, "heat", reason)
    # Asking for more than STAY would block a device from rising again after another guard has stepped it down.
    return GuardVerdict(Advice.ROOM if soon_c < limits.target_c else Advice.STAY, "heat", reason)


def memory_guard(snapshot: Snapshot, better_bytes: int, limits: Limits) -> GuardVerdict:
    """Judges available memory and memory pressure.

    Args:
        snapshot: the sensor readings.
        better_bytes: memory that loading the rung above needs; 0 for the best rung, or if it is still loaded.
        limits: the memory limits.
    """
    stalled = measured(snapshot.memory_stalled_share)
    if stalled is not None and stalled > limits.stalled_share:
        advice = Advice.SHED if stalled > _THRASHING_SHARE else Advice.CHEAPEST
        return GuardVerdict(advice, "memory", f"tasks wait for it {stalled:.0%} of the time")
    available_bytes = measured(snapshot.memory_available_bytes)
    if available_bytes is None:
        return GuardVerdict(Advice.ROOM, "memory", UNMEASURED)
    reason = f"{available_bytes / 1e6:.0f} MB available, {limits.memory_reserve_bytes / 1e6:.0f} MB reserved"
    low_bytes, lowest_bytes = limits.memory_thresholds_bytes
    if available_bytes < lowest_bytes:
        return GuardVerdict(Advice.SHED, "memory", reason)
    if available_bytes < low_bytes:
        return GuardVerdict(Advice.CHEAPEST, "memory", reason)
    has_room = available_bytes > limits.needed_bytes(better_bytes)
    return GuardVerdict(Advice.ROOM if has_room else Advice.STAY, "memory", reason)


def battery_guard(snapshot: Snapshot, place: int, rungs: int, limits: Limits) -> GuardVerdict:
    """Judges the charge: the emptier the battery, the lower the rung; external power lifts the limit.

    Args:
        snapshot: the sensor readings.
        place: the present rung.
        rungs: length of the ladder.
        limits: the battery limits.
    """
    charge = measured(snapshot.battery_share)
    if measured(snapshot.powered) == 1:
        return GuardVerdict(Advice.ROOM, "battery", "external power is connected")
    if charge is None:
        return GuardVerdict(Advice.ROOM, "battery", UNMEASURED)
    used = (limits.battery_full - charge) / (limits.battery_full - limits.battery_empty)
    lowest = min(rungs - 1, max(0, int(used * rungs)))
    advice = Advice.DOWN if place < lowest else Advice.STAY if place == lowest else Advice.ROOM
    return GuardVerdict(advice, "battery", f"{charge:.0%} charge left")
