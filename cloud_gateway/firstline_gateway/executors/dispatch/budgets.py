"""Memory and energy that one executor may take. Pure: times are arguments."""

from __future__ import annotations

import math

WINDOW_S = 60.0
"""The window of the energy budget: an executor may take that of a whole window at once, and then rests."""


class Energy:
    """The energy budget of an executor, as an average over a window.

    Args:
        budget_w: in watts, or 0 for no budget.

    Attributes:
        is_limited: whether there is a budget.
        spent_j: by all batches that ended.
    """

    def __init__(self, budget_w: float) -> None:
        self._budget_w = budget_w
        self._most_j = budget_w * WINDOW_S
        self._left_j = self._most_j
        self._at_s: float | None = None
        self.is_limited = budget_w > 0
        self.spent_j = 0.0

    def left_j(self, now_s: float) -> float:
        """Returns what a batch may take now. A batch that takes more than a whole window waits for a full one."""
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
        """A batch starts that is expected to take so much."""
        self.left_j(now_s)
        self._left_j -= joules

    def settle(self, reserved_j: float, joules: float, now_s: float) -> None:
        """A batch ended for which something was reserved, and took so much."""
        self.reserve(joules - reserved_j, now_s)
        self.spent_j += joules

    def wait_s(self, joules: float, now_s: float) -> float:
        """Returns the seconds until a batch may take so much."""
        if self.left_j(now_s) >= joules:
            return 0.0
        return (min(joules, self._most_j) - self._left_j) / self._budget_w


class Memory:
    """The memory budget of an executor, for its models and running batches.

    Args:
        budget_bytes: 0 for no budget.

    Attributes:
        is_limited: whether there is a budget.
        models_bytes: of its models.
        batches_bytes: of its running batches.
    """

    def __init__(self, budget_bytes: int) -> None:
        self._budget_bytes = budget_bytes
        self.is_limited = budget_bytes > 0
        self.models_bytes = 0
        self.batches_bytes = 0.0

    @property
    def free_bytes(self) -> float:
        """Bytes that are left; infinite without a budget."""
        if not self._budget_bytes:
            return math.inf
        return self._budget_bytes - self.models_bytes - self.batches_bytes

    def fits(self, size_bytes: float) -> bool:
        """Returns whether there is room for a model, or for a batch while no other runs."""
        return not self._budget_bytes or self.models_bytes + size_bytes <= self._budget_bytes
