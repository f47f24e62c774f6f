"""The energy of queries: measured by sensors, modelled from stated costs, or absent."""

from __future__ import annotations

import time

from firstline_core.hardware.readings import Absent, Measured, Modelled, Reading
from firstline_core.hardware.sensors.device import Sensors
from firstline_core.hardware.sensors.snapshot import Snapshot
from firstline_core.hardware.tree import Tree
from firstline_core.routing.account import Tariff

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
        self._sensors = Sensors(tree, tariff=Tariff())
        self._joules_per_core_s = joules_per_core_s
        self._began = self._sensors.read(time.monotonic())
        self._watts: list[Reading] = []
        self._latest = self._began

    def look(self) -> None:
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
