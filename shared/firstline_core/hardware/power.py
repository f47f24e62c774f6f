"""Power by rail, energy counters of processors (RAPL), batteries, and the power of the whole device."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from firstline_core.hardware.kernel_files import Tree, add_reading, printable_name
from firstline_core.hardware.readings import Absent, FileReading, Measured, Modelled, Reading, Readings, least, most
from firstline_core.routing.account import Tariff

INPUT_RAILS = ("VDD_IN", "5V_IN", "psys")
"""Rails and domains that carry all power: Jetson Orin Nano and NX, Jetson Xavier NX, and RAPL's whole platform."""
_HIGH_W = 10_000.0
_SWITCHED_OFF = "0"
_SUPPLIES = "sys/class/power_supply"
_WHOLE = 2.0**53  # a float holds whole numbers up to here
_LONGEST_S = 600.0
"""Longest time between two readings of a RAPL counter; it may overflow twice in more: 262 kJ last 600 s at 437 W."""


def rails_w(tree: Tree) -> dict[str, FileReading]:
    """Reads watts by the rail's label, or by chip and channel. Rails nest: an input feeds all the others.

    Sources are hwmon's INA2xx and INA3221 chips, and other hwmon chips that report watts.
    """
    found: dict[str, FileReading] = {}
    for chip in tree.names("sys/class/hwmon", "hwmon*"):
        name = tree.word(f"{chip}/name", "hwmon")
        powers = tree.names(chip, "power*_input") or tree.names(chip, "power*_average")
        for file in powers:
            channel = file.rpartition("/")[2].partition("_")[0]
            label = tree.word(f"{chip}/{channel}_label") or tree.word(f"{chip}/label") or f"{name} {channel}"
            add_reading(found, printable_name(label), tree.number(file, 1e-6, low=0, high=_HIGH_W))
        # Only in these chips do volts and amperes of one number belong to one channel.
        if name.startswith("ina") and not powers:
            _read_channels(tree, chip, name, found)
    return found


def _read_channels(tree: Tree, chip: str, name: str, found: dict[str, FileReading]) -> None:
    for file in tree.names(chip, "curr[123]_input"):
        number = file.rpartition("/")[2].removeprefix("curr").removesuffix("_input")
        if tree.text(f"{chip}/in{number}_enable") != _SWITCHED_OFF:
            label = tree.word(f"{chip}/in{number}_label", f"{name} {number}")
            watts = _watts(tree.number(f"{chip}/in{number}_input", 1e-3), tree.number(file, 1e-3))
            add_reading(found, label, watts)


def _watts(volts: FileReading, amperes: FileReading) -> FileReading:
    if isinstance(volts, Absent):
        return volts
    if isinstance(amperes, Absent):
        return amperes
    watts = volts.value * amperes.value
    if not 0 <= watts <= _HIGH_W:
        return Absent(f"{amperes.source}: {amperes.value:g} A at {volts.value:g} V cannot be.")
    return Measured(watts, amperes.source)


class Counter(NamedTuple):
    """A RAPL domain at its latest reading, with the joules since the first one; `at_s` is monotonic time."""

    energy_uj: int
    at_s: float
    total_j: float


def advanced_uj(before_uj: int, now_uj: int, range_uj: int) -> int:
    """Returns the microjoules between two readings of a counter that may have overflowed once.

    Args:
        before_uj: first reading.
        now_uj: second reading.
        range_uj: `max_energy_range_uj`, the largest value, after which the counter is 0.
    """
    return now_uj - before_uj if now_uj >= before_uj else range_uj + 1 - before_uj + now_uj


class Rapl:
    """Reads the energy counters of Intel's and AMD's processors, by domain.

    Since CVE-2020-8694 only the superuser may read them, unless the agent's user is permitted to.

    Args:
        tree: the kernel's files.
    """

    def __init__(self, tree: Tree) -> None:
        self._tree = tree
        self._counters: dict[str, Counter] = {}

    def read(self, now_s: float) -> tuple[dict[str, FileReading], dict[str, FileReading]]:
        """Returns joules since the first reading, and watts since the previous one, by domain.

        Args:
            now_s: monotonic time.
        """
        energy_j: dict[str, FileReading] = {}
        power_w: dict[str, FileReading] = {}
        for domain, name in self._domains():
            energy, power = self._domain(domain, now_s)
            add_reading(energy_j, name, energy)
            add_reading(power_w, name, power)
        return energy_j, power_w

    def _domains(self) -> list[tuple[str, str]]:
        """Folders with names; a part of a package is named below its package."""
        found = []
        for folder in self._tree.names("sys/class/powercap", "intel-rapl:*"):
            parent, _, _ = folder.rpartition(":")
            name = self._tree.word(f"{folder}/name", folder.rpartition("/")[2])
            if not parent.endswith("intel-rapl"):
                name = f"{self._tree.word(f'{parent}/name', parent.rpartition('/')[2])}/{name}"
            found.append((folder, printable_name(name)))
        return found

    def _domain(self, folder: str, now_s: float) -> tuple[FileReading, FileReading]:
        energy = self._tree.number(f"{folder}/energy_uj", low=0, high=_WHOLE)
        range_uj = self._tree.number(f"{folder}/max_energy_range_uj", low=1, high=_WHOLE)
        if isinstance(energy, Absent):
            return energy, energy
        if isinstance(range_uj, Absent):
            return range_uj, range_uj
        now_uj = int(energy.value)
        before = self._counters.get(folder) or Counter(now_uj, now_s, 0.0)
        elapsed_s = now_s - before.at_s
        joules = advanced_uj(before.energy_uj, now_uj, int(range_uj.value)) / 1e6
        # A counter that begins at 0 after a suspension looks as if it had overflowed.
        if not 0 < elapsed_s <= _LONGEST_S or joules > _HIGH_W * elapsed_s:
            self._counters[folder] = Counter(now_uj, now_s, before.total_j)
            once = Absent(f"{energy.source}: counts joules, and was read once; the next reading tells watts.")
            return Measured(before.total_j, energy.source), once
        counter = self._counters[folder] = Counter(now_uj, now_s, before.total_j + joules)
        return Measured(counter.total_j, energy.source), Measured(joules / elapsed_s, energy.source)


