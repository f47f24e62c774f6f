"""Small kernel files, read under a root that tests replace. Every failure is `Absent` with the reason.

The content comes from a driver: a file may be empty, malformed, or gone since its folder was listed, and reading may
fail with any error (`EIO`, `EAGAIN` of a rail that is switched off). None of these raises an exception.

Limits of this process are here too: its affinity, and those of its control group (cgroups(7)). Version 2 has one tree
of groups; version 1, which Jetson's kernels still use, has one for each controller. If both are mounted, version 1 has
the controllers.
"""

from __future__ import annotations

import errno
import fnmatch
import os
import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Literal, TypeVar

from firstline_core.errors import DeadlineExceededError
from firstline_core.hardware.readings import Absent, FileReading, Measured, least, measured
from firstline_core.runtime.threads import within

_FILE_BYTES = 4096  # a page, which is all that a file of sysfs can hold
_TABLE_BYTES = 64 * 1024
_ENTRIES = 1024
_NAME_CHARACTERS = 48
_SHOWN_CHARACTERS = 40
_WHOLE = re.compile(r"[+-]?[0-9]{1,19}")
_UNPRINTABLE = re.compile(r"[^ -~]")
_NUMBERED = re.compile(r"([0-9]+)")
_RANGE = re.compile(r"([0-9]{1,4})(?:-([0-9]{1,4}))?")

Controller = Literal["memory", "cpu", "cpuacct"]

_MOUNT = "sys/fs/cgroup"
_UNLIMITED = "max"
_UNLIMITED_BYTES = 1 << 42
"""Version 1 reports its largest number of pages if there is no limit; no device has this much memory."""

NO_VALUE_NOW = "the driver has no value now, as of a part that is switched off"

_REASONS = {
    errno.EACCES: "only the superuser may read it; docs/concepts/hardware.md says how to let the agent",
    errno.EPERM: "only the superuser may read it; docs/concepts/hardware.md says how to let the agent",
    errno.EAGAIN: NO_VALUE_NOW,
    errno.ENODATA: "the driver has no value, as of a channel that is switched off",
    errno.ENXIO: "the device behind it does not answer",
    errno.ENODEV: "the device behind it does not answer",
    errno.EIO: "the device behind it does not answer",
}
_UNCOUNTED = Absent("No control group counts this process's core-seconds.")
R = TypeVar("R")
_LIMIT_S = 10.0  # the files of a healthy board take milliseconds


