"""The binomial margin: how often a promise of "at most this often" may seem broken by luck alone."""

from __future__ import annotations

import numpy as np

from bench.figures import Figure
from firstline_core.routing import binomial

_SURE = 0.01  # a promise counts as broken when so many failures have less than this probability


def most(trials: int, rate: float) -> int:
    """The largest number of failures that a true rate of `rate` still explains."""
    at_least = 1 - binomial.cdf(np.arange(trials + 1) - 1, trials, rate)  # P(so many or more)
    return int(np.flatnonzero(at_least >= _SURE)[-1])


def at_most(figure: str, failures: int, trials: int, rate: float, trial: str) -> Figure:
    """The share of failures, held to `rate` and its margin.

    Args:
        figure: what failed.
        failures: of so many trials.
        trials: how many.
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
