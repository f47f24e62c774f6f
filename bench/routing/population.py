"""A pool used as the population, so that true risks are known, and the binomial margin of a promise."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from bench.figures import Figure
from firstline_core.routing import binomial
from firstline_core.tasks.base import Scores


@dataclass(frozen=True, slots=True)
class Population:
    """Every threshold that makes a difference, with the share it truly keeps and its true risk; strict to loose."""

    thresholds: NDArray[np.float64]
    shares: NDArray[np.float64]
    risks: NDArray[np.float64]

    @classmethod
    def of(
        cls,
        scores: Scores,
        losses: NDArray[np.bool_] | NDArray[np.float64],
        weights: NDArray[np.float64] | None = None,
    ) -> Population:
        """Returns the population of rows, each with its weight; without weights all count alike."""
        weights = np.ones(len(scores)) if weights is None else weights
        values, codes = np.unique(-scores.astype(np.float64), return_inverse=True)
        cumulative = np.cumsum(np.bincount(codes, weights=weights))
        return cls(
            -values, cumulative / weights.sum(), np.cumsum(np.bincount(codes, weights=losses * weights)) / cumulative
        )

    def at(self, threshold: float) -> tuple[float, float]:
        """True share kept and true risk."""
        last = int(np.searchsorted(-self.thresholds, -threshold, side="right")) - 1
        return (float(self.shares[last]), float(self.risks[last])) if last >= 0 else (0.0, 0.0)

    def oracle(self, epsilon: float) -> float:
        """The largest share that any threshold of a risk of at most epsilon keeps."""
        return float(self.shares[self.risks <= epsilon].max(initial=0.0))

    def loosest(self, epsilon: float) -> float | None:
        """The loosest threshold of a risk of at most epsilon; None where there is none."""
        passing = np.flatnonzero(self.risks <= epsilon)
        return float(self.thresholds[passing[-1]]) if passing.size else None


_SURE = 0.01  # a promise counts as broken if its failures, or more, have less than this probability


def most(trials: int, rate: float) -> int:
    """The largest number of failures that a true rate of `rate` still explains."""
    at_least = 1 - binomial.cdf(np.arange(trials + 1) - 1, trials, rate)  # P(this many or more)
    return int(np.flatnonzero(at_least >= _SURE)[-1])


def at_most(figure: str, failures: int, trials: int, rate: float, trial: str) -> Figure:
    """The share of failures, held to `rate` and its margin.

    Args:
        figure: what failed.
        failures: number of failures.
        trials: number of trials.
        rate: what was promised.
        trial: what one of many is called: "calibrations".
    """
    allowed = most(trials, rate)
    return Figure(
        figure,
        failures / trials,
        f"share of {trial}",
        f"<= {allowed / trials:g}, that is {rate:g} and its binomial margin over {trials} {trial}",
        failures <= allowed,
    )
