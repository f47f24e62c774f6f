"""For commands: a driver may never answer, and whoever typed something is to hear that, and of which file."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

from firstline_core.errors import DeadlineExceededError
from firstline_core.hardware.sensors.device import Sensors
from firstline_core.hardware.sensors.snapshot import Snapshot
from firstline_core.hardware.tree import Tree
from firstline_core.runtime.threads import within

R = TypeVar("R")

_LIMIT_S = 10.0  # files of a board that is well take milliseconds


def in_time(tree: Tree, read: Callable[[], R], limit_s: float = _LIMIT_S) -> R:
    """What reading gives.

    Args:
        tree: that is read.
        read: reads it, and nothing else does meanwhile.
        limit_s: after which nobody waits any more.

    Raises:
        DeadlineExceededError: a driver hangs; names the file where that is known.
    """
    try:
        return within(limit_s, read)
    except TimeoutError as error:
        what = f"/{tree.reading}" if tree.reading else "One of the kernel's files"
        raise DeadlineExceededError(
            f"{what} was not read within {limit_s:g} s: its driver hangs. The kernel's log may say why (sudo dmesg); "
            "mostly it takes a restart of the device."
        ) from error


def read_twice(sensors: Sensors, interval_s: float) -> Snapshot:
    """Reads the sensors twice and returns the second reading, which includes rates of counters.

    Raises:
        DeadlineExceededError: a driver hangs.
    """
    in_time(sensors.tree, lambda: sensors.read(time.monotonic()))
    time.sleep(interval_s)
    return in_time(sensors.tree, lambda: sensors.read(time.monotonic()))
