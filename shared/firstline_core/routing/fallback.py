"""The fallback procedure: which of many hypotheses, in a fixed order, may be rejected at one delta for all of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray


class Stretch(NamedTuple):
    """Hypotheses in a row that were rejected at one level.

    Attributes:
        first, last: positions.
        level: at which they were.
    """

    first: int
    last: int
    level: float


def rejected(
    count: int,
    starts: Sequence[tuple[int, float]],
    delta: float,
    p_values: Callable[[int, int], NDArray[np.float64]],
) -> list[Stretch]:
    """Tests hypotheses 0 to count - 1 in this order.

    Each start brings its share of delta. A rejected hypothesis hands its level on to the next one, where a start adds
    its own; one that is not rejected keeps it, and testing goes on at the next start. With one start this is
    fixed-sequence testing. The probability that any true hypothesis is rejected is at most delta, whatever the
    dependence between the p-values, if order and shares do not depend on what is tested (Wiens 2003, "A Fixed Sequence
    Bonferroni Procedure"; Wiens and Dmitrienko 2005). Angelopoulos et al. 2021, "Learn then Test", control risks so.

    Args:
        count: hypotheses.
        starts: (position, share of delta), positions ascending, shares of at most 1 in all.
        delta: probability of any false rejection.
        p_values: those of hypotheses first to last - 1; asked for only where the testing comes by.

    Returns:
        What was rejected, in order.
    """
    found: list[Stretch] = []
    carried = 0.0
    for (first, share), (last, _) in pairwise([*starts, (count, 0.0)]):
        level = carried + share * delta
        failed = np.flatnonzero(p_values(first, last) > level)
        stop = first + int(failed[0]) if failed.size else last
        if stop > first:
            found.append(Stretch(first, stop - 1, level))
        carried = level if stop == last else 0.0
    return found
