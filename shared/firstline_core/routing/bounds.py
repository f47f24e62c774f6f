"""Tests of "the mean loss is at most this" for losses anywhere in [0, 1], for which the binomial tail is not valid.

Also the bounds that such tests prove, and the exact bound of a rate of errors.
Every p-value here is valid for any distribution of independent losses and any sample size. It decreases as the tested
mean increases: a proof at 2 % is also one at 5 %.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from numpy.typing import ArrayLike, NDArray

from firstline_core.routing.binomial import cdf

Floats = NDArray[np.float64]

_TINY = 1e-300
_LARGEST_BET = 0.75  # of the bet that could lose everything


def hoeffding_bentkus(total: ArrayLike, rows: ArrayLike, mean: float) -> Floats:
    """Returns p-values of "the true mean loss is above `mean`" from the sum of the losses, elementwise.

    The smaller of Hoeffding's relative-entropy bound and e times the binomial tail (Bentkus 2004), as Bates et al.
    2021, "Distribution-Free, Risk-Controlling Prediction Sets", combine them.

    Args:
        total: sum of the losses, each in [0, 1].
        rows: number of losses.
        mean: above 0 and below 1.
    """
    lost, n = np.broadcast_arrays(np.asarray(total, np.float64), np.asarray(rows, np.float64))
    seen = np.minimum(lost / np.maximum(n, 1), mean)
    entropy = seen * np.log(np.maximum(seen, _TINY) / mean) + (1 - seen) * np.log((1 - seen) / (1 - mean))
    # Rounded first: a sum of thirds that should be 2 must not be taken for 3.
    bentkus = math.e * cdf(np.ceil(np.round(lost, 9)), n, mean)
    p_values: Floats = np.minimum(1.0, np.minimum(np.exp(-n * entropy), bentkus))
    return p_values


def betting(losses: Floats, mean: float) -> float:
    """Returns the p-value of "the true mean loss is above `mean`" from the wealth of a player who bets against it.

    The player bets that each loss is below `mean`, which multiplies the wealth by 1 + bet * (mean - loss) / (1 - mean).
    If the true mean is above, the wealth ever reaches 1/p times the stake with a probability of at most p (Ville 1939),
    for any bets below 1 that depend on earlier losses only. Waudby-Smith and Ramdas 2024, "Estimating Means of Bounded
    Random Variables by Betting", section 4: their predictable plug-in bets, which are large if losses vary little, but
    always tuned for 95 % and independent of `mean`, so that the p-value decreases in `mean`.

    Args:
        losses: (n,) in [0, 1], independent, in an order that does not depend on them.
        mean: above 0 and below 1.
    """
    if len(losses) == 0:
        return 1.0
    seen = np.arange(1, len(losses))
    # Half a loss before the first one gives an initial mean and variance.
    means = np.append(0.5, (0.5 + np.cumsum(losses[:-1])) / (seen + 1))
    variances = np.append(0.25, (0.25 + np.cumsum((losses[:-1] - means[1:]) ** 2)) / (seen + 1))
    bets = np.minimum(_LARGEST_BET, np.sqrt(2 * math.log(20) / (len(losses) * variances)) * (1 - means))
    wealth = np.cumsum(np.log1p(bets * (mean - losses) / (1 - mean)))
    return math.exp(-max(0.0, float(wealth.max())))


def rows_needed_by_betting(loss: float, mean: float, level: float) -> int:
    """Returns the fewest losses, all equal to `loss`, for which `betting` can show at `level` a mean of at most `mean`.

    Args:
        loss: in [0, mean).
        mean: above 0 and below 1.
        level: above 0 and below 1.
    """
    return math.ceil(-math.log(level) / math.log1p(_LARGEST_BET * (mean - loss) / (1 - mean)))


def upper_bound(p_value: Callable[[float], float], level: float) -> float:
    """Returns the smallest mean that is shown at `level`; the true mean lies above it with probability at most `level`.

    Args:
        p_value: of "the true mean is above this".
        level: above 0 and below 1.
    """
    low, high = 0.0, 1.0
    while high - low > 1e-10 * high:
        middle = (low + high) / 2
        if p_value(middle) > level:
            low = middle
        else:
            high = middle
    return high


def clopper_pearson(errors: int, trials: int, level: float) -> float:
    """Returns the Clopper-Pearson bound: the largest rate at which this few errors have probability `level`.

    Clopper and Pearson 1934, "The Use of Confidence or Fiducial Limits". The true rate lies above the bound with
    probability at most `level`. Without errors it is 1 - level ** (1 / trials).
    """
    return upper_bound(lambda rate: float(cdf(errors, trials, rate)), level)
