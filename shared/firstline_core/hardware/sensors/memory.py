"""Memory that is left, and how much work waits for it (accounting/psi): of the machine, or of the cgroup if tighter."""

from __future__ import annotations

import math
import re
from typing import NamedTuple

from firstline_core.hardware import control_group
from firstline_core.hardware.catalogue import HIGHEST_COUNT
from firstline_core.hardware.readings import Absent, Measured
from firstline_core.hardware.tree import Found, Tree, as_number

_PERCENT = re.compile(r"some avg10=([0-9]{1,3}(?:\.[0-9]{1,6})?) ")


class MemoryNow(NamedTuple):
    """Bytes that may be used, bytes of these that are left, and the share of the last 10 s in which a task waited."""

    total_bytes: Found
    available_bytes: Found
    stalled_share: Found


def memory(tree: Tree) -> MemoryNow:
    """Reads them."""
    return MemoryNow(
        _tighter(of_machine(tree, "MemTotal"), control_group.memory_limit(tree)), available(tree), _stalled(tree)
    )


def available(tree: Tree) -> Found:
    """Bytes that are left alone, for who looks often."""
    return _tighter(of_machine(tree, "MemAvailable"), control_group.memory_left(tree))


def of_machine(tree: Tree, name: str) -> Found:
    """Bytes, from a line of /proc/meminfo."""
    told = tree.text("proc/meminfo", 64 * 1024)
    if isinstance(told, Absent):
        return told
    for line in told.splitlines():
        key, _, rest = line.partition(":")
        if key == name:
            number, _, unit = rest.strip().partition(" ")
            return as_number(number, "proc/meminfo", 1024.0 if unit == "kB" else 1.0, low=0, high=HIGHEST_COUNT)
    return Absent(f"/proc/meminfo: says nothing of {name}.")


def _tighter(machine: Found, group: Found) -> Found:
    if isinstance(machine, Measured) and isinstance(group, Measured):
        return min(machine, group, key=lambda found: found.value)
    return machine if isinstance(machine, Measured) else group if isinstance(group, Measured) else machine


def _stalled(tree: Tree) -> Found:
    """Of the innermost group that says so; else of the machine."""
    files = [f"{group}/memory.pressure" for group in control_group.groups(tree)]
    found: Found = Absent("/proc/pressure/memory: this kernel was built without PSI, or started with psi=0.")
    for file in [*files, "proc/pressure/memory"]:
        if tree.has(file):
            found = _pressure(tree, file)
            if isinstance(found, Measured):
                return found
    return found


def _pressure(tree: Tree, file: str) -> Found:
    told = tree.text(file)
    if isinstance(told, Absent):
        return told
    matched = _PERCENT.match(told)
    percent = float(matched[1]) if matched is not None else math.nan
    if not 0 <= percent <= 100:
        return Absent(f"/{file}: says {told[:40]!a}, which is no pressure.")
    return Measured(percent / 100, f"/{file}")
