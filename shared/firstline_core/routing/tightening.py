"""After an alarm: from which score on is an answer still good enough to keep?

Nothing is proved of the threshold that comes out: what is kept with it is not certified. It is where the audits say
that the edge model still agrees, and it is only ever stricter than the one before.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import ArrayLike, NDArray

from firstline_core.errors import ConfigError

EVERYTHING = math.inf
"""The threshold that escalates everything."""

_ODDS = 3.0  # a change is looked for as the middle one of the audits' bets would find it
_CLEAR = 10.0  # times the stake: less is won by chance, by a single loss that happens to be the latest


def since_change(losses: ArrayLike, weights: ArrayLike, epsilon: float) -> int:
    """Where the audits that broke the promise begin: old quiet ones say nothing of what the model does now.

    The start from which a bet against "risk <= epsilon" has won most by now: the maximum-likelihood start of a change
    (Page 1954, "Continuous Inspection Schemes"), for the odds of a loss being `_ODDS` times those of epsilon.

    Args:
        losses: (n,) in [0, 1], oldest first.
        weights: (n,) above 0 and at most 1, see `audit.py`.
        epsilon: the promise, above 0 and below 1.

    Returns:
        A position below n; 0 where no start has won tenfold, as no change is to be seen: the gateway may alarm for
        what other devices saw.
    """
    lost, heavy = np.asarray(losses, np.float64), np.asarray(weights, np.float64)
    if not len(lost):
        return 0
    bet = (_ODDS - 1) / (1 + epsilon * (_ODDS - 1))
    gains = np.log1p(bet * heavy * (lost - epsilon))
    won = np.cumsum(gains[::-1])[::-1]
    return int(np.argmax(won)) if won.max() > math.log(_CLEAR) else 0


def tightened(scores: ArrayLike, losses: ArrayLike, propensities: ArrayLike, epsilon: float, threshold: float) -> float:
    """The loosest threshold above the one in use whose audited answers keep the promise, or `EVERYTHING`.

    Every audit stands for the answers that were not drawn: it weighs 1 / propensity. One loss of the heaviest weight
    is added, which is what conformal risk control asks of so few rows (Angelopoulos et al. 2022, "Conformal Risk
    Control", equation 4): at 5 % it takes 19 audits without a loss to keep anything.

    Args:
        scores: (n,) of audited answers, oldest first; those below `threshold` do not count.
        losses: (n,) in [0, 1].
        propensities: (n,) with which they were drawn, above 0 and at most 1.
        epsilon: the promise, above 0 and below 1.
        threshold: the one in use, which was shown to be too loose.

    Raises:
        ConfigError: not as many of each.
    """
    found = np.asarray(scores, np.float64)
    lost, drawn = np.asarray(losses, np.float64), np.asarray(propensities, np.float64)
    if not found.shape == lost.shape == drawn.shape or found.ndim != 1:
        raise ConfigError(f"Audits have a score, a loss and a propensity each; got {found.shape}, {lost.shape}.")
    kept = found >= threshold
    found, lost, drawn = found[kept], lost[kept], drawn[kept]
    if not len(found):
        return EVERYTHING
    recent = slice(since_change(lost, drawn.min() / drawn, epsilon), None)
    return _loosest(found[recent], lost[recent], 1 / drawn[recent], epsilon, threshold)


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
    good = np.flatnonzero(last & (risks <= epsilon) & (scores > threshold))
    return float(scores[good[-1]]) if len(good) else EVERYTHING
