"""The smallest difference that a stage can see: before it begins for the plan, and while it runs for the verdict."""

from __future__ import annotations

import math
from statistics import NormalDist

import numpy as np

from firstline_gateway.rollouts.judgement.permutation import Groups, adjusted

_NORMAL = NormalDist()
POWER = 0.9
"""With this probability a difference as large as said is found."""


def standard_error(groups: Groups) -> float:
    """Of the difference of the weighted means, from the spread within the groups; infinite of fewer than two each."""
    values, weights, squares = adjusted(groups, 0.0), groups.weights, 0.0
    for chosen in groups.arms:
        if chosen.sum() < 2:
            return math.inf
        weight = weights[chosen] / weights[chosen].sum()
        away = values[chosen] - float(np.sum(weight * values[chosen]))
        count = int(chosen.sum())
        squares += float(np.sum((weight * away) ** 2)) * count / (count - 1)
    return math.sqrt(squares)


def spread_error(spread: float, treated: int, control: int) -> float:
    """The same foretold: from one standard deviation of the figure between devices, and the groups' sizes."""
    return spread * math.sqrt(1 / treated + 1 / control) if treated and control else math.inf


def smallest_seen(error: float, level: float, divisions: float = math.inf) -> float:
    """How much beyond the tolerance the true difference must be to be found with probability `POWER`.

    By the normal approximation, which is only for foretelling: no verdict to abort rests on it.

    Args:
        error: standard error of the difference.
        level: p-value that decides.
        divisions: how many divisions of the devices there are; where 1 / divisions is above the level, nothing is seen.
    """
    if 1 / divisions > level or not math.isfinite(error):
        return math.inf
    return (_NORMAL.inv_cdf(1 - level) + _NORMAL.inv_cdf(POWER)) * error


def divisions(treated: int, control: int) -> float:
    """In how many ways chance could have divided the devices."""
    if not treated or not control:
        return 1.0
    log = math.lgamma(treated + control + 1) - math.lgamma(treated + 1) - math.lgamma(control + 1)
    return math.exp(min(log, 700.0))
