"""How much accuracy a candidate loses against the model that it was made of: what was seen, and the most it may be.

Both answered the same rows, so that only those count where one is right and the other wrong: what both know or both
miss says nothing of the difference. Pure; the rows come from `trial.py`.
"""

from __future__ import annotations

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from firstline_core.routing import binomial


class Loss(Struct, frozen=True):
    """Against one other model, on the same rows.

    Attributes:
        lost: rows that the other model has right and this one wrong.
        won: rows the other way round.
        rows: all of them.
        seen: share of accuracy that was lost on them; below 0 where it was gained.
        at_most: share that is lost on what such rows are drawn from; wrong with probability `delta` at most.
        delta: see `at_most`; where several models are judged, of all their bounds together.
    """

    lost: int
    won: int
    rows: int
    seen: float
    at_most: float
    delta: float


def loss(right: NDArray[np.bool_], was_right: NDArray[np.bool_], *, delta: float, among: int = 1) -> Loss:
    """What one model loses against another.

    Args:
        right: (n,) whether it names the class, n at least 1.
        was_right: (n,) whether the other does, of the same rows.
        delta: that none of `among` such bounds is wrong.
        among: how many models are judged on these rows: the rows choose among them, so delta is shared out evenly.
    """
    lost, won = int((was_right & ~right).sum()), int((right & ~was_right).sum())
    return Loss(
        lost, won, len(right), (lost - won) / len(right), most_lost(lost, won, len(right), delta / among), delta
    )


def most_lost(lost: int, won: int, rows: int, level: float) -> float:
    """An upper bound of the share lost less the share won, above which the true difference lies at most at `level`.

    Half of the level goes to each share's exact bound (Clopper and Pearson 1934): the lost at most, the won at least.
    It holds at any number of rows and for any two models, which the tighter bounds by scores (Tango 1998) do not.
    """
    at_least_won = 1 - binomial.upper_bound(rows - won, rows, level / 2)
    return binomial.upper_bound(lost, rows, level / 2) - at_least_won
