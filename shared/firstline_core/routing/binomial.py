"""Exact binomial tails, in numpy alone and accurate up to a million trials.

Certificates use them: given the number of accepted answers, the errors among them are binomial.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from functools import lru_cache

import numpy as np
from numpy.typing import ArrayLike, NDArray

Floats = NDArray[np.float64]

_NEGLIGIBLE = 1e-17
_BLOCK = 64  # terms at a time
_LOG_2PI = math.log(2 * math.pi)
_MOST_TRIALS = 2**62 - 1


def cdf(errors: ArrayLike, trials: ArrayLike, rate: ArrayLike) -> Floats:
    """P(X <= errors) for X ~ Binomial(trials, rate), elementwise.

    Args:
        errors: whole numbers from 0.
        trials: whole numbers; 1 where errors >= trials.
        rate: above 0 and below 1.

    Returns:
        Array of the arguments' common shape, in [0, 1], with a relative error of about 1e-10 at most.
    """
    k, n, p = np.broadcast_arrays(*(np.asarray(each, np.float64) for each in (errors, trials, rate)))
    found = np.ones(k.shape)
    inside = k < n
    k, n, p = k[inside], n[inside], p[inside]
    low = k < n * p
    tail = np.empty(k.shape)
    if low.any():
        tail[low] = _lower_tail(k[low], n[low], p[low])
    if not low.all():
        tail[~low] = 1 - _lower_tail((n - k - 1)[~low], n[~low], 1 - p[~low])  # successes instead of errors
    found[inside] = np.clip(tail, 0, 1)
    return found


@lru_cache(maxsize=4096)  # one certification asks the same of many thresholds
def rows_needed(errors: int, rate: float, level: float) -> int:
    """Returns the fewest trials with `errors` errors whose Clopper-Pearson bound at `level` is at most `rate`.

    Without errors that is ln(1/level) / ln(1/(1 - rate)): 299 for 1 % at 95 %. At most 2**62 - 1.
    """

    def are_enough(trials: int) -> bool:
        return bool(cdf(errors, trials, rate) <= level)

    most = errors + 1
    while most < _MOST_TRIALS and not are_enough(most):
        most *= 2
    between = range(most // 2, most)
    return min(between.start + bisect_left(between, True, key=are_enough), _MOST_TRIALS)


def _lower_tail(k: Floats, n: Floats, rate: Floats) -> Floats:
    """P(X <= k) for k below the mean: P(X = k) times 1 + r_k + r_k r_(k-1) + ..., r_j being P(X = j - 1) / P(X = j).

    All terms are positive and fall at least geometrically, so that nothing cancels.
    """
    odds = ((1 - rate) / rate)[:, None]
    last, total = np.ones(k.shape), np.ones(k.shape)
    first = 0
    while (last > _NEGLIGIBLE * total).any():
        j = np.maximum(k[:, None] - np.arange(first, first + _BLOCK), 0)
        terms = last[:, None] * np.cumprod(j * odds / (n[:, None] - j + 1), axis=1)
        total += terms.sum(axis=1)
        last = terms[:, -1]
        first += _BLOCK
    return _pmf(k, n, rate) * total


def _pmf(k: Floats, n: Floats, rate: Floats) -> Floats:
    """P(X = k), by Loader 2000, "Fast and Accurate Computation of Binomial Probabilities".

    Differences of log-factorials would lose nine digits at a million trials; deviances lose none.
    """
    with np.errstate(divide="ignore", invalid="ignore"):
        log = (
            _stirling_error(n)
            - _stirling_error(k)
            - _stirling_error(n - k)
            - _deviance(k, n * rate)
            - _deviance(n - k, n * (1 - rate))
            + (np.log(n) - np.log(k) - np.log(n - k) - _LOG_2PI) / 2
        )
    log = np.where(k == 0, n * np.log1p(-rate), np.where(k == n, n * np.log(rate), log))
    return np.exp(log)


# ln(n!) less Stirling's approximation, exactly for small n, by its series beyond.
_SMALL = np.array([0.0] + [math.lgamma(n + 1) - ((n + 0.5) * math.log(n) - n + _LOG_2PI / 2) for n in range(1, 16)])


def _stirling_error(n: Floats) -> Floats:
    large = np.maximum(n, 16.0)
    square = large * large
    series = (1 / 12 - (1 / 360 - (1 / 1260 - 1 / 1680 / square) / square) / square) / large
    return np.where(n < 16, _SMALL[np.minimum(n, 15).astype(np.intp)], series)


def _deviance(x: Floats, mean: Floats) -> Floats:
    """Loader's D: x ln(x / mean) + mean - x, without cancellation where x is near the mean."""
    relative = (x - mean) / (x + mean)
    square = relative * relative
    # Loader's series: (x - mean) v + 2 x (v^3/3 + v^5/5 + ...), v the relative difference; 0.1^20 is below rounding.
    series = np.zeros(np.shape(x))
    for odd in range(21, 1, -2):
        series = (series + 1 / odd) * square
    near = (x - mean) * relative + 2 * x * relative * series
    return np.where(np.abs(relative) < 0.1, near, x * np.log(x / mean) + mean - x)
