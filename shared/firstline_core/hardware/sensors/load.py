"""Memory (with accounting/psi), busy cores (proc_stat(5)) and network traffic (sysfs-class-net-statistics)."""

from __future__ import annotations

import math
import re
from typing import NamedTuple

from firstline_core.hardware import control_group
from firstline_core.hardware.catalogue import HIGHEST_COUNT
from firstline_core.hardware.readings import Absent, Measured
from firstline_core.hardware.tree import FileReading, Tree, parse_number

_PRESSURE = re.compile(r"some avg10=([0-9]{1,3}(?:\.[0-9]{1,6})?) ")
_IDLE_FIELDS = (3, 4)  # idle, iowait
_FIELDS = 8  # up to "steal"; guest time is part of "user" already
_TICKS = re.compile(r"[0-9]{1,20}")  # 64 bits


class Memory(NamedTuple):
    """Usable bytes, available bytes, and the share of the last 10 s in which a task waited for memory."""

    total_bytes: FileReading
    available_bytes: FileReading
    stalled_share: FileReading


def memory(tree: Tree) -> Memory:
    """Reads the memory of the machine, or of the control group if that is tighter."""
    total = _tighter(machine_memory(tree, "MemTotal"), control_group.memory_limit(tree))
    return Memory(total, available_memory(tree), _stalled(tree))


def available_memory(tree: Tree) -> FileReading:
    """Reads only the available bytes, which is quick enough to repeat often."""
    return _tighter(machine_memory(tree, "MemAvailable"), control_group.memory_left(tree))


def machine_memory(tree: Tree, name: str) -> FileReading:
    """Reads the bytes of one line of /proc/meminfo."""
    text = tree.text("proc/meminfo", 64 * 1024)
    if isinstance(text, Absent):
        return text
    for line in text.splitlines():
        key, _, rest = line.partition(":")
        if key == name:
            number, _, unit = rest.strip().partition(" ")
            return parse_number(number, "proc/meminfo", 1024.0 if unit == "kB" else 1.0, low=0, high=HIGHEST_COUNT)
    return Absent(f"/proc/meminfo: says nothing of {name}.")


def _tighter(machine: FileReading, group: FileReading) -> FileReading:
    if isinstance(machine, Measured) and isinstance(group, Measured):
        return min(machine, group, key=lambda reading: reading.value)
    return machine if isinstance(machine, Measured) or isinstance(group, Absent) else group


def _stalled(tree: Tree) -> FileReading:
    """The pressure of the innermost control group that reports it, else of the machine."""
    files = [f"{group}/memory.pressure" for group in control_group.groups(tree)]
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
    """Reads how busy the cores were since the previous reading: the machine's, or the control group's of its quota.

    Args:
        tree: the kernel's files.
    """

    def __init__(self, tree: Tree) -> None:
        self._tree = tree
        self._ticks: tuple[int, int] | None = None
        self._used: tuple[float, float] | None = None

    def read(self, now_s: float) -> Load:
        """Returns the load since the previous reading; absent at the first one.

        Args:
            now_s: monotonic time.
        """
        share, cores = self._machine()
        return Load(self._group(now_s) or share, cores)

    def _machine(self) -> tuple[FileReading, FileReading]:
        text = self._tree.text("proc/stat", 256 * 1024)
        if isinstance(text, Absent):
            return text, text
        lines = text.splitlines()
        fields = lines[0].split()[1:] if lines and lines[0].startswith("cpu ") else []
        if len(fields) < _FIELDS or not all(map(_TICKS.fullmatch, fields[:_FIELDS])):
            reason = Absent("/proc/stat: does not begin with the sum of all cores.")
            return reason, reason
        counts = [int(field) for field in fields[:_FIELDS]]
        total, idle = sum(counts), sum(counts[at] for at in _IDLE_FIELDS)
        before, self._ticks = self._ticks, (total, idle)
        cores = sum(line.startswith("cpu") and not line.startswith("cpu ") for line in lines)
        elapsed = total - before[0] if before is not None else 0
        if before is None or elapsed <= 0 or not cores:
            once = Absent("/proc/stat: counts, and was read once; the next reading tells.")
            return once, once
        share = min(max(1 - (idle - before[1]) / elapsed, 0.0), 1.0)  # iowait may decrease
        return Measured(share, "/proc/stat"), Measured(share * cores, "/proc/stat")

    def _group(self, now_s: float) -> FileReading | None:
        """None without a quota: then the machine's load counts."""
        quota, used = control_group.cpu_quota(self._tree), control_group.cpu_used_s(self._tree)
        if isinstance(quota, Absent) or isinstance(used, Absent):
            return None
        before, self._used = self._used, (now_s, used.value)
        if before is None or now_s <= before[0]:
            return Absent(f"{used.source}: counts, and was read once; the next reading tells.")
        share = (used.value - before[1]) / ((now_s - before[0]) * quota.value)
        return Measured(min(max(share, 0.0), 1.0), used.source)


class Rates(NamedTuple):
    """Bytes a second since the previous reading; 0 at the first one."""

    sent: float = 0.0
    received: float = 0.0


class Traffic:
    """Reads the traffic of all network interfaces except virtual ones.

    Args:
        tree: the kernel's files.
    """

    def __init__(self, tree: Tree) -> None:
        self._tree = tree
        self._counts: dict[str, tuple[float, float]] = {}
        self._at_s = 0.0

    def read(self, now_s: float) -> Rates:
        """Returns the rates since the previous reading; an interface that was reset or is new counts from now on.

        Args:
            now_s: monotonic time.
        """
        counts: dict[str, tuple[float, float]] = {}
        for interface in self._tree.names("sys/class/net", "*"):
            if self._tree.has(f"{interface}/device"):
                sent, received = (
                    self._tree.number(f"{interface}/statistics/{which}_bytes", low=0) for which in ("tx", "rx")
                )
                if isinstance(sent, Measured) and isinstance(received, Measured):
                    counts[interface] = sent.value, received.value
        elapsed_s = now_s - self._at_s
        rates = [0.0, 0.0]
        for name, now in counts.items() if elapsed_s > 0 else ():
            for at, (count, before) in enumerate(zip(now, self._counts.get(name, now), strict=True)):
                rates[at] += max(0.0, count - before) / elapsed_s
        self._counts, self._at_s = counts, now_s
        return Rates(*rates)
