"""This process's control group: what of the machine it may use (cgroups(7)).

Version 2 has one tree of groups; version 1, which Jetson's kernels still have, one for each controller. Where both are
mounted, version 1 has the controllers.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

from firstline_core.hardware.readings import Absent, Measured
from firstline_core.hardware.tree import Found, Tree, as_number

Controller = Literal["memory", "cpu", "cpuacct"]

_MOUNT = "sys/fs/cgroup"
_UNLIMITED = "max"
_UNLIMITED_BYTES = 1 << 42  # version 1 says so with its largest count of pages, whatever that is; no device has as much


def groups(tree: Tree, controller: Controller = "memory") -> list[str]:
    """Folders of this process's group and of those that it is in, innermost first.

    In a container the mount may be the group itself, under a path that is the host's: then only the last one is there.

    Args:
        tree: the kernel's files.
        controller: of version 1; version 2 has one group for all.
    """
    one = _is_version_2(tree)
    mount = _MOUNT if one else f"{_MOUNT}/{controller}"
    told = tree.text("proc/self/cgroup")
    path = _path(told, "" if one else controller) if isinstance(told, str) else ""
    parts = [part for part in path.split("/") if part not in ("", ".", "..")]
    return ["/".join([mount, *parts[:count]]) for count in range(len(parts), -1, -1)]


def memory_limit(tree: Tree) -> Found:
    """Bytes that the tightest group may use; absent where none is limited."""
    return _least((_limit(tree, group) for group in groups(tree)), "memory")


def memory_left(tree: Tree) -> Found:
    """Bytes that the tightest group may still take: pages of files count as free, for they can be dropped."""
    # Version 1 counts a group's own pages and, as "total", those of the groups in it too, as its usage does.
    used_in, droppable = (
        ("memory.current", "inactive_file") if _is_version_2(tree) else ("memory.usage_in_bytes", "total_inactive_file")
    )
    found: list[Found] = []
    for group in groups(tree):
        limit, used = _limit(tree, group), tree.number(f"{group}/{used_in}", low=0)
        if isinstance(limit, Measured) and isinstance(used, Measured):
            pages = _statistic(tree, f"{group}/memory.stat", droppable)
            kept = max(0.0, used.value - (pages.value if isinstance(pages, Measured) else 0.0))
            found.append(Measured(max(0.0, limit.value - kept), used.source))
    return _least(found, "memory")


def cpu_quota(tree: Tree) -> Found:
    """Cores that the tightest group may keep busy, as a fraction; absent where none is limited."""
    return _least((_quota(tree, group) for group in groups(tree, "cpu")), "cores")


def cpu_used_s(tree: Tree) -> Found:
    """Core-seconds that this process's group took since it was made."""
    if not _is_version_2(tree):
        used = (tree.number(f"{group}/cpuacct.usage", 1e-9, low=0) for group in groups(tree, "cpuacct"))
        return next((found for found in used if isinstance(found, Measured)), _UNCOUNTED)
    for group in groups(tree):
        if tree.has(f"{group}/cpu.stat"):
            return _statistic(tree, f"{group}/cpu.stat", "usage_usec", 1e-6)
    return _UNCOUNTED


_UNCOUNTED = Absent("No control group counts this process's core-seconds.")


def _is_version_2(tree: Tree) -> bool:
    return tree.has(f"{_MOUNT}/cgroup.controllers")


def _path(told: str, controller: str) -> str:
    """Of the line `number:controllers:path` that has this controller; version 2's line has none."""
    for line in told.splitlines():
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if controller in controllers.split(","):
            return path
    return ""


def _least(found: Iterable[Found], of: str) -> Found:
    known = [each for each in found if isinstance(each, Measured)]
    return min(known, key=lambda each: each.value, default=Absent(f"No control group limits this process's {of}."))


def _limit(tree: Tree, group: str) -> Found:
    if not _is_version_2(tree):
        return tree.number(f"{group}/memory.limit_in_bytes", low=0, high=_UNLIMITED_BYTES)
    told = tree.text(f"{group}/memory.max")
    if isinstance(told, Absent):
        return told
    if told == _UNLIMITED:
        return Absent(f"/{group}/memory.max: does not limit anything.")
    return as_number(told, f"{group}/memory.max", low=0, high=_UNLIMITED_BYTES)


def _quota(tree: Tree, group: str) -> Found:
    """Cores: microseconds of work in a period, by its microseconds."""
    if _is_version_2(tree):
        told = tree.text(f"{group}/cpu.max")
        parts = told.split() if isinstance(told, str) else []
        if len(parts) != 2 or parts[0] == _UNLIMITED:
            return Absent(f"/{group}/cpu.max: does not limit anything.")
        quota, period = (as_number(part, f"{group}/cpu.max", low=1) for part in parts)
    else:  # which says -1 where nothing is limited
        quota, period = (tree.number(f"{group}/cpu.cfs_{name}_us", low=1) for name in ("quota", "period"))
    if isinstance(quota, Absent) or isinstance(period, Absent):
        return quota if isinstance(quota, Absent) else period
    return Measured(quota.value / period.value, quota.source)


def _statistic(tree: Tree, file: str, name: str, scale: float = 1.0) -> Found:
    told = tree.text(file)
    if isinstance(told, Absent):
        return told
    for line in told.splitlines():
        key, _, number = line.partition(" ")
        if key == name:
            return as_number(number, file, scale, low=0)
    return Absent(f"/{file}: says nothing of {name}.")
