"""Fits the learned score and chooses the best score, on the selection part of the data only.

`firstline_core.routing.confidence` applies the fitted score in plain numpy. scikit-learn comes with
`firstline[analysis]`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from firstline_core.bundle.loading import scorer
from firstline_core.bundle.manifest import Score, ScoreKind
from firstline_core.errors import ConfigError
from firstline_core.routing.confidence import MEASURES, Logistic, Probabilities, Scores, auroc, features

LEARNED: Literal["learned"] = "learned"
FIXED: tuple[ScoreKind, ...] = ("margin", "max_probability", "entropy")
_FOLDS = 5
# Strong shrinkage: a selection part of hundreds of rows has few losses in each class.
_INVERSE_PENALTY = 0.1
_INVERSE_PENALTY_A_LOSS = 0.001
_PRIOR_SCALE = 10.0  # a feature ten times as large pays a hundredth of the penalty for the same effect


@dataclass(frozen=True, slots=True)
class ScoreChoice:
    """The best score, and how all of them did.

    Attributes:
        declared: the best.
        aurocs: of each candidate, averaged over the folds, in which the learned one had not seen the rows.
    """

    declared: Score
    aurocs: Mapping[ScoreKind, float]

    @property
    def name(self) -> str:
        return self.declared.kind

    @property
    def learned(self) -> Logistic | None:
        return self.declared.learned

    def score(self, probabilities: Probabilities, logits: Probabilities | None = None) -> Scores:
        """(n,) float32; higher means keep. Not for a graph's."""
        return scorer(self.declared)(probabilities, logits)


def can_learn() -> bool:
    """Whether scikit-learn is here."""
    return find_spec("sklearn") is not None


def fit_logistic(probabilities: Probabilities, losses: NDArray[np.bool_]) -> Logistic:
    """Fits P(loss | features) by penalised logistic regression on `features`.

    Args:
        probabilities: (n, classes) of the edge model.
        losses: (n,) such as "edge wrong and full right".

    Raises:
        ConfigError: no loss among the rows, or nothing else; or scikit-learn is missing.
    """
    return _fit(probabilities, losses, _INVERSE_PENALTY)


def fit_value(probabilities: Probabilities, losses: NDArray[np.bool_], disagreements: NDArray[np.bool_]) -> Logistic:
    """Fits P(edge wrong and full right | features), leaning on the disagreements, of which there are more.

    A model of disagreements is fitted first; its log-odds become an additional feature with almost no penalty, which
    the other features only correct. Both are linear, and so is what comes of them. `make bench-routing` measures what
    it
    is worth: more than a fit to the losses alone wherever they are few.

    Args:
        probabilities: (n, classes) of the edge model.
        losses: (n,) edge wrong and full right.
        disagreements: (n,) full says otherwise.

    Raises:
        ConfigError: see `fit_logistic`.
    """
    prior = _fit(probabilities, disagreements, _INVERSE_PENALTY_A_LOSS * disagreements.sum())
    return _fit(probabilities, losses, _INVERSE_PENALTY_A_LOSS * losses.sum(), prior)


def _fit(
    probabilities: Probabilities, losses: NDArray[np.bool_], inverse_penalty: float, prior: Logistic | None = None
) -> Logistic:
    if losses.all() or not losses.any():
        raise ConfigError("A learned score needs rows with and without a loss; there is only one kind.")
    found = features(probabilities).astype(np.float64)
    centre, scale = np.zeros(found.shape[1]), np.ones(found.shape[1])
    # Not the classes: standardised, a rare class would get a weight from a handful of rows.
    centre[:MEASURES], scale[:MEASURES] = found[:, :MEASURES].mean(axis=0), found[:, :MEASURES].std(axis=0) + 1e-6
    seen = (found - centre) / scale
    if prior is not None:
        seen = np.column_stack([seen, _PRIOR_SCALE * (found @ np.asarray(prior.weights) + prior.bias)])
    model = _sklearn("linear_model").LogisticRegression(C=inverse_penalty, max_iter=1000, tol=1e-3)
    model.fit(seen, losses)
    weights = model.coef_[0][: found.shape[1]] / scale
    bias = float(model.intercept_[0] - weights @ centre)
    if prior is not None:
        trust = _PRIOR_SCALE * float(model.coef_[0][-1])
        weights, bias = weights + trust * np.asarray(prior.weights), bias + trust * prior.bias
    return Logistic(tuple(float(weight) for weight in weights), bias)


