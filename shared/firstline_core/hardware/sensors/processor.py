"""How busy cores are since the reading before (proc_stat(5)): the machine's, or the cgroup's where it has a quota."""

from __future__ import annotations

import re
from typing import NamedTuple

from firstline_core.hardware import control_group
from firstline_core.hardware.readings import Absent, Measured
from firstline_core.hardware.tree import Found, Tree

_IDLE = (3, 4)  # idle, iowait
_COUNTED = 8  # up to "steal"; what guests took is in "user" already
_TICKS = re.compile(r"[0-9]{1,20}")  # 64 bits


class Load(NamedTuple):
    """Share of the usable cores that was busy, 0 to 1, and how many cores of the whole machine were."""

    busy_share: Found
    busy_cores: Found


class Processor:
    """Reads both; keeps what was counted.

    Args:
        tree: the kernel's files.
    """

    def __init__(self, tree: Tree) -> None:
        self._tree = tree
        self._ticks: tuple[int, int] | None = None
        self._used: tuple[float, float] | None = None

    def read(self, now_s: float) -> Load:
        """Since the reading before; absent at the first.

        Args:
            now_s: monotonic time.
        """
        share, cores = self._machine()
        return Load(self._group(now_s) or share, cores)

    def _machine(self) -> tuple[Found, Found]:
        told = self._tree.text("proc/stat", 256 * 1024)
        if isinstance(told, Absent):
            return told, told
        lines = told.splitlines()
        fields = lines[0].split()[1:] if lines and lines[0].startswith("cpu ") else []
        if len(fields) < _COUNTED or not all(map(_TICKS.fullmatch, fields[:_COUNTED])):
            reason = Absent("/proc/stat: does not begin with the sum of all cores.")
            return reason, reason
        counts = [int(field) for field in fields[:_COUNTED]]
        total, idle = sum(counts), sum(counts[at] for at in _IDLE)
        before, self._ticks = self._ticks, (total, idle)
        cores = sum(line.startswith("cpu") and not line.startswith("cpu ") for line in lines)
        passed = total - before[0] if before is not None else 0
        if before is None or passed <= 0 or not cores:
            once = Absent("/proc/stat: counts, and was read once; the next reading tells.")
            return once, once
        share = min(max(1 - (idle - before[1]) / passed, 0.0), 1.0)  # iowait may go back
        return Measured(share, "/proc/stat"), Measured(share * cores, "/proc/stat")

    def _group(self, now_s: float) -> Found | None:
        """None where no quota limits this process: then the machine's load is what counts."""
        quota, used = control_group.cpu_quota(self._tree), control_group.cpu_used_s(self._tree)
        if isinstance(quota, Absent) or isinstance(used, Absent):
            return None
        before, self._used = self._used, (now_s, used.value)
        if before is None or now_s <= before[0]:
            return Absent(f"{used.source}: counts, and was read once; the next reading tells.")
        share = (used.value - before[1]) / ((now_s - before[0]) * quota.value)
        return Measured(min(max(share, 0.0), 1.0), used.source)
