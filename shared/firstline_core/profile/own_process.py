"""What this process takes and finds: its peak of memory, how long it waited for a core, room for another model."""

from __future__ import annotations

from pathlib import Path

from firstline_core.hardware.readings import Absent, Measured, Reading
from firstline_core.hardware.sensors.memory import memory
from firstline_core.hardware.tree import Tree

_ROOM = 4.0
"""Times its file that has to be free before a model is loaded beside."""
_SPARE_BYTES = 128 << 20
"""That stays free beside: twice what an agent keeps back where nobody says otherwise."""


def reset_peak() -> int | None:
    """Bytes of this process now, from which its peak is counted (proc(5), clear_refs); None where that is not told."""
    try:
        Path("/proc/self/clear_refs").write_text("5")
        return _status_bytes("VmRSS")
    except (OSError, ValueError):
        return None


def peak(before_bytes: int | None) -> Reading:
    try:
        if before_bytes is not None:
            return Measured(float(max(_status_bytes("VmHWM") - before_bytes, 0)), "/proc/self/status")
    except (OSError, ValueError):
        pass
    return Absent("/proc/self/clear_refs: the kernel does not let this process count its peak.")


def _status_bytes(name: str) -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{name}:"):
            return int(line.split()[1]) * 1024
    raise ValueError(name)


def waited_s() -> float:
    """How long this thread waited for a core though it could run (scheduler/sched-stats); 0 where nobody counts."""
    try:
        return int(Path("/proc/self/schedstat").read_text().split()[1]) / 1e9
    except (OSError, ValueError, IndexError):
        return 0.0


def has_room(size_bytes: int, tree: Tree) -> bool:
    """Whether a model with a file of that size may be loaded beside what is there: in the machine, and in its group."""
    left = memory(tree).available_bytes
    return isinstance(left, Measured) and left.value >= _ROOM * size_bytes + _SPARE_BYTES
