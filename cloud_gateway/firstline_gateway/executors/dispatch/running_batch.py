"""A batch on an executor: its expected times, and the time that is left. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from firstline_core.types import ModelKey


@dataclass(slots=True, eq=False)
class RunningBatch:
    """A batch on an executor.

    Args:
        key: its model.
        rows: of the batch.
        wait_s: expected wait for a slot, from `started_s` on.
        run_s: expected seconds in the slot, or None if the model was never measured there.
        pace: of the executor at the start; see `Forecast`.
        started_s: when the executor was given it.
        memory_bytes: reserved for it.
        energy_j: reserved for it.
        is_probe: whether it is a copy that only measures the executor.
    """

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
        """Expected seconds from the start to the answer."""
        return None if self.run_s is None else self.wait_s + self.run_s

    def left_s(self, now_s: float) -> float:
        """Returns the expected seconds left in its slot. An overdue batch is expected to take as much longer again."""
        if self.run_s is None:
            return 0.0
        return abs(self.run_s - max(0.0, now_s - self.started_s - self.wait_s))

    def ran_s(self, now_s: float) -> float:
        """Returns the seconds that it had a slot: the expected share of the time that passed."""
        took_s = now_s - self.started_s
        return took_s * self.run_s / self.expected_s if self.run_s and self.expected_s else took_s

    def overdue(self, now_s: float) -> float:
        """Returns the time that passed in multiples of the expected time, at least 1."""
        expected_s = self.expected_s
        return max(1.0, (now_s - self.started_s) / expected_s) if expected_s else 1.0
