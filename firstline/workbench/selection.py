"""Decisions on a seeded part of the data, before the rest certifies: score, temperature, value, start of testing.

The decisions use neither epsilon nor delta, and no row that certifies: reusing the same rows broke the contract in 285
of 300 trials. `bench/routing/contract.py` repeats this procedure on data whose truth is known.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from firstline.workbench.auroc import auroc
from firstline.workbench.calibrate import fit_temperature
from firstline_core.bundle.loading import scorer
from firstline_core.bundle.manifest import Score
from firstline_core.errors import ConfigError, InvalidTensorError, listed
from firstline_core.routing.certification import Start, check_share, split, start_shares, starts_at
from firstline_core.routing.policy import Logistic
from firstline_core.tasks.base import Scores, Task
from firstline_core.tasks.classification import LOGITS
from firstline_core.types import PROBABILITIES, Arrays, row_count

Losses = NDArray[np.floating] | NDArray[np.bool_]
"""(n,) in 0..1."""

SELECTS_FROM_ROWS = 1500
SELECT_FRACTION = 0.1
BEST, BUNDLE, LEARNED = "best", "bundle", "learned"
"""Names of scores: the best on the selection part, the bundle's own, and one that is fitted."""
_FOLDS = 5
_AT_TIES = "margin"  # of two labels, it separates answers as the highest probability does
# Strong shrinkage: a selection part of hundreds of rows has few losses in each class.
_INVERSE_PENALTY = 0.1
_INVERSE_PENALTY_A_LOSS = 0.001
_PRIOR_SCALE = 10.0  # a feature ten times as large pays a hundredth of the penalty for the same effect


@dataclass(frozen=True, slots=True, eq=False)
class EdgeRows:
    """The answers of an edge model, and what scores are computed from.

    Attributes:
        task: of the bundle.
        outputs: canonical outputs of n rows.
        evidence: tensors for scoring only, as far as they are known.
    """

    task: Task
    outputs: Arrays
    evidence: Arrays

    def __len__(self) -> int:
        return row_count(self.outputs)

    def take(self, rows: NDArray[np.intp] | NDArray[np.bool_]) -> EdgeRows:
        """Returns some of the rows."""
        outputs, evidence = (
            {name: array[rows] for name, array in arrays.items()} for arrays in (self.outputs, self.evidence)
        )
        return EdgeRows(self.task, outputs, evidence)

    def scores(self, declared: Score) -> Scores:
        """Returns the scores, (n,).

        Raises:
            InvalidTensorError: evidence that the score needs is not known.
        """
        return scorer(self.task, declared)(self.outputs, self.evidence)

    def features(self) -> NDArray[np.float32] | None:
        """Returns the inputs of learned scores, (n, features); None if evidence for them is not known."""
        try:
            return self.task.features(self.outputs, self.evidence)
        except InvalidTensorError:
            return None

    def fixed_scores(self, temperature: float = 1.0) -> dict[str, tuple[Score, Scores]]:
        """Returns the task's scores that can be computed, by name, each with its values."""
        found = {}
        for kind in self.task.score_kinds:
            declared = Score(kind, temperature)
            try:
                found[kind] = declared, self.scores(declared)
            except InvalidTensorError:
                continue
        return found


@dataclass(frozen=True, slots=True, eq=False)
class Selection:
    """The decisions, and the rows that are left for the certificate.

    Attributes:
        score: the score that is certified.
        rest: (rows,) positions of the remaining rows, which certify.
        scores: (n,) scores of all rows, including the selection part.
        part: (rows,) positions of the selection rows.
        value: learned P(loss); None if it could not be learned.
        aurocs: cross-validated AUROC of each candidate on the selection part; empty without a comparison.
        starts: where testing starts; None if the certifying rows decide.
    """

    score: Score
    rest: NDArray[np.intp]
    scores: NDArray[np.float64]
    part: NDArray[np.intp] = field(default_factory=lambda: np.zeros(0, np.intp))
    value: Logistic | None = None
    aurocs: Mapping[str, float] = field(default_factory=dict)
    starts: tuple[Start, ...] | None = None

    @property
    def used(self) -> int:
        """Returns the number of selection rows."""
        return len(self.part)


