"""All that the sensors said at one moment. Pure: what decides by it, decides in tests by a made-up one."""

from __future__ import annotations

from math import inf

from msgspec import Struct, field
from msgspec.structs import replace

from firstline_core.hardware.readings import Absent, Measured, Modelled, Reading, Readings, known, least, most

_UNREAD = Absent("The sensors were not read yet.")


class Snapshot(Struct, frozen=True):
    """One device at one moment. A request reads it as a plain attribute; the sampler replaces it as a whole.

    Attributes:
        at_s: monotonic time of reading.
        temperature_c: degrees Celsius, by thermal zone or hwmon chip.
        throttling: by cause, 1 where the hardware holds itself back for it now, 0 where it does not.
        frequency_hz: of the processor's clusters now.
        frequency_max_hz: that they may have now, which a governor or firmware lowers to throttle.
        frequency_rated_hz: that they were built for.
        power_w: watts, by rail, battery or domain; rails nest, so they must not be summed.
        energy_j: joules since the sensors were opened, by domain, for counters (RAPL); they nest likewise.
        battery_share: charge of the emptiest of the device's own batteries, 0 to 1.
        powered: 1 where external power is there, 0 where the battery drains.
        memory_total_bytes: that this process may use: of the machine, or its cgroup's limit where that is less.
        memory_available_bytes: of these, without swapping or being killed.
        memory_stalled_share: of the last 10 s, in which some task waited for memory (PSI "some"), 0 to 1.
        cpu_busy_share: of all usable cores since the reading before, 0 to 1.
        device_power_w: of the whole device; modelled from stated costs where nothing measures it.
        queue_items: runs that wait, as the agent counts them.
    """

    at_s: float = 0.0
    temperature_c: Readings = field(default_factory=dict)
    throttling: Readings = field(default_factory=dict)
    frequency_hz: Readings = field(default_factory=dict)
    frequency_max_hz: Readings = field(default_factory=dict)
    frequency_rated_hz: Readings = field(default_factory=dict)
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
        """The hottest part's temperature, in degrees Celsius."""
        return most(self.temperature_c.values(), "There is no thermal zone and no temperature sensor.")

    @property
    def throttled(self) -> Reading:
        """1 where the hardware holds itself back for any cause, 0 where it says that it does not."""
        return most(self.throttling.values(), "Nothing here says whether the hardware throttles.")

    @property
    def frequency_share(self) -> Reading:
        """What the slowest cluster may run at, as a share of what it was built for. To be told alone.

        A governor that saves power lowers it as well as one that cools: guards go by `throttling`.
        """
        shares: list[Reading] = []
        for name, rated in self.frequency_rated_hz.items():
            allowed = self.frequency_max_hz.get(name, _UNREAD)
            if isinstance(rated, Measured) and isinstance(allowed, Measured) and rated.value > 0:
                shares.append(Measured(allowed.value / rated.value, allowed.source))
            else:
                shares.append(allowed if isinstance(allowed, Absent) else rated)
        return least(shares, "There is no cpufreq here, so nothing says how fast the processor may run.")


def nothing(reason: str) -> Snapshot:
    """All of it absent for one reason."""
    said = Absent(reason)
    return Snapshot(
        temperature_c={"all": said},
        throttling={"all": said},
        battery_share=said,
        powered=said,
        memory_total_bytes=said,
        memory_available_bytes=said,
        memory_stalled_share=said,
        cpu_busy_share=said,
        device_power_w=said,
        queue_items=said,
    )


def bounded(now: Snapshot, most: int = 32) -> Snapshot:
    """The same for telling: of each kind only so many readings, the highest ones, in their order.

    Args:
        now: decide by this one; the hottest part is in both.
        most: of each kind.
    """
    return replace(now, **{name: _highest(getattr(now, name), most) for name in _NAMED})


_NAMED = (
    "temperature_c", "throttling", "frequency_hz", "frequency_max_hz", "frequency_rated_hz", "power_w", "energy_j",
)  # fmt: skip


def _highest(readings: Readings, most: int) -> Readings:
    if len(readings) <= most:
        return readings
    kept = sorted(readings, key=lambda name: _value(readings[name]), reverse=True)[:most]
    return {name: readings[name] for name in readings if name in set(kept)}


def _value(reading: Reading) -> float:
    return -inf if (value := known(reading)) is None else value


NOTHING_READ = nothing(_UNREAD.reason)
"""Before the first reading."""


def told(reading: Reading) -> str:
    """One reading for people, without its unit."""
    match reading:
        case Measured(value):
            return f"{value:.6g}"
        case Modelled(value):
            return f"{value:.6g} (modelled)"
        case Absent(reason):
            return f"absent: {reason}"
