"""A sample of durations in bounded form, from which durations can be drawn."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import numpy as np
from msgspec import Meta, Struct
from numpy.typing import NDArray

STEPS = 200
"""Quantiles are kept in steps of half a percent: p99 is one of them."""
STALL = 5.0
"""A query of more medians stalled: model, caches and clock do not explain it."""
_DIGITS = 5
_STEEPEST = 1e4  # power of the last step

Milliseconds = Annotated[float, Meta(ge=0, le=1e9)]


class Distribution(Struct, frozen=True):
    """Durations.

    Attributes:
        count: number of measured durations.
        mean_ms: their mean.
        quantiles_ms: at the shares 0, 1/200, ..., 1; the first is the shortest duration, the last the longest.
    """

    count: Annotated[int, Meta(ge=1, le=2**53)]
    mean_ms: Milliseconds
    quantiles_ms: Annotated[tuple[Milliseconds, ...], Meta(min_length=STEPS + 1, max_length=STEPS + 1)]

    def __post_init__(self) -> None:
        if any(later < earlier for earlier, later in zip(self.quantiles_ms, self.quantiles_ms[1:], strict=False)):
            raise ValueError("quantiles of durations cannot decrease")

    @property
    def p50_ms(self) -> float:
        return self.quantile_ms(0.5)

    @property
    def p90_ms(self) -> float:
        return self.quantile_ms(0.9)

    @property
    def p99_ms(self) -> float:
        return self.quantile_ms(0.99)

    @property
    def usual_ms(self) -> float:
        """The mean with longer durations counted as `STALL` medians, so that a few dozen queries suffice."""
        steps = np.minimum(self.quantiles_ms, STALL * self.p50_ms)
        return float((steps[:-1] + steps[1:]).mean() / 2)

    def quantile_ms(self, share: float) -> float:
        """Returns the quantile at a share (0 to 1), interpolated between the steps."""
        return float(self.at(np.array([share]))[0])

    def at(self, shares: NDArray[np.float64]) -> NDArray[np.float64]:
        """Returns the durations at these shares; uniformly random shares give random durations of this distribution.

        The interpolation is linear except in the last step, where one stall among thousands would count for half of the
        step's queries. There it follows the power of the share that preserves the measured mean.
        """
        last = shares * STEPS - (STEPS - 1)
        below, longest = self.quantiles_ms[-2:]
        tail = below + (longest - below) * np.clip(last, 0, 1) ** self._tail_power
        return np.where(last > 0, tail, np.interp(shares * STEPS, np.arange(STEPS + 1), self.quantiles_ms))

    @property
    def _tail_power(self) -> float:
        """The k of u ** k, whose mean over (0, 1) is 1 / (k + 1)."""
        quantiles = np.asarray(self.quantiles_ms)
        below, longest = quantiles[-2:]
        body = float((quantiles[:-2] + quantiles[1:-1]).sum() / 2)  # of STEPS - 1 steps, times STEPS
        above = self.mean_ms * STEPS - body - below
        return min(max((longest - below) / above - 1, 0.0), _STEEPEST) if above > 0 else _STEEPEST


def distribution(seconds: Sequence[float] | NDArray[np.float64]) -> Distribution:
    """Returns the distribution of measured durations.

    Args:
        seconds: at least one duration.
    """
    milliseconds = np.asarray(seconds, np.float64) * 1000
    found = np.quantile(milliseconds, np.linspace(0, 1, STEPS + 1))
    return Distribution(
        len(milliseconds), _rounded(float(milliseconds.mean())), tuple(_rounded(float(one)) for one in found)
    )


def _rounded(value: float) -> float:
    """Rounds to the precision of a clock; monotonic, so quantiles stay in order."""
    return float(f"{value:.{_DIGITS}g}")
