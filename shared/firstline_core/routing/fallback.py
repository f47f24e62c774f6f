"""The fallback procedure: tests many hypotheses in a fixed order with one delta for all of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray


class RejectedRange(NamedTuple):
    """Consecutive hypotheses that were rejected at one level.

    Attributes:
        first, last: positions.
        level: of the rejection.
    """

    first: int
    last: int
    level: float


def rejected_ranges(
    count: int,
    starts: Sequence[tuple[int, float]],
    delta: float,
    p_values: Callable[[int, int], NDArray[np.float64]],
) -> list[RejectedRange]:
    """Tests hypotheses 0 to count - 1 in this order.

    Each start adds its share of delta. A rejected hypothesis passes its level on to the next one; otherwise the level
    is used up, and testing continues at the next start. With one start this is fixed-sequence testing. The probability
    that any true hypothesis is rejected is at most delta, whatever the dependence between the p-values, if order and
    shares do not depend on what is tested (Wiens 2003, "A Fixed Sequence Bonferroni Procedure"; Wiens and Dmitrienko
    2005). Angelopoulos et al. 2021, "Learn then Test", control risks in this way.

    Args:
        count: number of hypotheses.
        starts: (position, share of delta), positions ascending, shares of at most 1 in all.
        delta: probability of any false rejection.
        p_values: returns those of hypotheses first to last - 1; called only for hypotheses that are tested.

    Returns:
        The rejected hypotheses, in order.
    """
    found: list[RejectedRange] = []
    carried = 0.0
    for (first, share), (last, _) in pairwise([*starts, (count, 0.0)]):
        level = carried + share * delta
        failed = np.flatnonzero(p_values(first, last) > level)
        stop = first + int(failed[0]) if failed.size else last
        if stop > first:
            found.append(RejectedRange(first, stop - 1, level))
        carried = level if stop == last else 0.0
    return found
