"""Readings of sensors in three types, so that a guess is never taken for a measurement, and snapshots of all of them.

The unit of a value is in the name of the reading: `hottest_c`, `power_w`. Pure: tests decide by made-up readings.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from typing import TypeAlias

from msgspec import Struct, field
from msgspec.structs import replace

from firstline_core.telemetry.wording import rounded

_NAMED = ("temperature_c", "throttling", "frequency_hz", "power_w", "energy_j")
_SHOWN = 64  # readings of a kind


class _Value(Struct, frozen=True, tag_field="kind"):
    """A finite value.

    Attributes:
        source: the file that it was read from; of a modelled value its basis, in words.
    """

    value: float
    source: str

    def __post_init__(self) -> None:
        if not math.isfinite(self.value):
            raise ValueError(f"a reading has to be finite, not {self.value}")


class Measured(_Value, frozen=True, tag="measured"):
    """A value that a sensor measured."""


class Modelled(_Value, frozen=True, tag="modelled"):
    """A value that was computed from costs that the device's owner states, because no sensor measures it."""


class Absent(Struct, frozen=True, tag_field="kind", tag="absent"):
    """An unknown value.

    Attributes:
        reason: a sentence that names the file.
    """

    reason: str


FileReading: TypeAlias = Measured | Absent
"""The reading of a file, which is never modelled."""

Reading: TypeAlias = Measured | Modelled | Absent
Readings: TypeAlias = Mapping[str, Reading]


def measured(reading: Reading) -> float | None:
    """Returns the value if a sensor measured it; None if it is modelled or absent."""
    return reading.value if isinstance(reading, Measured) else None


def known(reading: Reading) -> float | None:
    """Returns the value, measured or modelled; None if it is absent. Say which it is wherever it is shown."""
    return None if isinstance(reading, Absent) else reading.value


def describe(reading: Reading) -> str:
    """Returns the reading for people, without its unit."""
    return f"absent: {reading.reason}" if isinstance(reading, Absent) else _shown(reading, f"{reading.value:.6g}")


def short(reading: Reading, scale: float = 1.0) -> str:
    """Returns the reading for a cell of a table, in another unit: without a reason if it is absent."""
    return "absent" if isinstance(reading, Absent) else _shown(reading, rounded(reading.value * scale))


def _shown(reading: Measured | Modelled, value: str) -> str:
    return f"{value} (modelled)" if isinstance(reading, Modelled) else value


def most(readings: Iterable[Reading], nothing: str) -> FileReading:
    """Returns the measured reading with the largest value.

    Args:
        readings: of one quantity.
        nothing: the reason if there are no readings at all.

    Returns:
        That reading, or `Absent` with the reason of the first absent one.
    """
    return _select(max, readings, nothing)


def least(readings: Iterable[Reading], nothing: str) -> FileReading:
    """Returns the measured reading with the smallest value; see `most`."""
    return _select(min, readings, nothing)


def _select(select: Callable[..., Measured], readings: Iterable[Reading], nothing: str) -> FileReading:
    listed = list(readings)
    found = [reading for reading in listed if isinstance(reading, Measured)]
    if found:
        return select(found, key=lambda reading: reading.value)
    return next((reading for reading in listed if isinstance(reading, Absent)), Absent(nothing))


_UNREAD = Absent("The sensors were not read yet.")


class Snapshot(Struct, frozen=True):
    """The state of one device at one moment; the sampler replaces it as a whole.

    Attributes:
        at_s: monotonic time of reading.
        temperature_c: degrees Celsius, by thermal zone or hwmon chip.
        throttling: by cause, 1 if the hardware throttles for it now, else 0.
        frequency_hz: present frequency, by cluster of cores.
        power_w: watts, by rail, battery or domain; rails nest, so do not add them.
        energy_j: joules since the sensors were opened, by RAPL domain; domains nest.
        battery_share: charge of the emptiest of the device's own batteries, 0 to 1.
        powered: 1 with external power, 0 if the battery drains.
        memory_total_bytes: usable by this process: of the machine, or the control group's limit if that is less.
        memory_available_bytes: available of these without swapping or being killed.
        memory_stalled_share: share of the last 10 s in which a task waited for memory (PSI "some"), 0 to 1.
        cpu_busy_share: busy share of the usable cores since the previous reading, 0 to 1.
        device_power_w: of the whole device; modelled from stated costs if no sensor measures it.
        queue_items: waiting runs, as the agent counts them.
    """

    at_s: float = 0.0
    temperature_c: Readings = field(default_factory=dict)
    throttling: Readings = field(default_factory=dict)
    frequency_hz: Readings = field(default_factory=dict)
    power_w: Readings = field(default_factory=dict)
    energy_j: Readings = field(default_factory=dict)
    battery_share: Reading = _UNREAD
    powered: Reading = _UNREAD
    memory_total_bytes: Reading = _UNREAD
    memory_available_bytes: Reading = _UNREAD
    memory_stalled_share: Reading = _UNREAD
    cpu_busy_share: Reading = _UNREAD
    device_power_w: Reading = _UNREAD
    queue_items: Reading = _UNREAD

    @property
    def hottest_c(self) -> Reading:
        """The highest temperature, in degrees Celsius."""
        return most(self.temperature_c.values(), "There is no thermal zone and no temperature sensor.")

    @property
    def throttled(self) -> Reading:
        """1 if the hardware throttles for any cause, 0 if it reports that it does not."""
        return most(self.throttling.values(), "Nothing here says whether the hardware throttles.")


def absent_snapshot(reason: str) -> Snapshot:
    """Returns a snapshot in which everything is absent for one reason."""
    absent = Absent(reason)
    named = {"temperature_c": {"all": absent}, "throttling": {"all": absent}}
    single = {name: absent for name in Snapshot.__struct_fields__ if name not in (*_NAMED, "at_s")}
    return Snapshot(**named, **single)  # type: ignore[arg-type]


def limited(snapshot: Snapshot) -> Snapshot:
    """Returns the snapshot for display, with the 64 highest readings of each kind; guards use the full one."""
    return replace(snapshot, **{name: _highest(getattr(snapshot, name)) for name in _NAMED})


def _highest(readings: Readings) -> Readings:
    def value(name: str) -> float:
        found = known(readings[name])
        return -math.inf if found is None else found

    kept = set(sorted(readings, key=value, reverse=True)[:_SHOWN])
    return {name: readings[name] for name in readings if name in kept}


NOTHING_READ = absent_snapshot(_UNREAD.reason)
"""The snapshot before the first reading."""
