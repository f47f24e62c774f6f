"""A batch that an executor has: what was expected of it, and how long it will still take by that. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from firstline_core.types import ModelKey


@dataclass(slots=True, eq=False)
class Running:
    """A batch that an executor has, with what was expected of it when it was given."""

    key: ModelKey
    rows: int
    wait_s: float
    run_s: float | None
    pace: float
    started_s: float
    memory_bytes: float
    energy_j: float
    is_probe: bool = False

    @property
    def expected_s(self) -> float | None:
        return None if self.run_s is None else self.wait_s + self.run_s

    def left_s(self, now_s: float) -> float:
        """What it takes from when it has a slot; what takes longer than expected is to take as much longer again."""
        if self.run_s is None:
            return 0.0
        return abs(self.run_s - max(0.0, now_s - self.started_s - self.wait_s))

    def ran_s(self, now_s: float) -> float:
        """What it has had of a slot by now: of its time as much as was expected to be no wait."""
        took_s = now_s - self.started_s
        return took_s * self.run_s / self.expected_s if self.run_s and self.expected_s else took_s

    def overdue(self, now_s: float) -> float:
        """How many times what was expected it has taken already, at least 1."""
        expected_s = self.expected_s
        return max(1.0, (now_s - self.started_s) / expected_s) if expected_s else 1.0
