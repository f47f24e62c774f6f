"""Energy of queries, peak memory, and heat under full load, read while a point is measured."""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import numpy as np

from firstline_core.hardware.kernel_files import Tree
from firstline_core.hardware.readings import Absent, Measured, Modelled, Reading, Snapshot
from firstline_core.hardware.sensors import Sensors

_WHOLE = "psys"
_BETWEEN_S = 0.2
"""Shortest time between two readings, which take a millisecond each."""
_READ_S = 1.0
_WINDOW_S = 30.0
_SETTLED_C = 1.0
_SETTLED_SHARE = 0.02
_SIDE = 256


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
        nothing = Absent("Nothing here measures energy, and no cost of a core-second is stated.")
        return as_stated(nothing, self._joules_per_core_s, processor_s * 1000 / queries)

    def _read(self, now_s: float) -> None:
        self._latest = self._sensors.read(now_s)
        self._watts.append(self._latest.device_power_w)


def as_stated(energy: Reading, joules_per_core_s: float, processor_ms: float) -> Reading:
    """Returns the millijoules of a query by a stated cost; measured energy stays, and without a cost everything does.

    Args:
        energy: the present reading.
        joules_per_core_s: stated energy of a busy core beyond the idle device; 0 if not stated.
        processor_ms: processor time of a query, of all cores.
    """
    if isinstance(energy, Measured) or joules_per_core_s <= 0:
        return energy
    source = f"stated {joules_per_core_s:g} J a core-second, with the process's measured processor time"
    if isinstance(energy, Modelled) and energy.source == source:
        return energy  # it has more digits than the stored time
    return Modelled(joules_per_core_s * processor_ms, source)


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


def heat_up(read: Callable[[float], Snapshot], limit_s: float) -> float:
    """Keeps every core busy until temperature and frequency have settled, and returns the seconds that this took.

    They have settled when in half a minute the highest temperature changed by less than 1 degree and the slowest
    cluster's frequency by less than 2 %. If no sensor measures a temperature, it takes all of the time.

    Args:
        read: reads the sensors at a monotonic time.
        limit_s: longest time.
    """
    over = threading.Event()
    burners = [threading.Thread(target=_burn, args=(over,), daemon=True) for _ in range(os.cpu_count() or 1)]
    began_s = time.monotonic()
    seen: deque[Snapshot] = deque()
    for burner in burners:
        burner.start()
    try:
        while (now_s := time.monotonic()) - began_s < limit_s:
            seen.append(read(now_s))
            while seen[-1].at_s - seen[0].at_s > _WINDOW_S:
                seen.popleft()
            if seen[-1].at_s - seen[0].at_s > _WINDOW_S - 2 * _READ_S and settled(list(seen)):
                break
            over.wait(min(_READ_S, limit_s))
    finally:
        over.set()
        for burner in burners:
            burner.join()
    return time.monotonic() - began_s


def settled(seen: list[Snapshot]) -> bool:
    """Whether temperature and clocks are steady; never if no temperature is measured."""
    hottest = [one.hottest_c.value for one in seen if isinstance(one.hottest_c, Measured)]
    if len(hottest) < len(seen) or max(hottest) - min(hottest) >= _SETTLED_C:
        return False
    for cluster in seen[-1].frequency_hz:
        readings = [one.frequency_hz.get(cluster) for one in seen]
        hertz = [one.value for one in readings if isinstance(one, Measured)]
        # Compare the means of both halves: the steps of a governor are no trend.
        half = len(hertz) // 2
        if half and abs(np.mean(hertz[:half]) / np.mean(hertz[half:]) - 1) >= _SETTLED_SHARE:
            return False
    return True


def _burn(over: threading.Event) -> None:
    square = np.full((_SIDE, _SIDE), 0.5, np.float32)
    while not over.is_set():
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