def default_fraction(rows: int) -> float:
    """Returns the default share of the selection rows.

    Below `SELECTS_FROM_ROWS` rows, the selection gains less than the certificate loses. On one real pair at its hardest
    promise, 0.70 of the oracle's share remains with a selection part and 0.79 without at 1,000 rows; 0.87 with both at
    1,500.
    """
    return SELECT_FRACTION if rows >= SELECTS_FROM_ROWS else 0.0


def check_score(task: Task, name: str, share: float, *, logits: bool) -> None:
    """Checks a score's requirements before the models run for minutes.

    Args:
        task: of the bundle.
        name: name of the score; "best" chooses, "bundle" leaves it as it is.
        share: share of the selection rows; 0 for none.
        logits: whether the edge model shows them, if the task is classification.

    Raises:
        ConfigError: the score cannot be computed.
    """
    if name not in (*task.score_kinds, BEST, BUNDLE, LEARNED, "graph"):
        choices = listed(name, (BEST, BUNDLE, *task.score_kinds, LEARNED))
        raise ConfigError(f"There is no score '{name}' for the task {task.kind}{choices}")
    if name == "energy" and not logits:
        raise ConfigError("The score 'energy' needs the edge model's logits; nothing shows them here.")
    if name == LEARNED and not share:
        raise ConfigError("A learned score is fitted on a part of the rows; set one aside with --select 0.1.")
    if name == LEARNED:
        require_learning()


def select(
    edge: EdgeRows,
    losses: Losses,
    *,
    own: Score,
    own_scores: NDArray[np.float64],
    targets: NDArray[np.int64] | None = None,
    disagreements: Losses | None = None,
    clusters: Sequence[str] = (),
    name: str = BEST,
    fraction: float | None = None,
    seed: int = 0,
) -> Selection:
    """Splits the rows and makes the decisions on one part.

    Args:
        edge: the edge model's answers.
        losses: (n,) of the contract, in 0..1.
        own: the bundle's present score.
        own_scores: (n,) by it.
        targets: (n,) classes that the temperature is fitted to: labels, or the full model's answers. None for tasks
            without a temperature.
        disagreements: (n,) where the losses are others, and rarer: the value is learned with their help.
        clusters: (n,) of dependent rows, which stay together; () if all are independent.
        name: name of the score; "best" is chosen on the selection part, or is the bundle's own without one.
        fraction: share of the selection rows; None is `default_fraction`.
        seed: seed of the split and of the folds.

    Raises:
        ConfigError: a fraction out of range, or a score that these rows do not allow.
    """
    share = default_fraction(len(losses)) if fraction is None else fraction
    check_score(edge.task, name, share, logits=LOGITS in edge.evidence)
    if share:
        check_share("the selection fraction", share)

    part, rest = split_clusters(clusters, share, seed) if clusters else split(len(losses), share, seed)
    if not len(part):
        score = _named(name, own, own.temperature)
        return Selection(score, rest, scores_by(edge, score, own, own_scores))
    temperature = 1.0
    if targets is not None:
        temperature = fit_temperature(edge.outputs[PROBABILITIES][part], targets[part])
    selecting = edge.take(part)
    choice = choose_score(
        selecting, losses[part], temperature=temperature, own=(own, own_scores[part].astype(np.float32)), seed=seed
    )
    value = choice.declared.learned  # the same fit, where it is the score
    inputs = selecting.features()
    if choice.aurocs and inputs is not None and can_learn():
        if disagreements is not None and not (disagreements[part] > 0).all():
            value = fit_value(inputs, losses[part], disagreements[part])
        elif value is None:
            value = fit_logistic(inputs, losses[part])
    if name == LEARNED:
        if inputs is None:
            raise ConfigError("A learned score needs evidence that the edge model's answers come without.")
        score = Score(LEARNED, temperature, learned=value or fit_logistic(inputs, losses[part]))
    else:
        score = choice.declared if name == BEST else _named(name, own, temperature)
    scores = scores_by(edge, score, own, own_scores)
    starts = starts_at(scores[part], start_shares(len(rest)))
    return Selection(score, rest, scores, part, value, choice.aurocs, starts)


