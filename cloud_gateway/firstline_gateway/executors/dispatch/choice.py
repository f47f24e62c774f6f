"""The executor with the earliest predicted completion of a batch, within the budgets. Pure.

The prediction counts the batches under way and the batch itself, so that work spreads in the proportion of the speeds
("shortest expected delay", Banawan and Zahorjan, INFOCOM 1989; with one server each, the rule of HEFT: Topcuoglu et
al., IEEE TPDS 2002). Each choice adds to the batches under way, which the next choice counts. So many batches at the
same moment do not all go to the same executor, and no hysteresis is needed.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Hashable, Iterable
from dataclasses import dataclass
from typing import Generic, TypeVar

E = TypeVar("E", bound=Hashable)


@dataclass(frozen=True, slots=True)
class Candidate(Generic[E]):
    """An executor, as it is for one batch.

    Args:
        executor: the executor.
        wait_s: until a slot is free there; see `wait_s`.
        run_s: of the batch in the slot; None if it is unknown.
        under_way: batches that it has now.
        trusted: whether it is not ejected; see `health.py`.
        memory_bytes: of the batch while it runs.
        free_bytes: of its memory budget; infinite without one.
        energy_j: of the batch.
        left_j: of its energy budget at the moment; infinite without one.
    """

    executor: E
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
        """Whether the batch is within its budgets. A batch without a cost fits into an overdrawn budget."""
        return self.memory_bytes <= self.free_bytes and self.energy_j <= max(0.0, self.left_j)

    @property
    def done_s(self) -> float:
        """Seconds until the batch would complete; infinite if that is unknown."""
        return math.inf if self.run_s is None else self.wait_s + self.run_s


def choose(candidates: Iterable[Candidate[E]]) -> Candidate[E] | None:
    """Returns the candidate for a batch, or None if it is within the budgets of none.

    Of those that fit, the trusted come first, then the earliest. Equals take turns by their batches under way. One that
    was never measured comes last; probes measure it (`health.py`).
    """
    fitting = [each for each in candidates if each.fits]
    return min(fitting, key=_rank, default=None)


def _rank(candidate: Candidate[E]) -> tuple[bool, float, int]:
    return not candidate.trusted, candidate.done_s, candidate.under_way


def wait_s(left_s: Iterable[float], slots: int) -> float:
    """Returns the seconds until a slot is free; see `free_s`."""
    return free_s(left_s, slots)[0]


def free_s(left_s: Iterable[float], slots: int) -> list[float]:
    """Returns the seconds until each slot is free, the least first; batches start in the order of their arrival.

    Args:
        left_s: seconds that each batch under way will still take in its slot, in the order of their arrival.
        slots: that run side by side, at least 1.
    """
    free = [0.0] * slots
    for each in left_s:
        heapq.heapreplace(free, free[0] + each)
    return free
