"""How many cores this process may use."""

from __future__ import annotations

import math
import os
from pathlib import Path


def usable_cores(cgroup: Path = Path("/sys/fs/cgroup")) -> int:
    """The cores that this process may use: a container's cpuset, and its quota of time, make them fewer.

    Args:
        cgroup: where a container sees its own control group (version 2).
    """
    cores = len(os.sched_getaffinity(0))
    try:
        # "QUOTA PERIOD", in microseconds, or "max PERIOD": docs.kernel.org/admin-guide/cgroup-v2.html
        quota, period = map(int, (cgroup / "cpu.max").read_text().split())
    except (OSError, ValueError):
        return cores
    return max(1, min(cores, math.ceil(quota / period))) if period else cores
