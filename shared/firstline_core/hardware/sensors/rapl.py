"""Energy that Intel's and AMD's processors count (RAPL), by domain: counters of microjoules that begin anew at 0.

Since CVE-2020-8694 the kernel shows them to the superuser alone, unless somebody lets the agent's user.
"""

from __future__ import annotations

from typing import NamedTuple

from firstline_core.hardware.readings import Absent, Measured
from firstline_core.hardware.tree import Found, Tree, name_of, placed

_WHOLE = 2.0**53  # up to here a float is a whole number
_LONGEST_S = 600.0
"""Between two readings, beyond which a counter may have begun anew more than once: 262 kJ last so long at 437 W."""


class Counter(NamedTuple):
    """One domain as it was read last, `total_j` since the first reading; `at_s` is monotonic."""

    energy_uj: int
    at_s: float
    total_j: float


def advanced_uj(before_uj: int, now_uj: int, range_uj: int) -> int:
    """Microjoules between two readings, of which the second may have begun anew.

    Args:
        before_uj: what the counter said first.
        now_uj: what it said then.
        range_uj: `max_energy_range_uj`, the largest that it says; from there it goes on at 0.
    """
    return now_uj - before_uj if now_uj >= before_uj else range_uj + 1 - before_uj + now_uj


class Rapl:
    """Reads all domains; keeps what they said.

    Args:
        tree: the kernel's files.
    """

    def __init__(self, tree: Tree) -> None:
        self._tree = tree
        self._counters: dict[str, Counter] = {}

    def read(self, now_s: float) -> tuple[dict[str, Found], dict[str, Found]]:
        """Joules since the first reading, and watts since the reading before, by domain.

        Args:
            now_s: monotonic time.
        """
        energy_j: dict[str, Found] = {}
        power_w: dict[str, Found] = {}
        for domain, name in self._domains():
            energy, power = self._domain(domain, now_s)
            placed(energy_j, name, energy)
            placed(power_w, name, power)
        return energy_j, power_w

    def _domains(self) -> list[tuple[str, str]]:
        """Their folders, with their names beneath that of their package."""
        found = []
        for folder in self._tree.names("sys/class/powercap", "intel-rapl:*"):
            parent, _, _ = folder.rpartition(":")
            name = self._tree.word(f"{folder}/name", folder.rpartition("/")[2])
            if not parent.endswith("intel-rapl"):
                name = f"{self._tree.word(f'{parent}/name', parent.rpartition('/')[2])}/{name}"
            found.append((folder, name_of(name)))
        return found

    def _domain(self, folder: str, now_s: float) -> tuple[Found, Found]:
        energy = self._tree.number(f"{folder}/energy_uj", low=0, high=_WHOLE)
        range_uj = self._tree.number(f"{folder}/max_energy_range_uj", low=1, high=_WHOLE)
        if isinstance(energy, Absent):  # a counter goes on while nobody can read it
            return energy, energy
        if isinstance(range_uj, Absent):
            return range_uj, range_uj
        now_uj, before = int(energy.value), self._counters.get(folder)
        if before is None or not 0 < now_s - before.at_s <= _LONGEST_S:
            total_j = before.total_j if before is not None else 0.0
            self._counters[folder] = Counter(now_uj, now_s, total_j)
            once = Absent(f"{energy.source}: counts joules, and was read once; the next reading tells watts.")
            return Measured(total_j, energy.source), once
        joules = advanced_uj(before.energy_uj, now_uj, int(range_uj.value)) / 1e6
        counter = self._counters[folder] = Counter(now_uj, now_s, before.total_j + joules)
        return Measured(counter.total_j, energy.source), Measured(joules / (now_s - before.at_s), energy.source)
