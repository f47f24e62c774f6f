"""Decisions on a seeded part of the data, before the rest certifies: score, temperature, value, start of testing.

The decisions use neither epsilon nor delta, and no row that certifies: reusing the same rows broke the contract in 285
of 300 trials. `bench/routing/contract.py` repeats this procedure on data whose truth is known.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from firstline.workbench.calibrate import fit_temperature
from firstline_core.bundle.loading import scorer
from firstline_core.bundle.manifest import Score
from firstline_core.errors import ConfigError
from firstline_core.routing.certification import Start, check_share, split, start_shares, starts_at
from firstline_core.routing.policy import Logistic, auroc
from firstline_core.tasks.base import Scores, Task
from firstline_core.tasks.classification import LOGITS, MEASURES, Probabilities, features
from firstline_core.types import PROBABILITIES

ScoreName = Literal["max_probability", "margin", "entropy", "energy", "learned", "graph", "best", "bundle"]
"""Which score: "best" chooses, "bundle" leaves it as it is."""

SELECTS_FROM_ROWS = 1500
SELECT_FRACTION = 0.1


@dataclass(frozen=True, slots=True, eq=False)
class Selection:
    """The decisions, and the rows that are left for the certificate.

    Attributes:
        score: the loss of the certificate.
        value: learned P(loss); None if it could not be learned.
        aurocs: cross-validated AUROC of each candidate on the selection part; empty without a comparison.
        starts: where testing starts; None if the certifying rows decide.
        used: number of selection rows.
        rest: (rows,) positions of the remaining rows, which certify.
        scores: (n,) scores of all rows, including the selection part.
    """

    score: Score
    value: Logistic | None
    aurocs: Mapping[str, float]
    starts: tuple[Start, ...] | None
    used: int
    rest: NDArray[np.intp]
    scores: NDArray[np.float64]


def default_fraction(rows: int) -> float:
    """Returns the default share of the selection rows.

    Below `SELECTS_FROM_ROWS` rows, the selection gains less than the certificate loses. On one real pair at its hardest
    promise, 0.70 of the oracle's share remains with a selection part and 0.79 without at 1,000 rows; 0.87 with both at
    1,500.
    """
    return SELECT_FRACTION if rows >= SELECTS_FROM_ROWS else 0.0


def check_score(name: ScoreName, share: float, *, logits: bool) -> None:
    """Checks a score's requirements before the models run for minutes.

    Args:
        name: name of the score.
        share: share of the selection rows; 0 for none.
        logits: whether the edge model shows them.

    Raises:
        ConfigError: the score cannot be computed.
    """
    if name == "energy" and not logits:
        raise ConfigError("The score 'energy' needs the edge model's logits; nothing shows them here.")
    if name == LEARNED and not share:
        raise ConfigError("A learned score is fitted on a part of the rows; set one aside with --select 0.1.")
    if name == LEARNED:
        require_learning()


def select(
    task: Task,
    probabilities: Probabilities,
    losses: NDArray[np.bool_],
    truth: NDArray[np.int64],
    *,
    own: Score,
    own_scores: NDArray[np.float64],
    logits: Probabilities | None = None,
    disagreements: NDArray[np.bool_] | None = None,
    name: ScoreName = "best",
    fraction: float | None = None,
    seed: int = 0,
) -> Selection:
    """Splits the rows and makes the decisions on one part.

    Args:
        task: of the bundle.
        probabilities: (n, classes) of the edge model.
        losses: (n,) of the contract.
        truth: (n,) what the temperature is fitted to: labels, or the full model's answers.
        own: the bundle's present score.
        own_scores: (n,) by it.
        logits: (n, classes) where the model shows them.
        disagreements: (n,) where the losses are others, and rarer: the value is learned with their help.
        name: name of the score; "best" is chosen on the selection part, or is the bundle's own without one.
        fraction: share of the selection rows; None is `default_fraction`.
        seed: seed of the split and of the folds.

    Raises:
        ConfigError: a fraction out of range, or a score that these rows do not allow.
    """
    share = default_fraction(len(losses)) if fraction is None else fraction
    check_score(name, share, logits=logits is not None)
    if share:
        check_share("the selection fraction", share)

    def scores_by(score: Score) -> NDArray[np.float64]:
        if score == own:
            return own_scores
        evidence = {} if logits is None else {LOGITS: logits}
        return scorer(task, score)({PROBABILITIES: probabilities}, evidence).astype(np.float64)

    part, rest = split(len(losses), share, seed)
    if not len(part):
        score = _named(name, own, own.temperature)
        return Selection(score, None, {}, None, 0, rest, scores_by(score))
    temperature = fit_temperature(probabilities[part], truth[part])
    logits_part = logits[part] if logits is not None else None
    choice = choose_score(
        task,
        probabilities[part],
        losses[part],
        logits=logits_part,
        temperature=temperature,
        own=(own, own_scores[part].astype(np.float32)),
        seed=seed,
    )
    value = choice.learned  # the same fit, where it is the score
    if choice.aurocs and can_learn():
        if disagreements is not None and not disagreements[part].all():
            value = fit_value(probabilities[part], losses[part], disagreements[part])
        elif value is None:
            value = fit_logistic(probabilities[part], losses[part])
    if name == LEARNED:
        score = Score(LEARNED, temperature, learned=value or fit_logistic(probabilities[part], losses[part]))
    else:
        score = choice.declared if name == "best" else _named(name, own, temperature)
    scores = scores_by(score)
    starts = starts_at(scores[part], start_shares(len(rest)))
    return Selection(score, value, choice.aurocs, starts, len(part), rest, scores)


def _named(name: ScoreName, own: Score, temperature: float) -> Score:
    """Returns a score that needs no fit except its temperature."""
    match name:
        case "best" | "bundle":
            return own
        case "graph":
            if own.kind != "graph":
                raise ConfigError("The bundle has no score graph.")
            return own
        case _:
            return Score(name, temperature)


LEARNED: Literal["learned"] = "learned"
FIXED: tuple[str, ...] = ("margin", "max_probability", "entropy")
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
    aurocs: Mapping[str, float]

    @property
    def name(self) -> str:
        return self.declared.kind

    @property
    def learned(self) -> Logistic | None:
        return self.declared.learned


def can_learn() -> bool:
    """Whether scikit-learn is installed."""
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
    inputs = features(probabilities).astype(np.float64)
    centre, scale = np.zeros(inputs.shape[1]), np.ones(inputs.shape[1])
    # Not the classes: standardised, a rare class would get a weight from a handful of rows.
    centre[:MEASURES], scale[:MEASURES] = inputs[:, :MEASURES].mean(axis=0), inputs[:, :MEASURES].std(axis=0) + 1e-6
    scaled = (inputs - centre) / scale
    if prior is not None:
        scaled = np.column_stack([scaled, _PRIOR_SCALE * (inputs @ np.asarray(prior.weights) + prior.bias)])
    model = _sklearn("linear_model").LogisticRegression(C=inverse_penalty, max_iter=1000, tol=1e-3)
    model.fit(scaled, losses)
    weights = model.coef_[0][: inputs.shape[1]] / scale
    bias = float(model.intercept_[0] - weights @ centre)
    if prior is not None:
        trust = _PRIOR_SCALE * float(model.coef_[0][-1])
        weights, bias = weights + trust * np.asarray(prior.weights), bias + trust * prior.bias
    return Logistic(tuple(float(weight) for weight in weights), bias)


def choose_score(
    task: Task,
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
        task: of the bundle.
        probabilities: (n, classes) of the edge model, of the selection part only.
        losses: (n,).
        logits: (n, classes) if the model returns them; "energy" is a candidate only with them.
        temperature: temperature of the fixed scores.
        own: the bundle's current score, with its values for these rows. It is used if there are too few losses for a
            comparison (without it, the margin), and is a candidate if it differs from the others.
        seed: seed of the folds.
    """
    candidates: dict[str, Score] = {kind: Score(kind, temperature) for kind in FIXED}
    fold_of = _folds(losses, seed)
    if fold_of is None:
        return ScoreChoice(candidates["margin"] if own is None else own[0], {})
    if logits is not None:
        candidates["energy"] = Score("energy", temperature)
    evidence = {} if logits is None else {LOGITS: logits}
    scores = {
        kind: scorer(task, declared)({PROBABILITIES: probabilities}, evidence) for kind, declared in candidates.items()
    }
    learns = can_learn()
    if own is not None and own[0].kind not in candidates and not (learns and own[0].learned):
        candidates[own[0].kind], scores[own[0].kind] = own
    areas_of: dict[str, list[float]] = {name: [] for name in candidates}
    if learns:
        areas_of[LEARNED] = []
    for fold in range(_FOLDS):
        held = fold_of == fold
        for name, areas in areas_of.items():
            if learns and name == LEARNED:
                fitted = fit_logistic(probabilities[~held], losses[~held])
                scores_held = 1 - fitted.losses(features(probabilities[held]))
            else:
                scores_held = scores[name][held]
            area = auroc(scores_held, losses[held])
            areas.append(0.5 if area is None else area)
    aurocs = {name: float(np.mean(areas)) for name, areas in areas_of.items()}
    best = max(candidates, key=lambda name: round(aurocs[name], 6))
    if learns:
        behind = np.subtract(areas_of[best], areas_of[LEARNED])
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