class Supply(NamedTuple):
    """The device's power supply.

    Attributes:
        battery_share: charge of the emptiest battery, 0 to 1.
        powered: 0 if a battery drains, even with a weak adapter; otherwise 1 if external power is connected or a
            battery reports that it does not drain.
        draining_w: power of each battery that drains, by name.
    """

    battery_share: FileReading
    powered: FileReading
    draining_w: dict[str, FileReading]


def supply(tree: Tree) -> Supply:
    """Reads the device's own batteries and adapters (sysfs-class-power)."""
    charges: list[FileReading] = []
    adapters: list[Measured] = []
    batteries: list[Measured] = []
    draining: dict[str, FileReading] = {}
    for folder in tree.names(_SUPPLIES, "*"):
        if tree.text(f"{folder}/type") != "Battery":
            online = tree.number(f"{folder}/online", low=0)  # 2 is "programmable", of USB
            if isinstance(online, Measured):
                adapters.append(Measured(float(online.value > 0), online.source))
        elif tree.text(f"{folder}/scope") != "Device" and tree.text(f"{folder}/present") != "0":
            # Others are of a mouse or headset, or an empty slot.
            charges.append(_charge(tree, folder))
            status = tree.text(f"{folder}/status")
            if status in ("Charging", "Full", "Not charging", "Discharging"):
                batteries.append(Measured(float(status != "Discharging"), f"/{folder}/status"))
            if status == "Discharging":
                add_reading(draining, folder.rpartition("/")[2], _draining_w(tree, folder))
    unsaid = f"/{_SUPPLIES}: nothing says whether external power is there."
    powered = least(batteries, unsaid)
    if not isinstance(powered, Measured) or powered.value:
        powered = most(adapters + batteries, unsaid)
    return Supply(least(charges, f"/{_SUPPLIES}: this device has no battery."), powered, draining)


def _charge(tree: Tree, folder: str) -> FileReading:
    percent = tree.number(f"{folder}/capacity", low=-1, high=200)  # worn gauges exceed their range a little
    if isinstance(percent, Absent):
        return percent
    return Measured(min(max(percent.value / 100, 0.0), 1.0), percent.source)


def _draining_w(tree: Tree, folder: str) -> FileReading:
    """Some drivers report watts, others amperes; some of both with a minus sign."""
    watts = tree.number(f"{folder}/power_now", 1e-6, low=-_HIGH_W, high=_HIGH_W)
    if isinstance(watts, Measured):
        return Measured(abs(watts.value), watts.source)
    volts, amperes = tree.number(f"{folder}/voltage_now", 1e-6), tree.number(f"{folder}/current_now", 1e-6)
    if isinstance(volts, Absent) or isinstance(amperes, Absent):
        return watts
    return _watts(volts, Measured(abs(amperes.value), amperes.source))


def device_power_w(power_w: Readings, busy_cores: Reading, tariff: Tariff, power_rails: Sequence[str] = ()) -> Reading:
    """Returns the watts of the whole device, measured if a sensor measures just that, else modelled from stated costs.

    Args:
        power_w: of rails, domains and draining batteries, by name.
        busy_cores: of the whole machine.
        tariff: stated costs.
        power_rails: names in `power_w` that together are the device, as its owner states; empty for the known ones.
    """
    if power_rails:
        return _sum(power_w, power_rails)
    for rail in INPUT_RAILS:
        found = power_w.get(rail)
        if isinstance(found, Measured) and found.value:  # a platform's counter that stands still is not connected
            return found
    batteries = [name for name in power_w if name.startswith("battery ")]
    if batteries:
        return _sum(power_w, batteries)
    if not tariff.joules_per_core_s:
        return Absent("Nothing here measures the device's power, and [costs] does not state joules_per_core_second.")
    if not isinstance(busy_cores, Measured):
        return busy_cores
    watts = tariff.idle_w + busy_cores.value * tariff.joules_per_core_s
    return Modelled(watts, f"[costs], with the cores' load of {busy_cores.source}")


def _sum(power_w: Readings, names: Sequence[str]) -> Reading:
    watts, sources = 0.0, []
    for name in names:
        found = power_w.get(name, Absent(f"There is no rail {name!a} here; there are: {', '.join(power_w) or 'none'}."))
        if not isinstance(found, Measured):
            return found
        watts += found.value
        sources.append(found.source)
    return Measured(watts, " + ".join(sources))
