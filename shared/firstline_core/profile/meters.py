"""Energy of queries, peak memory, waiting time, and heat by full load, while a point is measured."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Sequence
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
        power_rails: stated rails of the whole device, which take precedence over counters; empty for the known ones.
    """

    def __init__(self, tree: Tree, joules_per_core_s: float, power_rails: Sequence[str] = ()) -> None:
        self._sensors = Sensors(tree, power_rails=power_rails)
        self._has_stated_rails = bool(power_rails)
        self._joules_per_core_s = joules_per_core_s
        self._began = self._sensors.read(time.monotonic())
        self._latest = self._began
        self._powers: list[tuple[Reading, float]] = []
        """Power of the whole device at each reading, with the seconds since the one before."""

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
        counted = joules(self._began, self._latest)
        if isinstance(counted, Measured) and not self._has_stated_rails:
            return Measured(counted.value * 1000 / queries, counted.source)
        spent_j = [power.value * seconds for power, seconds in self._powers if isinstance(power, Measured)]
        latest = self._latest.device_power_w
        if isinstance(latest, Measured) and len(spent_j) == len(self._powers):
            return Measured(sum(spent_j) * 1000 / queries, latest.source)
        if self._joules_per_core_s <= 0:
            return Absent("Nothing here measures energy, and no cost of a core-second is stated.")
        source = f"stated {self._joules_per_core_s:g} J a core-second, with the process's measured processor time"
        return Modelled(self._joules_per_core_s * processor_s * 1000 / queries, source)

    def _read(self, now_s: float) -> None:
        before_s, self._latest = self._latest.at_s, self._sensors.read(now_s)
        self._powers.append((self._latest.device_power_w, now_s - before_s))


def joules(before: Snapshot, after: Snapshot) -> Reading:
    """Returns the energy between two readings of the counters: of the platform, else of all packages together."""
    whole = _counted(before, after, [name for name in after.energy_j if name == _WHOLE])
    packages = [name for name in after.energy_j if name != _WHOLE and "/" not in name]
    return whole if isinstance(whole, Measured) else _counted(before, after, packages)


def _counted(before: Snapshot, after: Snapshot, names: Sequence[str]) -> Reading:
    total, sources = 0.0, []
    for name in names:
        first, last = before.energy_j.get(name, Absent("It was not there.")), after.energy_j[name]
        if not isinstance(first, Measured) or not isinstance(last, Measured):
            return last if isinstance(last, Absent) else Absent(f"The counter '{name}' was not read twice.")
        total += last.value - first.value
        sources.append(last.source)
    if not total:
        return Absent("No counter of energy here advances.")
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
