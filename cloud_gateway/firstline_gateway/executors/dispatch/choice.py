"""Which of several executors a batch goes to: whoever is expected to be done first, within the budgets. Pure.

Expected completion counts what is under way there and what the batch itself takes there, so that work spreads by
itself in the proportion of their speeds ("shortest expected delay", Banawan and Zahorjan, INFOCOM 1989; with one
server each, HEFT's rule: Topcuoglu et al., IEEE TPDS 2002). As each choice adds to what is under way, the next one sees
it: many batches at the same moment do not all run to the same executor, and no hysteresis is needed.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Hashable, Iterable
from dataclasses import dataclass
from typing import Generic, TypeVar

Name = TypeVar("Name", bound=Hashable)


@dataclass(frozen=True, slots=True)
class Candidate(Generic[Name]):
    """An executor, as it is for one batch.

    Args:
        name: whatever tells it from the others.
        wait_s: until a slot is free there; see `wait_s`.
        run_s: that the batch takes there then; None where nothing is known yet.
        under_way: batches that it has now.
        trusted: whether it answers as it should; see `standing.py`.
        memory_bytes: that the batch takes while it runs.
        free_bytes: of its memory budget; infinite without one.
        energy_j: that the batch takes.
        left_j: of its energy budget at the moment; infinite without one.
    """

    name: Name
    wait_s: float
    run_s: float | None
    under_way: int = 0
    trusted: bool = True
    memory_bytes: float = 0.0
    free_bytes: float = math.inf
    energy_j: float = 0.0
    left_j: float = math.inf

    @property
    def fits(self) -> bool:
        """Whether the batch is within its budgets."""
        # What takes nothing is within a budget that another batch has overdrawn.
        return self.memory_bytes <= self.free_bytes and self.energy_j <= max(0.0, self.left_j)

    @property
    def done_s(self) -> float:
        """Seconds until it would be done; infinite where nobody can tell."""
        return math.inf if self.run_s is None else self.wait_s + self.run_s


def choose(candidates: Iterable[Candidate[Name]]) -> Candidate[Name] | None:
    """The one to give a batch to; None where it is within nobody's budgets.

    Of those that fit, the trusted come first, then the earliest. Equals take turns by what they have under way; what
    was never measured comes last, and is got to know by copies (`standing.py`).
    """
    fitting = [each for each in candidates if each.fits]
    return min(fitting, key=_rank, default=None)


def _rank(candidate: Candidate[Name]) -> tuple[bool, float, int]:
    return not candidate.trusted, candidate.done_s, candidate.under_way


def wait_s(left_s: Iterable[float], slots: int) -> float:
    """Seconds until a slot is free; see `free_s`."""
    return free_s(left_s, slots)[0]


def free_s(left_s: Iterable[float], slots: int) -> list[float]:
    """Seconds until each slot is free, where batches begin in the order in which they came; the least is the first.

    Args:
        left_s: seconds that each batch under way will still take once it has a slot, in the order of their coming.
        slots: that run side by side, at least 1.
    """
    free = [0.0] * slots
    for each in left_s:
        heapq.heapreplace(free, free[0] + each)
    return free
