"""The limits of this process's control group (cgroups(7)).

Version 2 has one tree of groups; version 1, which Jetson's kernels still use, has one for each controller. If both are
mounted, version 1 has the controllers.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

from firstline_core.hardware.readings import Absent, Measured
from firstline_core.hardware.tree import FileReading, Tree, parse_number

Controller = Literal["memory", "cpu", "cpuacct"]

_MOUNT = "sys/fs/cgroup"
_UNLIMITED = "max"
_UNLIMITED_BYTES = (
    1 << 42
)  # version 1 reports its largest number of pages if there is no limit; no device has this much memory


def groups(tree: Tree, controller: Controller = "memory") -> list[str]:
    """Returns the folders of this process's group and its parents, innermost first.

    In a container the mount may be the group itself, under a path of the host; then only the last folder exists.

    Args:
        tree: the kernel's files.
        controller: of version 1; version 2 has one group for all.
    """
    one = _is_version_2(tree)
    mount = _MOUNT if one else f"{_MOUNT}/{controller}"
    text = tree.text("proc/self/cgroup")
    path = _path(text, "" if one else controller) if isinstance(text, str) else ""
    parts = [part for part in path.split("/") if part not in ("", ".", "..")]
    return ["/".join([mount, *parts[:count]]) for count in range(len(parts), -1, -1)]


def memory_limit(tree: Tree) -> FileReading:
    """Returns the bytes that the tightest group may use; absent without a limit."""
    return _least((_limit(tree, group) for group in groups(tree)), "memory")


def memory_left(tree: Tree) -> FileReading:
    """Returns the bytes that the tightest group may still take; page cache counts as free."""
    # In version 1 only the "total" counters include the groups inside, as the usage does.
    used_in, droppable = (
        ("memory.current", "inactive_file") if _is_version_2(tree) else ("memory.usage_in_bytes", "total_inactive_file")
    )
    readings: list[FileReading] = []
    for group in groups(tree):
        limit, used = _limit(tree, group), tree.number(f"{group}/{used_in}", low=0)
        if isinstance(limit, Measured) and isinstance(used, Measured):
            pages = _statistic(tree, f"{group}/memory.stat", droppable)
            kept = max(0.0, used.value - (pages.value if isinstance(pages, Measured) else 0.0))
            readings.append(Measured(max(0.0, limit.value - kept), used.source))
    return _least(readings, "memory")


def cpu_quota(tree: Tree) -> FileReading:
    """Returns the cores that the tightest group may use, as a fraction; absent without a limit."""
    return _least((_quota(tree, group) for group in groups(tree, "cpu")), "cores")


def cpu_used_s(tree: Tree) -> FileReading:
    """Returns the core-seconds that this process's group has used since it was made."""
    if not _is_version_2(tree):
        used = (tree.number(f"{group}/cpuacct.usage", 1e-9, low=0) for group in groups(tree, "cpuacct"))
        return next((readings for readings in used if isinstance(readings, Measured)), _UNCOUNTED)
    for group in groups(tree):
        if tree.has(f"{group}/cpu.stat"):
            return _statistic(tree, f"{group}/cpu.stat", "usage_usec", 1e-6)
    return _UNCOUNTED


_UNCOUNTED = Absent("No control group counts this process's core-seconds.")


def _is_version_2(tree: Tree) -> bool:
    return tree.has(f"{_MOUNT}/cgroup.controllers")


def _path(text: str, controller: str) -> str:
    """The path in the line `number:controllers:path` of a controller; version 2's line has no controllers."""
    for line in text.splitlines():
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if controller in controllers.split(","):
            return path
    return ""


def _least(readings: Iterable[FileReading], of: str) -> FileReading:
    known = [each for each in readings if isinstance(each, Measured)]
    return min(known, key=lambda each: each.value, default=Absent(f"No control group limits this process's {of}."))


def _limit(tree: Tree, group: str) -> FileReading:
    if not _is_version_2(tree):
        return tree.number(f"{group}/memory.limit_in_bytes", low=0, high=_UNLIMITED_BYTES)
    text = tree.text(f"{group}/memory.max")
    if isinstance(text, Absent):
        return text
    if text == _UNLIMITED:
        return Absent(f"/{group}/memory.max: does not limit anything.")
    return parse_number(text, f"{group}/memory.max", low=0, high=_UNLIMITED_BYTES)


def _quota(tree: Tree, group: str) -> FileReading:
    """Cores: microseconds of work in a period, over the period's microseconds."""
    if _is_version_2(tree):
        text = tree.text(f"{group}/cpu.max")
        parts = text.split() if isinstance(text, str) else []
        if len(parts) != 2 or parts[0] == _UNLIMITED:
            return Absent(f"/{group}/cpu.max: does not limit anything.")
        quota, period = (parse_number(part, f"{group}/cpu.max", low=1) for part in parts)
    else:  # -1 without a limit
        quota, period = (tree.number(f"{group}/cpu.cfs_{name}_us", low=1) for name in ("quota", "period"))
    if isinstance(quota, Absent) or isinstance(period, Absent):
        return quota if isinstance(quota, Absent) else period
    return Measured(quota.value / period.value, quota.source)


def _statistic(tree: Tree, file: str, name: str, scale: float = 1.0) -> FileReading:
    text = tree.text(file)
    if isinstance(text, Absent):
        return text
    for line in text.splitlines():
        key, _, number = line.partition(" ")
        if key == name:
            return parse_number(number, file, scale, low=0)
    return Absent(f"/{file}: says nothing of {name}.")
