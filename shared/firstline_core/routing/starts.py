"""Where testing begins: at a few thresholds, each with its share of delta, none of them chosen by the losses tested.

Testing cannot begin at the strictest threshold, which keeps one row and shows nothing. Most of delta begins at 20 %
kept, which wins most on real pairs; the rest is for edge models that are good on few answers only, or on nearly all.
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
"""That a start keeps: 59 are the fewest that show 5 % at 95 %."""

_CELL_BITS = 20  # of a score: a float32 has 24, of which sums over many classes lose some


class Start(NamedTuple):
    """Testing begins here, with this share of delta."""

    threshold: float
    share: float


def start_shares(rows: int) -> tuple[tuple[float, float], ...]:
    """`START_SHARES` for so many rows: a start that would keep too few of them to show anything joins the main one."""
    fewest = min(FEWEST_ROWS / max(rows, 1), 1.0)
    return tuple((share if share >= fewest else max(fewest, _MAIN), of_delta) for share, of_delta in START_SHARES)


def ranks(rows: int) -> dict[int, float]:
    """How many of so many rows each start keeps, with its share of delta."""
    at: dict[int, float] = {}
    for kept, share in start_shares(rows):
        rank = _rank(kept, rows)
        at[rank] = at.get(rank, 0.0) + share
    return at


def cells_of(scores: NDArray[np.float64]) -> NDArray[np.float64]:
    """The same number for scores that only rounding tells apart, in the same order.

    A quantised softmax's surest answers are one step of 1/256, yet normalising its rows leaves several last digits.
    """
    mantissas, exponents = np.frexp(scores)
    cells: NDArray[np.float64] = np.ldexp(np.rint(mantissas * 2**_CELL_BITS), exponents)
    return cells


def starts_at(scores: ArrayLike, shares: Sequence[tuple[float, float]] = START_SHARES) -> tuple[Start, ...]:
    """The thresholds that keep these shares of the rows, or more where scores tie.

    Args:
        scores: (n,); NaN counts as a row that is never kept.
        shares: (share of the rows kept, share of delta); those of delta add up where thresholds fall together.
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
