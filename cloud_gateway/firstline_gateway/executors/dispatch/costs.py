"""Memory and energy of batches on an executor: from a profile of its machine, or from stated watts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

Source = Literal["measured", "modelled", "absent"]
"""The source of an energy: a meter during profiling, stated watts, or none."""


@dataclass(frozen=True, slots=True)
class Costs:
    """The costs of one model on one executor, by the rows of a batch; empty if they are unknown.

    Args:
        seconds: of batches.
        memory_bytes: of batches while they run, without the model.
        energy_j: of batches.
        energy_source: of `energy_j`.
        power_w: stated watts for each running batch; used if there is no `energy_j`.
    """

    seconds: Mapping[int, float] = field(default_factory=dict)
    memory_bytes: Mapping[int, float] = field(default_factory=dict)
    energy_j: Mapping[int, float] = field(default_factory=dict)
    energy_source: Source = "absent"
    power_w: float = 0.0

    @property
    def source(self) -> Source:
        """The source of its energy."""
        if self.energy_j:
            return self.energy_source
        return "modelled" if self.power_w else "absent"

    @property
    def largest_bytes(self) -> float:
        """Memory of the largest known batch; 0 if none is known."""
        return max(self.memory_bytes.values(), default=0.0)

    def energy_of(self, rows: int, run_s: float) -> float:
        """Returns the joules of a batch that runs for so long; 0 if they are unknown."""
        return _scaled(self.energy_j, rows) if self.energy_j else self.power_w * run_s

    def memory_of(self, rows: int) -> float:
        """Returns the bytes of a batch while it runs; 0 if they are unknown."""
        return _scaled(self.memory_bytes, rows)


def _scaled(known: Mapping[int, float], rows: int) -> float:
    """Returns the value of the next larger measured batch; beyond the largest one, in proportion to the rows."""
    if not known:
        return 0.0
    larger = [size for size in known if size >= rows]
    if larger:
        return known[min(larger)]
    return known[max(known)] * rows / max(known)
