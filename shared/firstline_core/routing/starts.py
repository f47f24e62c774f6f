"""The starts of testing: a few thresholds, each with its share of delta, chosen independently of the tested losses.

Testing cannot start at the strictest threshold, which keeps one row and proves nothing. Most of delta starts at 20 %
kept, which is best on real pairs of models. The rest serves edge models that are good on few answers, or on nearly all.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

_MAIN = 0.2

START_SHARES = ((0.05, 0.08), (_MAIN, 0.86), (0.5, 0.03), (1.0, 0.03))
"""(share of the rows kept, share of delta)."""

FEWEST_ROWS = 60
"""Minimum number of rows of a start: 59 rows without error prove 5 % at 95 % confidence."""

_CELL_BITS = 20  # bits of a score that count: a float32 has 24, of which sums over many classes lose some


class Start(NamedTuple):
    """A threshold at which testing starts, with its share of delta."""

    threshold: float
    share: float


def start_shares(rows: int) -> tuple[tuple[float, float], ...]:
    """Returns `START_SHARES` for a number of rows; a start that would keep too few rows is merged into the main one."""
    fewest = min(FEWEST_ROWS / max(rows, 1), 1.0)
    return tuple((share if share >= fewest else max(fewest, _MAIN), of_delta) for share, of_delta in START_SHARES)


def ranks(rows: int) -> dict[int, float]:
    """Returns the number of rows that each start keeps, with its share of delta."""
    at: dict[int, float] = {}
    for kept, share in start_shares(rows):
        rank = _rank(kept, rows)
        at[rank] = at.get(rank, 0.0) + share
    return at


def cells_of(scores: NDArray[np.float64]) -> NDArray[np.float64]:
    """Returns equal numbers for scores that differ only by rounding, in the order of the scores.

    The most certain answers of a quantised softmax share one step of 1/256, but normalisation changes their last
    digits.
    """
    mantissas, exponents = np.frexp(scores)
    cells: NDArray[np.float64] = np.ldexp(np.rint(mantissas * 2**_CELL_BITS), exponents)
    return cells


def starts_at(scores: ArrayLike, shares: Sequence[tuple[float, float]] = START_SHARES) -> tuple[Start, ...]:
    """Returns the thresholds that keep these shares of the rows, or more if scores tie.

    Args:
        scores: (n,); a row with NaN is never kept.
        shares: (share of the rows kept, share of delta); those of delta are added for equal thresholds.
    """
    found = np.asarray(scores, np.float64)
    descending = np.sort(found[~np.isnan(found)])[::-1]
    at: dict[float, float] = {}
    if descending.size:
        for kept, share in shares:
            threshold = float(descending[min(_rank(kept, len(found)), len(descending)) - 1])
            at[threshold] = at.get(threshold, 0.0) + share
    return tuple(Start(threshold, min(share, 1.0)) for threshold, share in at.items())


def _rank(share: float, rows: int) -> int:
    return max(math.ceil(share * rows - 1e-9), 1)
