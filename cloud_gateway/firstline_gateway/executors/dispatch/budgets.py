"""Memory and energy that one executor may take. Pure: times are handed in."""

from __future__ import annotations

import math

WINDOW_S = 60.0
"""Over so long an executor may take the energy of its budget as it comes: a burst, and then rest."""


class Energy:
    """What an executor may draw, as an average over a minute.

    Args:
        budget_w: in watts; 0 is no budget.
    """

    def __init__(self, budget_w: float) -> None:
        self._budget_w = budget_w
        self._most_j = budget_w * WINDOW_S
        self._left_j = self._most_j
        self._at_s: float | None = None
        self.spent_j = 0.0

    @property
    def is_limited(self) -> bool:
        """Whether there is a budget."""
        return self._budget_w > 0

    def left_j(self, now_s: float) -> float:
        """What a batch may take now. A batch that takes more than the whole minute's waits for all of that."""
        if not self._budget_w:
            return math.inf
        if self._at_s is not None:
            self._left_j = min(self._most_j, self._left_j + max(0.0, now_s - self._at_s) * self._budget_w)
        self._at_s = now_s
        return math.inf if self._left_j >= self._most_j else self._left_j

    def spend(self, joules: float, now_s: float) -> None:
        """A batch took so much."""
        self.reserve(joules, now_s)
        self.spent_j += joules

    def reserve(self, joules: float, now_s: float) -> None:
        """A batch is begun that is expected to take so much."""
        self.left_j(now_s)
        self._left_j -= joules

    def settle(self, reserved_j: float, joules: float, now_s: float) -> None:
        """A batch has ended for which something was reserved, and took so much."""
        self.reserve(joules - reserved_j, now_s)
        self.spent_j += joules

    def wait_s(self, joules: float, now_s: float) -> float:
        """Seconds until a batch may take so much."""
        if self.left_j(now_s) >= joules:
            return 0.0
        return (min(joules, self._most_j) - self._left_j) / self._budget_w


class Memory:
    """What an executor's models and the batches under way take of its memory.

    Args:
        budget_bytes: 0 is no budget.
    """

    def __init__(self, budget_bytes: int) -> None:
        self._budget_bytes = budget_bytes
        self.models_bytes = 0
        self.batches_bytes = 0.0

    @property
    def is_limited(self) -> bool:
        """Whether there is a budget."""
        return self._budget_bytes > 0

    @property
    def free_bytes(self) -> float:
        if not self._budget_bytes:
            return math.inf
        return self._budget_bytes - self.models_bytes - self.batches_bytes

    def fits(self, size_bytes: float) -> bool:
        """Whether there would be room for a batch if no other ran, or for a model beside those that are there."""
        return not self._budget_bytes or self.models_bytes + size_bytes <= self._budget_bytes
