"""Fits the learned score and chooses the best one, on the selection part of the data alone.

What is fitted here is applied by `firstline_core.routing.learned`, in plain numpy. scikit-learn comes with
`firstline[analysis]`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from firstline_core.errors import ConfigError
from firstline_core.routing import confidence
from firstline_core.routing.confidence import Probabilities, Scores, auroc
from firstline_core.routing.learned import MEASURES, Isotonic, Logistic, features

ScoreFunction = Callable[[Probabilities], Scores]

LEARNED = "learned"
_FOLDS = 5
# Strong shrinkage: a selection part of hundreds of rows has few losses in each class.
_INVERSE_PENALTY = 0.1


@dataclass(frozen=True, slots=True)
class ScoreChoice:
    """The best score, and how all of them did.

    Attributes:
        name: "max_probability", "margin", "entropy" or "learned".
        aurocs: of each candidate, averaged over the folds, in which the learned one had not seen the rows.
        learned: the fitted one, where it is the best.
    """

    name: str
    aurocs: Mapping[str, float]
    learned: Logistic | None

    def score(self, probabilities: Probabilities) -> Scores:
        """(n,) float32; higher means keep."""
        return self.learned.score(probabilities) if self.learned else _FIXED[self.name](probabilities)


_FIXED: Mapping[str, ScoreFunction] = {
    kind: partial(confidence.score, kind) for kind in ("margin", "max_probability", "entropy")
}


def fit_logistic(probabilities: Probabilities, losses: NDArray[np.bool_]) -> Logistic:
    """Fits P(loss | features) by penalised logistic regression on `features`.

    Args:
        probabilities: (n, classes) of the edge model.
        losses: (n,) such as "edge wrong and full right".

    Raises:
        ConfigError: no loss among the rows, or nothing else; or scikit-learn is missing.
    """
    if losses.all() or not losses.any():
        raise ConfigError("A learned score needs rows with and without a loss; there is only one kind.")
    found = features(probabilities).astype(np.float64)
    centre, scale = np.zeros(found.shape[1]), np.ones(found.shape[1])
    # Not the classes: standardised, a rare class would get a weight from a handful of rows.
    centre[:MEASURES], scale[:MEASURES] = found[:, :MEASURES].mean(axis=0), found[:, :MEASURES].std(axis=0) + 1e-6
    model = _sklearn("linear_model").LogisticRegression(C=_INVERSE_PENALTY, max_iter=1000, tol=1e-3)
    model.fit((found - centre) / scale, losses)
    weights = model.coef_[0] / scale
    bias = float(model.intercept_[0] - weights @ centre)
    return Logistic(tuple(float(weight) for weight in weights), bias)


def fit_isotonic(scores: Scores, losses: NDArray[np.bool_]) -> Isotonic:
    """Fits P(loss | score), falling in the score.

    Args:
        scores: (n,), finite.
        losses: (n,).

    Raises:
        ConfigError: no rows, or scikit-learn is missing.
    """
    if not len(scores):
        raise ConfigError("An isotonic regression needs rows; there are none.")
    model = _sklearn("isotonic").IsotonicRegression(increasing=False, out_of_bounds="clip")
    model.fit(scores.astype(np.float64), losses.astype(np.float64))
    return Isotonic(
        tuple(float(knot) for knot in model.X_thresholds_), tuple(float(value) for value in model.y_thresholds_)
    )


def choose_score(probabilities: Probabilities, losses: NDArray[np.bool_], *, seed: int = 0) -> ScoreChoice:
    """Chooses the score that best tells losses from the rest, by cross-validated AUROC.

    The learned one is taken unless it is worse than the best of the others by more than a standard error over the
    folds: it is shrunk so much that it hardly ever loses, while hundreds of rows are too few to show what it wins.

    Args:
        probabilities: (n, classes) of the edge model, of the selection part only.
        losses: (n,).
        seed: of the folds.

    Returns:
        The margin where there are too few losses to compare anything.
    """
    fold_of = _folds(losses, seed)
    names = [*_FIXED, LEARNED]
    if fold_of is None:
        return ScoreChoice("margin", {}, None)
    seen: dict[str, list[float]] = {name: [] for name in names}
    fixed = {name: score(probabilities) for name, score in _FIXED.items()}
    for fold in range(_FOLDS):
        held = fold_of == fold
        fitted = fit_logistic(probabilities[~held], losses[~held]).score(probabilities[held])
        for name in names:
            area = auroc(fitted if name == LEARNED else fixed[name][held], losses[held])
            seen[name].append(0.5 if area is None else area)
    aurocs = {name: float(np.mean(areas)) for name, areas in seen.items()}
    best = max(_FIXED, key=lambda name: round(aurocs[name], 6))
    behind = np.subtract(seen[best], seen[LEARNED])
    if behind.mean() <= behind.std(ddof=1) / np.sqrt(_FOLDS):
        return ScoreChoice(LEARNED, aurocs, fit_logistic(probabilities, losses))
    return ScoreChoice(best, aurocs, None)


def _folds(losses: NDArray[np.bool_], seed: int) -> NDArray[np.intp] | None:
    """The fold of each row, losses spread evenly; None where a fold would have rows of one kind only."""
    if min(int(losses.sum()), int((~losses).sum())) < _FOLDS:
        return None
    random = np.random.default_rng(seed)
    fold_of = np.empty(len(losses), np.intp)
    for rows in (np.flatnonzero(losses), np.flatnonzero(~losses)):
        fold_of[random.permutation(rows)] = np.arange(len(rows)) % _FOLDS
    return fold_of


def _sklearn(module: str) -> Any:
    try:
        from importlib import import_module

        return import_module(f"sklearn.{module}")
    except ImportError as error:
        raise ConfigError("A learned score is fitted with scikit-learn: pip install 'firstline[analysis]'.") from error
