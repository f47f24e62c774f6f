"""Temperatures, throttling, clock frequencies, memory and load, and all sensors of a device together.

Sources: sysfs-class-thermal, sysfs-class-hwmon, cpufreq, accounting/psi, proc_stat(5).
"""

from __future__ import annotations

import math
import re
import time
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from firstline_core.hardware.catalogue import HIGHEST_COUNT
from firstline_core.hardware.kernel_files import (
    Tree,
    add_reading,
    allowed_cores,
    control_groups,
    cpu_used_s,
    memory_left,
    memory_limit,
    printable_name,
    read_in_time,
    usable_cores,
)
from firstline_core.hardware.power import Rapl, device_power_w, rails_w, supply
from firstline_core.hardware.readings import Absent, FileReading, Measured, Reading, Snapshot, least, most
from firstline_core.routing.account import Tariff

_LOW_C, _HIGH_C = -40.0, 200.0  # a sensor that is switched off reads as anything
# hwmon chips inside processors. Mainboard chips have unconnected inputs that read as 127 degrees, and chips that mirror
# a thermal zone would be counted twice.
_PROCESSOR_CHIPS = ("coretemp", "k10temp", "zenpower", "amdgpu", "i915", "xe")
_CONSTANT_ZONE = "PMIC-Die"  # of a Jetson with JetPack 4: a constant 100 C in its device tree, without a sensor
_HIGH_HZ = 20e9
# raspberrypi.com/documentation/computers/os.html, "get_throttled"; the bits from 16 on are a history.
_FIRMWARE_BITS = ("under_voltage", "frequency_capped", "throttled", "soft_temperature_limit")
_FIRMWARE_FOLDERS = (("sys/devices/platform/soc", "soc:firmware"), ("sys/devices/platform", "*firmware"))
_HEX_DIGITS = frozenset("0123456789abcdef")
# Types of cooling devices that slow something down, as drivers name them; fans are cooling devices too.
_SLOWING = ("thermal-cpufreq", "cpufreq-", "thermal-devfreq", "devfreq-", "Processor")
_ALERT = "-throttle-alert"
_PRESSURE = re.compile(r"some avg10=([0-9]{1,3}(?:\.[0-9]{1,6})?) ")
_IDLE_FIELDS = (3, 4)  # idle, iowait
_FIELDS = 8  # up to "steal"; guest time is part of "user" already
_BETWEEN_S = 0.5
_TICKS = re.compile(r"[0-9]{1,20}")  # 64 bits


class Sensors:
    """The sensors of one device. Reading takes milliseconds or longer; use from one thread.

    Args:
        tree: the kernel's files.
        tariff: stated costs, for what no sensor measures.
        power_rails: names in `Snapshot.power_w` that together are the whole device; empty for the known ones.
        queue: number of waiting runs; None if no agent runs.

    Attributes:
        tree: the kernel's files.
    """

    def __init__(
        self,
        tree: Tree | None = None,
        *,
        tariff: Tariff | None = None,
        power_rails: Sequence[str] = (),
        queue: Callable[[], float] | None = None,
    ) -> None:
        self.tree = tree or Tree()
        self._tariff = tariff or Tariff()
        self._power_rails = power_rails
        self._queue = queue
        self._throttling = Throttling(self.tree)
        self._rapl = Rapl(self.tree)
        self._processor = Processor(self.tree)

    def read(self, now_s: float) -> Snapshot:
        """Reads everything; rates of counters are since the previous reading, and absent at the first one.

        Args:
            now_s: monotonic time.
        """
        supplied = supply(self.tree)
        load, (energy_j, domains_w) = self._processor.read(now_s), self._rapl.read(now_s)
        power_w = rails_w(self.tree)
        for name, domain in domains_w.items():
            add_reading(power_w, name, domain)
        for name, battery in supplied.draining_w.items():
            add_reading(power_w, f"battery {name}", battery)
        return Snapshot(
            at_s=now_s,
            temperature_c=temperatures_c(self.tree),
            throttling=self._throttling.read(),
            frequency_hz=frequencies_hz(self.tree),
            power_w=power_w,
            energy_j=energy_j,
            battery_share=supplied.battery_share,
            powered=supplied.powered,
            memory_total_bytes=total_memory(self.tree),
            memory_available_bytes=available_memory(self.tree),
            memory_stalled_share=stalled_share(self.tree),
            cpu_busy_share=load.busy_share,
            device_power_w=device_power_w(power_w, load.busy_cores, self._tariff, self._power_rails),
            queue_items=self._queued(),
        )

    def memory_available(self) -> Reading:
        """Reads only the available memory, in a fraction of the time."""
        return available_memory(self.tree)

    def _queued(self) -> Reading:
        if self._queue is None:
            return Absent("No agent runs here whose queue could be counted.")
        return Measured(float(self._queue()), "the agent")


def read_twice(sensors: Sensors) -> Snapshot:
    """Reads the sensors twice, half a second apart, and returns the second reading, which includes rates of counters.

    Raises:
        DeadlineExceededError: a driver hangs.
    """
    read_in_time(sensors.tree, lambda: sensors.read(time.monotonic()))
    time.sleep(_BETWEEN_S)
    return read_in_time(sensors.tree, lambda: sensors.read(time.monotonic()))


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


