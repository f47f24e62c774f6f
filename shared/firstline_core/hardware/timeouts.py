"""Reads kernel files for commands with a time limit: a driver may hang, and the user has to learn which file."""

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

_LIMIT_S = 10.0  # the files of a healthy board take milliseconds


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


def read_twice(sensors: Sensors, interval_s: float) -> Snapshot:
    """Reads the sensors twice and returns the second reading, which includes rates of counters.

    Raises:
        DeadlineExceededError: a driver hangs.
    """
    read_in_time(sensors.tree, lambda: sensors.read(time.monotonic()))
    time.sleep(interval_s)
    return read_in_time(sensors.tree, lambda: sensors.read(time.monotonic()))
