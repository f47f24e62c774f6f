"""The threshold after an alarm: the score from which edge answers are still good enough.

The resulting threshold is not certified. It is the score from which the audits show that the edge model still agrees,
and it is always stricter than the one before.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import ArrayLike, NDArray

from firstline_core.errors import ConfigError

EVERYTHING = math.inf
"""The threshold that escalates everything."""

_ODDS = 3.0  # a change is detected with the middle one of the audits' bets
_CLEAR = 10.0  # times the stake: a smaller gain can be due to a single recent loss


def since_change(losses: ArrayLike, weights: ArrayLike, epsilon: float) -> int:
    """Returns the position of the first audit after the change.

    Older audits do not describe the present behaviour.

    It is the start from which a bet against "risk <= epsilon" has won most: the maximum-likelihood start of a change
    (Page 1954, "Continuous Inspection Schemes"), for the odds of a loss being `_ODDS` times those of epsilon.

    Args:
        losses: (n,) in [0, 1], oldest first.
        weights: (n,) above 0 and at most 1, see `audit.py`.
        epsilon: the contract's bound, above 0 and below 1.

    Returns:
        A position below n; 0 if no start has won tenfold, because then no change is visible here: the gateway may raise
        an alarm because of other devices.
    """
    loss_array, weight_array = np.asarray(losses, np.float64), np.asarray(weights, np.float64)
    if not len(loss_array):
        return 0
    bet = (_ODDS - 1) / (1 + epsilon * (_ODDS - 1))
    gains = np.log1p(bet * weight_array * (loss_array - epsilon))
    gain_since = np.cumsum(gains[::-1])[::-1]
    return int(np.argmax(gain_since)) if gain_since.max() > math.log(_CLEAR) else 0


def tightened(scores: ArrayLike, losses: ArrayLike, propensities: ArrayLike, epsilon: float, threshold: float) -> float:
    """Returns the loosest threshold above the one in use whose audited answers satisfy the contract, or `EVERYTHING`.

    Every audit also represents the answers that were not audited: its weight is 1 / propensity. One loss of the largest
    weight is added, as conformal risk control requires for few rows (Angelopoulos et al. 2022, "Conformal Risk
    Control", equation 4): at 5 % it takes 19 audits without a loss to accept anything.

    Args:
        scores: (n,) of audited answers, oldest first; those below `threshold` do not count.
        losses: (n,) in [0, 1].
        propensities: (n,) with which they were drawn, above 0 and at most 1.
        epsilon: the contract's bound, above 0 and below 1.
        threshold: the one in use, which is too loose.

    Raises:
        ConfigError: the arrays have different lengths.
    """
    score_array = np.asarray(scores, np.float64)
    loss_array, propensity_array = np.asarray(losses, np.float64), np.asarray(propensities, np.float64)
    if not score_array.shape == loss_array.shape == propensity_array.shape:
        raise ConfigError(
            f"Audits have a score, a loss and a propensity each; got {score_array.shape}, {loss_array.shape}."
        )
    accepted = score_array >= threshold
    score_array, loss_array, propensity_array = score_array[accepted], loss_array[accepted], propensity_array[accepted]
    if not len(score_array):
        return EVERYTHING
    recent = slice(since_change(loss_array, propensity_array.min() / propensity_array, epsilon), None)
    return _loosest(score_array[recent], loss_array[recent], 1 / propensity_array[recent], epsilon, threshold)


def _loosest(
    scores: NDArray[np.float64],
    losses: NDArray[np.float64],
    weights: NDArray[np.float64],
    epsilon: float,
    threshold: float,
) -> float:
    order = np.argsort(-scores, kind="stable")
    scores, losses, weights = scores[order], losses[order], weights[order]
    heaviest = weights.max()
    risks = (np.cumsum(weights * losses) + heaviest) / (np.cumsum(weights) + heaviest)
    # Answers of equal score are kept or dropped together: a threshold is the last of its equals.
    last = np.append(scores[1:] < scores[:-1], True)
    accepted_at = np.flatnonzero(last & (risks <= epsilon) & (scores > threshold))
    return float(scores[accepted_at[-1]]) if len(accepted_at) else EVERYTHING
