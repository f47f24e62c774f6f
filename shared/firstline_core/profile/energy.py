"""What queries take of energy: as sensors measured it, as stated costs model it, or not known."""

from __future__ import annotations

import time

from firstline_core.hardware.readings import Absent, Measured, Modelled, Reading
from firstline_core.hardware.sensors.device import Sensors
from firstline_core.hardware.sensors.snapshot import Snapshot
from firstline_core.hardware.tree import Tree
from firstline_core.routing.tariff import Tariff

_WHOLE = "psys"
_BETWEEN_S = 0.2
"""Readings take a millisecond: they are taken between queries, and not often."""


class EnergyMeter:
    """From its making to `per_query`. What is measured is the whole device's, at rest included.

    Args:
        tree: the kernel's files.
        joules_per_core_s: that a busy core takes beyond the idle device, as its owner states it; 0 where nobody does.
    """

    def __init__(self, tree: Tree, joules_per_core_s: float) -> None:
        self._sensors = Sensors(tree, tariff=Tariff())
        self._joules_per_core_s = joules_per_core_s
        self._began = self._sensors.read(time.monotonic())
        self._watts: list[Reading] = []
        self._latest = self._began

    def look(self) -> None:
        """Reads the sensors where the last reading is old enough; call it between queries."""
        now_s = time.monotonic()
        if now_s - self._latest.at_s >= _BETWEEN_S:
            self._read(now_s)

    def per_query(self, queries: int, processor_s: float) -> Reading:
        """Millijoules of each.

        Args:
            queries: since this was made, back to back.
            processor_s: of all cores, that they took.
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
    """Millijoules of a query by another stated cost; what is measured stays, and all does where no cost is stated.

    Args:
        energy: as it is known.
        joules_per_core_s: that a busy core takes beyond the idle device; 0 for not stated.
        processor_ms: of all cores, that a query takes.
    """
    if isinstance(energy, Measured) or joules_per_core_s <= 0:
        return energy
    said = f"stated {joules_per_core_s:g} J a core-second, with the process's measured processor time"
    if isinstance(energy, Modelled) and energy.source == said:
        return energy  # of more digits than the time that is kept
    return Modelled(joules_per_core_s * processor_ms, said)


def joules(before: Snapshot, after: Snapshot) -> Reading:
    """What counters say was taken between two readings: of the platform, else of all packages together."""
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
