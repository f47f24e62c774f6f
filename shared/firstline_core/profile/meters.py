"""Energy of queries, peak memory, waiting time, and heat by full load, while a point is measured."""

from __future__ import annotations

import os
import threading
import time
from contextlib import suppress
from pathlib import Path

import numpy as np

from firstline_core.hardware.kernel_files import Tree
from firstline_core.hardware.readings import Absent, Measured, Modelled, Reading, Snapshot
from firstline_core.hardware.sensors import Sensors

_WHOLE = "psys"
_BETWEEN_S = 0.2
"""Shortest time between two readings, which take a millisecond each."""


class EnergyMeter:
    """Measures the energy of the whole device, its idle power included, from its creation to `per_query`.

    Args:
        tree: the kernel's files.
        joules_per_core_s: stated energy of a busy core beyond the idle device; 0 if not stated.
    """

    def __init__(self, tree: Tree, joules_per_core_s: float) -> None:
        self._sensors = Sensors(tree)
        self._joules_per_core_s = joules_per_core_s
        self._began = self._sensors.read(time.monotonic())
        self._watts: list[Reading] = []
        self._latest = self._began

    def read_if_due(self) -> None:
        """Reads the sensors if the last reading is old enough; call it between queries."""
        now_s = time.monotonic()
        if now_s - self._latest.at_s >= _BETWEEN_S:
            self._read(now_s)

    def per_query(self, queries: int, processor_s: float) -> Reading:
        """Returns the millijoules of a query.

        Args:
            queries: number of queries since the creation, back to back.
            processor_s: their processor time, of all cores.
        """
        self._read(time.monotonic())
        wall_s = self._latest.at_s - self._began.at_s
        counted = joules(self._began, self._latest)
        if isinstance(counted, Measured):
            return Measured(counted.value * 1000 / queries, counted.source)
        measured = [reading for reading in self._watts if isinstance(reading, Measured)]
        if measured and len(measured) == len(self._watts):
            watts = sum(reading.value for reading in measured) / len(measured)
            return Measured(watts * wall_s * 1000 / queries, measured[0].source)
        if self._joules_per_core_s <= 0:
            return Absent("Nothing here measures energy, and no cost of a core-second is stated.")
        source = f"stated {self._joules_per_core_s:g} J a core-second, with the process's measured processor time"
        return Modelled(self._joules_per_core_s * processor_s * 1000 / queries, source)

    def _read(self, now_s: float) -> None:
        self._latest = self._sensors.read(now_s)
        self._watts.append(self._latest.device_power_w)


def joules(before: Snapshot, after: Snapshot) -> Reading:
    """Returns the energy between two readings of the counters: of the platform, else of all packages together."""
    names = [_WHOLE] if _WHOLE in after.energy_j else [name for name in after.energy_j if "/" not in name]
    total, sources = 0.0, []
    for name in names:
        first, last = before.energy_j.get(name, Absent("It was not there.")), after.energy_j[name]
        if not isinstance(first, Measured) or not isinstance(last, Measured):
            return last if isinstance(last, Absent) else Absent(f"The counter '{name}' was not read twice.")
        total += last.value - first.value
        sources.append(last.source)
    if not sources:
        return Absent("There is no counter of energy here.")
    return Measured(total, " + ".join(sources))


def heat_up(seconds: float) -> None:
    """Keeps every core busy for a time, so that the board becomes as hot as under sustained load."""
    until_s = time.monotonic() + seconds
    burners = [threading.Thread(target=_burn, args=(until_s,), daemon=True) for _ in range(os.cpu_count() or 1)]
    for burner in burners:
        burner.start()
    for burner in burners:
        burner.join()


def _burn(until_s: float) -> None:
    square = np.full((256, 256), 0.5, np.float32)
    while time.monotonic() < until_s:
        np.dot(square, square)  # outside the interpreter's lock


def reset_peak() -> int | None:
    """Resets this process's peak memory (proc(5), clear_refs) and returns its bytes now; None if that is refused."""
    try:
        Path("/proc/self/clear_refs").write_text("5")
        return _status_bytes("VmRSS")
    except (OSError, ValueError):
        return None


def peak(before_bytes: int | None) -> Reading:
    """Returns the peak memory beyond `before_bytes`."""
    with suppress(OSError, ValueError):
        if before_bytes is not None:
            return Measured(float(max(_status_bytes("VmHWM") - before_bytes, 0)), "/proc/self/status")
    return Absent("/proc/self/clear_refs: the kernel does not let this process count its peak.")


def _status_bytes(name: str) -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{name}:"):
            return int(line.split()[1]) * 1024
    raise ValueError(name)


def waited_s() -> float:
    """Returns how long this thread was ready but waited for a core (scheduler/sched-stats); 0 if it is not counted."""
    try:
        return int(Path("/proc/self/schedstat").read_text().split()[1]) / 1e9
    except (OSError, ValueError, IndexError):
        return 0.0