def frequencies_hz(tree: Tree) -> dict[str, FileReading]:
    """Reads clock frequencies in hertz, by cpufreq policy: a cluster of cores that share a clock.

    They are empty without cpufreq, as in most virtual machines.
    """
    found: dict[str, FileReading] = {}
    for policy in tree.names("sys/devices/system/cpu/cpufreq", "policy*"):
        name = policy.rpartition("/")[2]
        add_reading(found, name, tree.number(f"{policy}/scaling_cur_freq", 1e3, low=1, high=_HIGH_HZ))
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
            slowest = most(states, cause)
            if isinstance(slowest, Measured):
                slowest = Measured(float(slowest.value > 0), slowest.source)
            add_reading(found, cause, slowest)

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


def available_memory(tree: Tree) -> FileReading:
    """Reads only the available bytes, which is quick enough to repeat often."""
    return least((machine_memory(tree, "MemAvailable"), memory_left(tree)), "memory")


def total_memory(tree: Tree) -> FileReading:
    """Reads the bytes that this process may use: of the machine, or of the control group if that is tighter."""
    return least((machine_memory(tree, "MemTotal"), memory_limit(tree)), "memory")


def machine_memory(tree: Tree, name: str) -> FileReading:
    """Reads the bytes of one line of /proc/meminfo."""
    return tree.entry("proc/meminfo", name, 1024.0, high=HIGHEST_COUNT)


def stalled_share(tree: Tree) -> FileReading:
    """Reads the share of the last 10 s in which a task waited for memory (PSI).

    Of the innermost control group that reports it, else of the machine.
    """
    files = [f"{group}/memory.pressure" for group in control_groups(tree)]
    found: FileReading = Absent("/proc/pressure/memory: this kernel was built without PSI, or started with psi=0.")
    for file in [*files, "proc/pressure/memory"]:
        if tree.has(file):
            found = _pressure(tree, file)
            if isinstance(found, Measured):
                return found
    return found


def _pressure(tree: Tree, file: str) -> FileReading:
    text = tree.text(file)
    if isinstance(text, Absent):
        return text
    matched = _PRESSURE.match(text)
    percent = float(matched[1]) if matched is not None else math.nan
    if not 0 <= percent <= 100:
        return Absent(f"/{file}: says {text[:40]!a}, which is no pressure.")
    return Measured(percent / 100, f"/{file}")


class Load(NamedTuple):
    """Busy share (0 to 1) of the usable cores, and number of busy cores of the whole machine."""

    busy_share: FileReading
    busy_cores: FileReading


class Processor:
    """Reads how busy the usable cores were since the previous reading: by affinity, or of the control group's quota.

    Args:
        tree: the kernel's files.
    """

    def __init__(self, tree: Tree) -> None:
        self._tree = tree
        self._ticks: dict[tuple[str, ...], tuple[int, int]] = {}
        self._used: tuple[float, float] | None = None

    def read(self, now_s: float) -> Load:
        """Returns the load since the previous reading; absent at the first one.

        Args:
            now_s: monotonic time.
        """
        text = self._tree.text("proc/stat", 256 * 1024)
        if isinstance(text, Absent):
            return Load(self._group(now_s) or text, text)
        lines = {line.partition(" ")[0]: line for line in text.splitlines() if line.startswith("cpu")}
        cores = lines.keys() - {"cpu"}
        if not cores:
            reason = Absent("/proc/stat: lists no core.")
            return Load(self._group(now_s) or reason, reason)
        machine = usable = self._busy_share(lines, ("cpu",))
        allowed = tuple(name for core in sorted(allowed_cores(self._tree)) if (name := f"cpu{core}") in cores)
        if 0 < len(allowed) < len(cores):
            usable = self._busy_share(lines, allowed)
        busy_cores = machine
        if isinstance(machine, Measured):
            busy_cores = Measured(machine.value * len(cores), machine.source)
        return Load(self._group(now_s) or usable, busy_cores)

    def _busy_share(self, lines: Mapping[str, str], names: tuple[str, ...]) -> FileReading:
        """Returns the busy share in the named lines of /proc/stat, since they were read before."""
        fields = [lines.get(name, "").split()[1 : 1 + _FIELDS] for name in names]
        if any(len(each) < _FIELDS or not all(map(_TICKS.fullmatch, each)) for each in fields):
            return Absent(f"/proc/stat: has no valid counts for {', '.join(names)}.")
        total = sum(int(field) for each in fields for field in each)
        idle = sum(int(each[at]) for each in fields for at in _IDLE_FIELDS)
        before, self._ticks[names] = self._ticks.get(names), (total, idle)
        elapsed = total - before[0] if before is not None else 0
        if before is None or elapsed <= 0:
            return Absent("/proc/stat: counts, and was read once; the next reading tells.")
        return Measured(min(max(1 - (idle - before[1]) / elapsed, 0.0), 1.0), "/proc/stat")  # iowait may decrease

    def _group(self, now_s: float) -> FileReading | None:
        """Returns the share of the control group's quota; None if the quota does not limit this process."""
        (cores, is_quota), used = usable_cores(self._tree), cpu_used_s(self._tree)
        if not is_quota or isinstance(used, Absent):
            return None
        before, self._used = self._used, (now_s, used.value)
        if before is None or now_s <= before[0]:
            return Absent(f"{used.source}: counts, and was read once; the next reading tells.")
        share = (used.value - before[1]) / ((now_s - before[0]) * cores)
        return Measured(min(max(share, 0.0), 1.0), used.source)
