"""Drift of the inputs, measured by comparing the histogram of scores with the certificate's. Needs no full model."""

from __future__ import annotations

from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from firstline_core.errors import ConfigError
from firstline_core.routing.certificate import Histogram
from firstline_core.routing.certification import between

Word = Literal["stable", "moderate", "large"]

_MODERATE, _LARGE = 0.1, 0.25
_FEW = 200.0  # counts below which an index is not meaningful
_UNSEEN = 0.5  # counts added to every bin, so that an empty one is rare and not impossible (Jeffreys' prior)


def population_stability_index(expected_histogram: ArrayLike, observed_histogram: ArrayLike) -> float:
    """Returns the sum of (observed - expected) * ln(observed / expected) over the bins' shares.

    0 for equal histograms.

    By convention it is a change from 0.1 and a large one from 0.25 (Siddiqi 2006, "Credit Risk Scorecards"). Chance
    alone gives about (bins - 1) * (1 / expected total + 1 / observed total), so that 10 bins need some hundreds of
    counts.

    Args:
        expected_histogram: (bins,) counts at certification.
        observed_histogram: (bins,) counts in the same bins since.

    Returns:
        At least 0; symmetric in the two.

    Raises:
        ConfigError: not counts in the same bins, or fewer than two bins.
    """
    expected, observed = (np.asarray(counts, np.float64) for counts in (expected_histogram, observed_histogram))
    if expected.ndim != 1 or expected.shape != observed.shape or len(expected) < 2:
        raise ConfigError(
            f"Histograms of shape {list(expected.shape)} and {list(observed.shape)} cannot be compared: "
            "both need the same bins, two or more."
        )
    counts = np.concatenate([expected, observed])
    if not (np.isfinite(counts) & (counts >= 0)).all():
        raise ConfigError("A histogram holds counts: numbers of at least 0.")
    was, now = ((histogram + _UNSEEN) / (histogram + _UNSEEN).sum() for histogram in (expected, observed))
    return float(np.sum((now - was) * np.log(now / was)))


def histogram(scores: ArrayLike, bins: int = 20, *, weights: ArrayLike | None = None) -> Histogram | None:
    """Returns bins with about equal numbers of scores; fewer bins if scores tie. None if all scores are NaN.

    Edges lie between occurring scores, so that the last digit of a score, which differs between processors, has no
    effect. NaN counts as lowest: such an answer is never accepted.

    Args:
        scores: (n,)
        bins: maximum number.
        weights: (n,) above 0, the inverse sampling probabilities of the scores. The shares are then those of the
            population.
    """
    found = np.asarray(scores, np.float64)
    distinct = np.unique(found[~np.isnan(found)])
    if not distinct.size:
        return None
    at = np.unique(np.quantile(found[~np.isnan(found)], np.arange(1, bins) / bins, method="higher"))
    below = np.searchsorted(distinct, at) - 1
    edges = tuple(
        between(float(distinct[left]) if left >= 0 else None, float(edge)) for left, edge in zip(below, at, strict=True)
    )
    counts = np.bincount(bins_of(found, edges), weights, minlength=len(edges) + 1)
    return Histogram(edges, tuple((counts / counts.sum()).tolist()))


def bins_of(scores: ArrayLike, edges: ArrayLike) -> NDArray[np.intp]:
    """Returns the bin of each score in a `Histogram` with these edges, from 0; NaN is in bin 0."""
    found = np.asarray(scores, np.float64)
    return np.where(np.isnan(found), 0, np.searchsorted(np.asarray(edges, np.float64), found, side="right"))


def size_word(index: float) -> Word:
    """Returns the size of the change as a word, by Siddiqi's limits of the population stability index."""
    return "stable" if index < _MODERATE else "moderate" if index < _LARGE else "large"


def beyond_chance(index: float, bins: int, expected_total: float, observed_total: float) -> float | None:
    """Returns the index minus its expected value by chance; None with too few counts."""
    if observed_total < _FEW or expected_total <= 0:
        return None
    return max(0.0, index - (bins - 1) * (1 / expected_total + 1 / observed_total))