def scores_by(edge: EdgeRows, score: Score, own: Score, own_scores: NDArray[np.float64]) -> NDArray[np.float64]:
    """Returns the scores of rows, (n,).

    Args:
        edge: the edge model's answers.
        score: that is wanted.
        own: the bundle's score.
        own_scores: (n,) by it, which are not computed again: a device may have computed them.

    Raises:
        ConfigError: evidence that the score needs is not known.
    """
    if score == own:
        return own_scores
    try:
        return edge.scores(score).astype(np.float64)
    except InvalidTensorError as error:
        remaining = ", ".join(edge.fixed_scores()) or "none"
        raise ConfigError(
            f"The score '{score.kind}' cannot be computed: {error.message} Scores that remain: {remaining}."
        ) from error


def cluster_keys(clusters: Sequence[str]) -> NDArray[np.str_]:
    """Returns a key for each row, equal for rows of one cluster; a row with "" has a key of its own."""
    return np.array([cluster or f"\0{row}" for row, cluster in enumerate(clusters)])


def split_clusters(clusters: Sequence[str], share: float, seed: int) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """Returns the positions of the selection rows and of the others; rows of one cluster are in the same part."""
    names, of_row = np.unique(cluster_keys(clusters), return_inverse=True)
    selected, _ = split(len(names), share, seed)
    in_part = np.isin(of_row, selected)
    return np.flatnonzero(in_part), np.flatnonzero(~in_part)


def _named(name: str, own: Score, temperature: float) -> Score:
    """Returns a score that needs no fit except its temperature."""
    if name in (BEST, BUNDLE):
        return own
    if name != "graph":
        return Score(name, temperature)
    if own.kind != "graph":
        raise ConfigError("The bundle has no score graph.")
    return own


class ScoreChoice(NamedTuple):
    """The best score, and how all of them did.

    Attributes:
        declared: the best.
        aurocs: of each candidate, averaged over the folds, in which the learned one had not seen the rows.
    """

    declared: Score
    aurocs: Mapping[str, float]


def can_learn() -> bool:
    """Whether scikit-learn is installed."""
    return find_spec("sklearn") is not None


def fit_logistic(inputs: NDArray[np.float32], losses: Losses) -> Logistic:
    """Fits P(loss | features) by penalised logistic regression.

    Args:
        inputs: (n, features) of the edge model's answers, see `Task.features`.
        losses: (n,) such as "edge wrong and full right"; one between 0 and 1 is a share of a row.

    Raises:
        ConfigError: no loss among the rows, or nothing else; or scikit-learn is missing.
    """
    return _fit(inputs, losses, _INVERSE_PENALTY)


def fit_value(inputs: NDArray[np.float32], losses: Losses, disagreements: Losses) -> Logistic:
    """Fits P(edge wrong and full right | features), leaning on the disagreements, of which there are more.

    A model of disagreements is fitted first; its log-odds become an additional feature with almost no penalty, which
    the other features only correct. Both are linear, and so is their sum. It gains more than a fit to the losses alone
    wherever they are few.

    Args:
        inputs: (n, features) of the edge model's answers.
        losses: (n,) edge wrong and full right.
        disagreements: (n,) full says otherwise.

    Raises:
        ConfigError: see `fit_logistic`.
    """
    prior = _fit(inputs, disagreements, _INVERSE_PENALTY_A_LOSS * disagreements.sum())
    return _fit(inputs, losses, _INVERSE_PENALTY_A_LOSS * losses.sum(), prior)


