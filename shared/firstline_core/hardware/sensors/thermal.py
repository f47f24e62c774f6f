"""Temperatures, throttling and clock frequencies (sysfs-class-thermal, sysfs-class-hwmon, cpufreq)."""

from __future__ import annotations

from typing import NamedTuple

from firstline_core.hardware.readings import Absent, Measured
from firstline_core.hardware.tree import FileReading, Tree, add_reading, printable_name

_LOW_C, _HIGH_C = -40.0, 200.0  # a sensor that is switched off reads as anything
# hwmon chips inside processors. Mainboard chips have unconnected inputs that read as 127 degrees, and chips that mirror
# a thermal zone would be counted twice.
_PROCESSOR_CHIPS = ("coretemp", "k10temp", "zenpower", "amdgpu", "i915", "xe")
_CONSTANT_ZONE = "PMIC-Die"  # of a Jetson Nano: a constant in its device tree, without a sensor
_HIGH_HZ = 20e9

# raspberrypi.com/documentation/computers/os.html, "get_throttled"; the bits from 16 on are a history.
_FIRMWARE_BITS = ("under_voltage", "frequency_capped", "throttled", "soft_temperature_limit")
_FIRMWARE_FOLDERS = (("sys/devices/platform/soc", "soc:firmware"), ("sys/devices/platform", "*firmware"))
_HEX_DIGITS = frozenset("0123456789abcdef")
# Types of cooling devices that slow something down, as drivers name them; fans are cooling devices too.
_SLOWING = ("thermal-cpufreq", "cpufreq-", "thermal-devfreq", "devfreq-", "Processor")
_ALERT = "-throttle-alert"


def temperatures_c(tree: Tree) -> dict[str, FileReading]:
    """Reads temperatures in degrees Celsius, by type of the thermal zone, or by chip and label."""
    found: dict[str, FileReading] = {}
    for zone in tree.names("sys/class/thermal", "thermal_zone*"):
        name = tree.word(f"{zone}/type", printable_name(zone.rpartition("/")[2]))
        constant = Absent(f"/{zone}/temp: has no sensor, and always says the same.")
        add_reading(found, name, constant if name == _CONSTANT_ZONE else _celsius(tree, f"{zone}/temp"))
    for chip in tree.names("sys/class/hwmon", "hwmon*"):
        if (name := tree.word(f"{chip}/name")) in _PROCESSOR_CHIPS:
            for file in tree.names(chip, "temp*_input"):
                label = tree.word(file.replace("_input", "_label"), file.rpartition("/")[2].removesuffix("_input"))
                add_reading(found, printable_name(f"{name} {label}"), _celsius(tree, file))
    return found


def _celsius(tree: Tree, file: str) -> FileReading:
    return tree.number(file, 0.001, low=_LOW_C, high=_HIGH_C)


class Frequencies(NamedTuple):
    """Clock frequencies in hertz, by cpufreq policy: a cluster of cores that share a clock."""

    now_hz: dict[str, FileReading]
    allowed_hz: dict[str, FileReading]
    rated_hz: dict[str, FileReading]


def frequencies(tree: Tree) -> Frequencies:
    """Reads the frequencies; empty without cpufreq, as in most virtual machines."""
    found = Frequencies({}, {}, {})
    for policy in tree.names("sys/devices/system/cpu/cpufreq", "policy*"):
        name = policy.rpartition("/")[2]
        for file, into in zip(("scaling_cur_freq", "scaling_max_freq", "cpuinfo_max_freq"), found, strict=True):
            add_reading(into, name, tree.number(f"{policy}/{file}", 1e3, low=1, high=_HIGH_HZ))
    return found


class Throttling:
    """Reads whether the hardware, or the kernel for it, throttles now, by cause.

    Sources are the firmware and the supply's alarm of a Raspberry Pi, Intel's counters of thermal events, a Jetson's
    counters of over-current and under-voltage events, and cooling devices that slow a processor. Counters show events
    since the previous reading, so the first reading shows none.

    Args:
        tree: the kernel's files.
    """

    def __init__(self, tree: Tree) -> None:
        self._tree = tree
        self._counts: dict[str, float] = {}  # by file

    def read(self) -> dict[str, FileReading]:
        """Returns 1 for each cause that holds now, and 0 for others."""
        found: dict[str, FileReading] = {}
        self._read_firmware(found)
        for chip in self._tree.names("sys/class/hwmon", "hwmon*"):
            name = self._tree.word(f"{chip}/name")
            if name == "rpi_volt" and "under_voltage" not in found:
                found["under_voltage"] = self._tree.number(f"{chip}/in0_lcrit_alarm", low=0, high=1)
            elif name == "soctherm_oc":
                for file in self._tree.names(chip, "oc*_event_cnt"):
                    cause = file.rpartition("/")[2].removesuffix("_event_cnt")
                    add_reading(found, printable_name(cause), self._has_risen([file]))
        self._read_cooling(found)
        cores = self._tree.names("sys/devices/system/cpu", "cpu[0-9]*")
        for cause in ("core_throttle_count", "package_throttle_count"):
            files = [file for core in cores if self._tree.has(file := f"{core}/thermal_throttle/{cause}")]
            if files:
                found[cause.removesuffix("_count")] = self._has_risen(files)
        return found

    def _read_firmware(self, found: dict[str, FileReading]) -> None:
        folders = (folder for place, pattern in _FIRMWARE_FOLDERS for folder in self._tree.names(place, pattern))
        file = next((f"{folder}/get_throttled" for folder in folders if self._tree.has(f"{folder}/get_throttled")), "")
        if not file:
            return
        text = self._tree.text(file)
        if isinstance(text, str):
            digits = text.lower().removeprefix("0x")
            if digits and len(digits) <= 16 and _HEX_DIGITS.issuperset(digits):
                bits = int(digits, 16)
                found |= {name: Measured(float(bits >> at & 1), f"/{file}") for at, name in enumerate(_FIRMWARE_BITS)}
                return
            text = Absent(f"/{file}: says {text[:40]!a}, which is no hexadecimal number.")
        found |= dict.fromkeys(_FIRMWARE_BITS, text)

    def _read_cooling(self, found: dict[str, FileReading]) -> None:
        """All devices of one type are one cause: a processor has one device for each core."""
        by_type: dict[str, list[FileReading]] = {}
        for device in self._tree.names("sys/class/thermal", "cooling_device*"):
            kind = self._tree.word(f"{device}/type")
            if kind.startswith(_SLOWING) or kind.endswith(_ALERT):
                cause = kind.rstrip("0123456789").rstrip("-")
                by_type.setdefault(cause, []).append(self._tree.number(f"{device}/cur_state", low=0))
        for cause, states in by_type.items():
            read = [state for state in states if isinstance(state, Measured)]
            slowest = max(read, key=lambda state: state.value, default=None)
            reading = states[0] if slowest is None else Measured(float(slowest.value > 0), slowest.source)
            add_reading(found, cause, reading)

    def _has_risen(self, files: list[str]) -> FileReading:
        """Compares each file with itself, because cores come and go."""
        read = [(file, self._tree.number(file, low=0)) for file in files]
        counts = {file: reading.value for file, reading in read if isinstance(reading, Measured)}
        if not counts:
            return read[0][1]
        rises = [count > self._counts[file] for file, count in counts.items() if file in self._counts]
        self._counts |= counts
        if not rises:
            return Absent(f"/{files[0]}: counts events, and was read once; the next reading tells.")
        return Measured(float(any(rises)), f"/{files[0]}")
