"""What a batch takes of an executor beside its slot: from a profile of that machine, or from what its owner states."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

Source = Literal["measured", "modelled", "absent"]
"""Where a number of joules comes from: a meter while the profile was made, stated watts, or nowhere."""


@dataclass(frozen=True, slots=True)
class Costs:
    """Of one model on one executor, by the rows of a batch; nothing where nobody knows.

    Args:
        seconds: that batches took.
        memory_bytes: that batches take beside the model, while they run.
        energy_j: that batches take.
        energy_source: of `energy_j`.
        power_w: stated: drawn for each batch while it runs; holds where there is no `energy_j`.
    """

    seconds: Mapping[int, float] = field(default_factory=dict)
    memory_bytes: Mapping[int, float] = field(default_factory=dict)
    energy_j: Mapping[int, float] = field(default_factory=dict)
    energy_source: Source = "absent"
    power_w: float = 0.0

    @property
    def source(self) -> Source:
        """Where its joules come from."""
        if self.energy_j:
            return self.energy_source
        return "modelled" if self.power_w else "absent"

    @property
    def largest_bytes(self) -> float:
        """Of the largest batch that is known; 0 where none is."""
        return max(self.memory_bytes.values(), default=0.0)

    def energy_of(self, rows: int, run_s: float) -> float:
        """Joules of a batch that runs for so long; 0 where nobody knows."""
        return _scaled(self.energy_j, rows) if self.energy_j else self.power_w * run_s

    def memory_of(self, rows: int) -> float:
        """Bytes of a batch while it runs; 0 where nobody knows."""
        return _scaled(self.memory_bytes, rows)


def _scaled(known: Mapping[int, float], rows: int) -> float:
    """As the smallest measured batch that is no smaller; beyond the largest in proportion to the rows."""
    if not known:
        return 0.0
    larger = [size for size in known if size >= rows]
    if larger:
        return known[min(larger)]
    return known[max(known)] * rows / max(known)