class Tree:
    """The kernel's files of one device.

    Args:
        root: where they begin; "/" on the device itself. Paths are relative to it, and are shown with a "/".

    Attributes:
        reading: the file that is being read, or ""; if a driver hangs, this names its file.
    """

    def __init__(self, root: Path = Path("/")) -> None:
        self.root = root
        self.reading = ""
        self._prefix = f"{root}/"  # pathlib would take half of the time of a reading

    def names(self, folder: str, pattern: str) -> list[str]:
        """Returns the paths of a folder's entries that match a pattern, sorted by the numbers in them.

        Args:
            folder: relative to the root.
            pattern: shell pattern of a name.
        """
        try:
            found = fnmatch.filter(os.listdir(self._prefix + folder), pattern)  # noqa: PTH208
        except (OSError, ValueError):
            return []
        return [f"{folder}/{name}" for name in sorted(found, key=_by_number)[:_ENTRIES]]

    def has(self, path: str) -> bool:
        """Whether the file or folder exists."""
        return os.path.exists(self._prefix + path)  # noqa: PTH110

    def text(self, path: str, limit_bytes: int = _FILE_BYTES) -> str | Absent:
        """Returns the text of a file, stripped.

        Args:
            path: relative to the root.
            limit_bytes: most bytes that are read.
        """
        self.reading = path
        try:
            # Non-blocking: a pipe or other special file may never have content.
            descriptor = os.open(self._prefix + path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
            try:
                pieces, left = [], limit_bytes
                while left > 0 and (piece := os.read(descriptor, left)):
                    pieces.append(piece)
                    left -= len(piece)
            finally:
                os.close(descriptor)
        except (OSError, ValueError) as error:
            return Absent(f"/{path}: {_why(error)}.")
        finally:
            self.reading = ""
        content = b"".join(pieces).rstrip(b"\0")  # strings in the device tree end with a zero
        try:
            return content.decode("utf-8").strip()
        except UnicodeDecodeError:
            return Absent(f"/{path}: holds no text.")

    def word(self, path: str, otherwise: str = "", limit: int = _NAME_CHARACTERS) -> str:
        """Returns a name from a file, fit for display and for labels; `otherwise` if there is none."""
        found = self.text(path)
        return printable_name(found, limit) or otherwise if isinstance(found, str) else otherwise

    def number(
        self, path: str, scale: float = 1.0, *, low: float = float("-inf"), high: float = float("inf")
    ) -> FileReading:
        """Returns the whole number in a file, in the wanted unit.

        Args:
            path: relative to the root.
            scale: the file's unit over the wanted one: 0.001 for millidegrees as degrees.
            low: smallest plausible value, in the wanted unit.
            high: largest plausible value.
        """
        found = self.text(path)
        return found if isinstance(found, Absent) else parse_number(found, path, scale, low=low, high=high)

    def entry(self, path: str, name: str, scale: float = 1.0, *, high: float = float("inf")) -> FileReading:
        """Returns the number behind a name, in a file with one name and number in each line; not negative."""
        text = self.text(path, _TABLE_BYTES)
        if isinstance(text, Absent):
            return text
        for line in text.splitlines():
            words = line.split()
            if len(words) > 1 and words[0].removesuffix(":") == name:
                return parse_number(words[1], path, scale, low=0, high=high)
        return Absent(f"/{path}: says nothing of {name}.")

    def text_lines(self, path: str, limit_bytes: int = _FILE_BYTES) -> list[str]:
        """Returns the lines of a file; none if it cannot be read."""
        found = self.text(path, limit_bytes)
        return found.splitlines() if isinstance(found, str) else []


def parse_number(
    text: str, path: str, scale: float = 1.0, *, low: float = float("-inf"), high: float = float("inf")
) -> FileReading:
    """Returns the number in text that was read from a file; see `Tree.number`."""
    if not text:
        return Absent(f"/{path}: is empty.")
    if _WHOLE.fullmatch(text) is None:
        return Absent(f"/{path}: says {text[:_SHOWN_CHARACTERS]!a}, which is no whole number.")
    # 49300 / 1000 is 49.3, and 49300 * 0.001 is not quite.
    value = int(text) * scale if scale >= 1 else int(text) / round(1 / scale)
    if not low <= value <= high:
        return Absent(f"/{path}: says {text}, which cannot be.")
    return Measured(value, f"/{path}")


def printable_name(text: str, limit: int = _NAME_CHARACTERS) -> str:
    """Returns the text as a name: printable ASCII, and short."""
    return _UNPRINTABLE.sub("?", text.strip())[:limit].strip()


def add_reading(found: dict[str, FileReading], name: str, reading: FileReading) -> None:
    """Adds a reading under its name, with a number if the name is taken; beyond 1,024 they are dropped.

    Many more are read than are shown (`readings.limited`), because the highest of many may be the last.
    """
    if len(found) >= _ENTRIES:
        return
    key, at = name, 2
    while key in found:
        key, at = f"{name} {at}", at + 1
    found[key] = reading


def _by_number(name: str) -> list[tuple[int, str]]:
    return [(int(part[:18]), "") if part.isdecimal() else (-1, part) for part in _NUMBERED.split(name)]


def _why(error: OSError | ValueError) -> str:
    if isinstance(error, OSError) and error.errno is not None:
        return _REASONS.get(error.errno) or (os.strerror(error.errno).lower())
    return str(error)


def control_groups(tree: Tree, controller: Controller = "memory") -> list[str]:
    """Returns the folders of this process's group and its parents, innermost first.

    In a container the mount may be the group itself, under a path of the host; then only the last folder exists.

    Args:
        tree: the kernel's files.
        controller: of version 1; version 2 has one group for all.
    """
    if _is_version_2(tree):
        mount, controllers = _MOUNT, ""
    else:
        mount, controllers = f"{_MOUNT}/{controller}", controller
    # Each line is `number:controllers:path`; version 2's names no controllers.
    lines = (line.split(":", 2) for line in tree.text_lines("proc/self/cgroup"))
    path = next((line[2] for line in lines if len(line) == 3 and controllers in line[1].split(",")), "")
    parts = [part for part in path.split("/") if part not in ("", ".", "..")]
    return ["/".join([mount, *parts[:count]]) for count in range(len(parts), -1, -1)]


def online_cores(tree: Tree) -> set[int]:
    """Returns the numbers of the machine's cores that are online, at least one."""
    found = _cores_in(tree.word("sys/devices/system/cpu/online", limit=_FILE_BYTES))
    return found or set(range(os.cpu_count() or 1))


def allowed_cores(tree: Tree) -> set[int]:
    """Returns the numbers of the online cores that this process may run on, at least one."""
    online, lines = online_cores(tree), (line.partition(":") for line in tree.text_lines("proc/self/status"))
    allowed = next((_cores_in(text) for name, _, text in lines if name == "Cpus_allowed_list"), online)
    return allowed & online or online


def _cores_in(text: str) -> set[int]:
    """The numbers in a list of ranges, such as "0-3,8"."""
    spans = (matched for part in text.split(",") if (matched := _RANGE.fullmatch(part.strip())) is not None)
    return {core for span in spans for core in range(int(span[1]), int(span[2] or span[1]) + 1)}


def memory_limit(tree: Tree) -> FileReading:
    """Returns the bytes that the tightest group may use; absent without a limit."""
    return _least((_limit(tree, group) for group in control_groups(tree)), "memory")


def memory_left(tree: Tree) -> FileReading:
    """Returns the bytes that the tightest group may still take; page cache counts as free."""
    # In version 1 only the "total" counters include the groups inside, as the usage does.
    used_in, droppable = (
        ("memory.current", "inactive_file") if _is_version_2(tree) else ("memory.usage_in_bytes", "total_inactive_file")
    )
    readings: list[FileReading] = []
    for group in control_groups(tree):
        limit, used = _limit(tree, group), tree.number(f"{group}/{used_in}", low=0)
        if isinstance(limit, Measured) and isinstance(used, Measured):
            pages = measured(tree.entry(f"{group}/memory.stat", droppable)) or 0.0
            readings.append(Measured(max(0.0, limit.value - max(0.0, used.value - pages)), used.source))
    return _least(readings, "memory")


def cpu_quota(tree: Tree) -> FileReading:
    """Returns the cores that the tightest group may use, as a fraction; absent without a limit."""
    return _least((_quota(tree, group) for group in control_groups(tree, "cpu")), "cores")


def usable_cores(tree: Tree) -> tuple[float, bool]:
    """Returns the cores that this process may use, as a fraction, and whether a control group's quota limits them."""
    quota, own = cpu_quota(tree), float(len(allowed_cores(tree)))
    return (quota.value, True) if isinstance(quota, Measured) and quota.value < own else (own, False)


def cpu_used_s(tree: Tree) -> FileReading:
    """Returns the core-seconds that this process's group has used since it was made."""
    if not _is_version_2(tree):
        used = (tree.number(f"{group}/cpuacct.usage", 1e-9, low=0) for group in control_groups(tree, "cpuacct"))
        return next((readings for readings in used if isinstance(readings, Measured)), _UNCOUNTED)
    for group in control_groups(tree):
        if tree.has(f"{group}/cpu.stat"):
            return tree.entry(f"{group}/cpu.stat", "usage_usec", 1e-6)
    return _UNCOUNTED


def _is_version_2(tree: Tree) -> bool:
    return tree.has(f"{_MOUNT}/cgroup.controllers")


def _least(readings: Iterable[FileReading], of: str) -> FileReading:
    measured = [each for each in readings if isinstance(each, Measured)]
    return least(measured, f"No control group limits this process's {of}.")


def _limit(tree: Tree, group: str) -> FileReading:
    file = f"{group}/{'memory.max' if _is_version_2(tree) else 'memory.limit_in_bytes'}"
    if tree.text(file) == _UNLIMITED:
        return Absent(f"/{file}: does not limit anything.")
    return tree.number(file, low=0, high=_UNLIMITED_BYTES)


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


def read_in_time(tree: Tree, read: Callable[[], R], limit_s: float = _LIMIT_S) -> R:
    """Returns the result of `read`.

    Args:
        tree: the files that are read; nothing else reads them meanwhile.
        read: reads them.
        limit_s: time limit.

    Raises:
        DeadlineExceededError: a driver hangs; names the file if it is known.
    """
    try:
        return within(limit_s, read)
    except TimeoutError as error:
        file = f"/{tree.reading}" if tree.reading else "One of the kernel's files"
        raise DeadlineExceededError(
            f"{file} was not read within {limit_s:g} s: its driver hangs. The kernel's log may say why (sudo dmesg); "
            "usually the device has to be restarted."
        ) from error
