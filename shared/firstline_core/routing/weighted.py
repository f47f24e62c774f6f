"""Certifying on rows that were drawn with different probabilities, such as a device's audits.

A row that was drawn with probability p stands for 1 / p rows: its weight w is in proportion to that, scaled so that the
largest is 1. The risk at a threshold is then E[w * loss] / E[w] over the rows drawn that it keeps, and

    risk > epsilon    if and only if    E[y] > epsilon,    y = epsilon + w * (loss - epsilon).

Each y lies in [0, 1], so that whatever shows "the mean of y is at most epsilon" shows the same of the risk: bets, or
Hoeffding-Bentkus where there are many rows. Equal weights leave the losses as they are, and the test exact. An upper
bound of the mean of y, where it is below epsilon, is one of the risk too, for E[w] is at most 1.

The weights must come from the draw alone: given a row's score and weight, whether it is wrong has no part in whether it
was drawn.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import ArrayLike

from firstline_core.errors import ConfigError
from firstline_core.routing.certification import Proof, certify, check_share, split


def certify_weighted(
    scores: ArrayLike,
    losses: ArrayLike,
    weights: ArrayLike,
    epsilon: float,
    delta: float,
    *,
    select_fraction: float = 0.0,
    seed: int = 0,
) -> Proof:
    """Finds the loosest threshold that the rows certify of the population that they were drawn from.

    Args:
        scores: (n,), higher means keep.
        losses: (n,) in [0, 1].
        weights: (n,) above 0, in proportion to 1 / propensity.
        epsilon: as for `certify`.
        delta: as for `certify`.
        select_fraction: as for `certify`.
        seed: as for `certify`.

    Returns:
        As `certify` does; `kept` is the share of the population.

    Raises:
        ConfigError: as for `certify`, or a weight that is none.
    """
    check_share("epsilon", epsilon)
    sure, lost, heavy = (np.asarray(column, np.float64) for column in (scores, losses, weights))
    if sure.shape != heavy.shape or sure.shape != lost.shape:
        raise ConfigError(
            f"Scores, losses and weights are one each a row; got {sure.shape}, {lost.shape} and {heavy.shape}."
        )
    if not (np.isfinite(heavy) & (heavy > 0)).all():
        raise ConfigError("A weight is a number above 0: one over the probability with which the row was drawn.")
    share = heavy / heavy.max(initial=1e-300)
    found = certify(
        sure, epsilon + share * (lost - epsilon) if (share < 1).any() else lost, epsilon, delta,
        select_fraction=select_fraction, seed=seed,
    )  # fmt: skip
    if found.threshold is None:
        return found
    rest = split(len(sure), select_fraction, seed)[1] if select_fraction else np.arange(len(sure))
    return replace(found, kept=float(share[rest][sure[rest] >= found.threshold].sum() / share[rest].sum()))