def choose_score(
    probabilities: Probabilities,
    losses: NDArray[np.bool_],
    *,
    logits: Probabilities | None = None,
    temperature: float = 1.0,
    own: tuple[Score, Scores] | None = None,
    seed: int = 0,
) -> ScoreChoice:
    """Chooses the score that best tells losses from the rest, by cross-validated AUROC.

    The learned one is taken unless it is worse than the best of the others by more than a standard error over the
    folds: it is shrunk so much that it hardly ever loses, while hundreds of rows are too few to show what it wins.
    Without scikit-learn none is learned.

    Args:
        probabilities: (n, classes) of the edge model, of the selection part only.
        losses: (n,).
        logits: (n, classes) if the model returns them; "energy" is a candidate only with them.
        temperature: of the fixed scores.
        own: the bundle's current score, with its values for these rows. It is used if there are too few losses for a
            comparison (without it, the margin), and is a candidate if it differs from the others.
        seed: of the folds.
    """
    candidates: dict[ScoreKind, Score] = {kind: Score(kind, temperature) for kind in FIXED}
    fold_of = _folds(losses, seed)
    if fold_of is None:
        return ScoreChoice(candidates["margin"] if own is None else own[0], {})
    scores = {kind: scorer(declared)(probabilities) for kind, declared in candidates.items()}
    if logits is not None:
        candidates["energy"] = Score("energy", temperature)
        scores["energy"] = scorer(candidates["energy"])(probabilities, logits)
    learns = can_learn()
    if own is not None and own[0].kind not in candidates and not (learns and own[0].learned):
        candidates[own[0].kind], scores[own[0].kind] = own
    seen: dict[ScoreKind, list[float]] = {name: [] for name in candidates}
    if learns:
        seen[LEARNED] = []
    for fold in range(_FOLDS):
        held = fold_of == fold
        for name, areas in seen.items():
            if learns and name == LEARNED:
                found = fit_logistic(probabilities[~held], losses[~held]).score(probabilities[held])
            else:
                found = scores[name][held]
            area = auroc(found, losses[held])
            areas.append(0.5 if area is None else area)
    aurocs = {name: float(np.mean(areas)) for name, areas in seen.items()}
    best = max(candidates, key=lambda name: round(aurocs[name], 6))
    if learns:
        behind = np.subtract(seen[best], seen[LEARNED])
        if behind.mean() <= behind.std(ddof=1) / np.sqrt(_FOLDS):
            return ScoreChoice(Score(LEARNED, temperature, learned=fit_logistic(probabilities, losses)), aurocs)
    return ScoreChoice(candidates[best], aurocs)


def _folds(losses: NDArray[np.bool_], seed: int) -> NDArray[np.intp] | None:
    """The fold of each row, losses spread evenly; None where a fold would have rows of one kind only."""
    if min(int(losses.sum()), int((~losses).sum())) < _FOLDS:
        return None
    random = np.random.default_rng(seed)
    fold_of = np.empty(len(losses), np.intp)
    for rows in (np.flatnonzero(losses), np.flatnonzero(~losses)):
        fold_of[random.permutation(rows)] = np.arange(len(rows)) % _FOLDS
    return fold_of


def require_learning() -> None:
    """Raises ConfigError where scikit-learn is not installed."""
    if not can_learn():
        raise ConfigError("A learned score is fitted with scikit-learn: pip install 'firstline[analysis]'.")


def _sklearn(module: str) -> Any:
    require_learning()
    return import_module(f"sklearn.{module}")