def _fit(
    features: NDArray[np.float32], losses: Losses, inverse_penalty: float, prior: Logistic | None = None
) -> Logistic:
    wanted = losses.astype(np.float64)
    if (wanted == 1).all() or not wanted.any():
        raise ConfigError("A learned score needs rows with and without a loss; there is only one kind.")
    inputs = features.astype(np.float64)
    # Not the classes, which are 0 or 1: standardised, a rare class would get a weight from a handful of rows.
    measures = ~((inputs == 0) | (inputs == 1)).all(axis=0)
    centre, scale = np.zeros(inputs.shape[1]), np.ones(inputs.shape[1])
    centre[measures], scale[measures] = inputs[:, measures].mean(axis=0), inputs[:, measures].std(axis=0) + 1e-6
    scaled = (inputs - centre) / scale
    if prior is not None:
        scaled = np.column_stack([scaled, _PRIOR_SCALE * (inputs @ np.asarray(prior.weights) + prior.bias)])
    require_learning()
    from sklearn.linear_model import LogisticRegression

    model = LogisticRegression(C=inverse_penalty, max_iter=1000, tol=1e-3)
    if is_graded(losses):  # each row is lost in part, and in part not
        lost = np.repeat([True, False], len(wanted))
        model.fit(np.vstack([scaled, scaled]), lost, sample_weight=np.concatenate([wanted, 1 - wanted]))
    else:
        model.fit(scaled, wanted == 1)
    weights = model.coef_[0][: inputs.shape[1]] / scale
    bias = float(model.intercept_[0] - weights @ centre)
    if prior is not None:
        trust = _PRIOR_SCALE * float(model.coef_[0][-1])
        weights, bias = weights + trust * np.asarray(prior.weights), bias + trust * prior.bias
    return Logistic(tuple(float(weight) for weight in weights), bias)


def is_graded(losses: ArrayLike) -> bool:
    """Returns whether any loss lies between 0 and 1."""
    values = np.asarray(losses)
    return bool(((values > 0) & (values < 1)).any())


def is_lost(losses: Losses) -> NDArray[np.bool_]:
    """Returns (n,) whether an answer is lost: its loss is above 0, or above the mean if losses are graded."""
    lost: NDArray[np.bool_] = losses > (losses.mean() if is_graded(losses) else 0)
    return lost


def choose_score(
    edge: EdgeRows, losses: Losses, *, temperature: float = 1.0, own: tuple[Score, Scores] | None = None, seed: int = 0
) -> ScoreChoice:
    """Chooses the score that best tells losses from the rest, by cross-validated AUROC.

    The learned one is taken unless it is worse than the best of the others by more than a standard error over the
    folds: it is regularised strongly, so it hardly ever loses, while hundreds of rows are too few to show what it wins.
    Without scikit-learn, or without the evidence for features, none is learned.

    Args:
        edge: the edge model's answers, of the selection part only.
        losses: (n,) in 0..1; graded losses are compared with their mean.
        temperature: temperature of the fixed scores.
        own: the bundle's current score, with its values for these rows. It is used if there are too few losses for a
            comparison (without it, the task's first score), and is a candidate if it differs from the others.
        seed: seed of the folds.
    """
    candidates = dict(sorted(edge.fixed_scores(temperature).items(), key=lambda item: item[0] != _AT_TIES))
    lost = is_lost(losses)
    fold_of = _folds(lost, seed)
    if fold_of is None:
        first = next(iter(candidates), edge.task.score_kinds[0])
        return ScoreChoice(Score(first, temperature) if own is None else own[0], {})
    inputs = edge.features() if can_learn() else None
    if own is not None and own[0].kind not in candidates and (inputs is None or not own[0].learned or not candidates):
        candidates[own[0].kind] = own
    areas_of: dict[str, list[float]] = {name: [] for name in candidates}
    if inputs is not None:
        areas_of[LEARNED] = []
    for fold in range(_FOLDS):
        in_fold = fold_of == fold
        for name, areas in areas_of.items():
            if inputs is not None and name == LEARNED:
                scores_held = 1 - fit_logistic(inputs[~in_fold], losses[~in_fold]).losses(inputs[in_fold])
            else:
                scores_held = candidates[name][1][in_fold]
            area = auroc(scores_held, lost[in_fold])
            areas.append(0.5 if area is None else area)
    aurocs = {name: float(np.mean(areas)) for name, areas in areas_of.items()}
    best = max(candidates, key=lambda name: round(aurocs[name], 6))
    if inputs is not None:
        behind = np.subtract(areas_of[best], areas_of[LEARNED])
        if behind.mean() <= behind.std(ddof=1) / np.sqrt(_FOLDS):
            return ScoreChoice(Score(LEARNED, temperature, learned=fit_logistic(inputs, losses)), aurocs)
    return ScoreChoice(candidates[best][0], aurocs)


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
