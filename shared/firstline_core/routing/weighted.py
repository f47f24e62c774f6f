"""Certification on rows that were sampled with different probabilities, such as the audits of a device.

A row that was sampled with probability p represents 1 / p rows. Its weight w is proportional to that, scaled so that
the largest is 1. The risk at a threshold is then E[w * loss] / E[w] over the sampled rows that it keeps, and

    risk > epsilon    if and only if    E[y] > epsilon,    y = epsilon + w * (loss - epsilon).

Each y lies in [0, 1], so that a proof of "the mean of y is at most epsilon" proves the same of the risk: betting, or
Hoeffding-Bentkus for many rows. Equal weights leave the losses as they are, and the test exact. An upper bound of the
mean of y below epsilon is also an upper bound of the risk, because E[w] is at most 1.

The weights must depend on the sampling alone: given its score and weight, the loss of a row must not influence whether
it was sampled.
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
    """Finds the loosest threshold that the rows certify for the population that they were sampled from.

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
        ConfigError: as for `certify`, or an invalid weight.
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
