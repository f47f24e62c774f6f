"""Decisions on a seeded part of the data, before the rest certifies: score, temperature, value, start of testing.

Nothing here knows epsilon or delta, and nothing that is certified on decides anything: reusing the same rows broke the
contract in 285 of 300 trials. `bench/routing/contract.py` repeats this very procedure where the truth is known.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from firstline.workbench.calibrate import fit_temperature
from firstline.workbench.scores import LEARNED, can_learn, choose_score, fit_logistic, fit_value, require_learning
from firstline_core.bundle.loading import scorer
from firstline_core.bundle.manifest import Score, ScoreKind
from firstline_core.errors import ConfigError
from firstline_core.routing.certification import Start, check_share, split, start_shares, starts_at
from firstline_core.routing.confidence import Logistic, Probabilities

ScoreName = ScoreKind | Literal["best", "bundle"]
"""Which score: "best" chooses, "bundle" leaves it as it is."""

SELECTS_FROM_ROWS = 1500
SELECT_FRACTION = 0.1


@dataclass(frozen=True, slots=True, eq=False)
class Selection:
    """The decisions, and the rows that are left for the certificate.

    Attributes:
        score: the loss of the certificate.
        value: P(loss), learned; None where nothing could be.
        aurocs: of each candidate, cross-validated on the selection part; empty where nothing was compared.
        starts: where testing starts; None leaves that to the rows themselves.
        used: how many rows decided all this.
        rest: (rows,) positions of those that decided nothing.
        scores: (n,) of all rows, selection part included.
    """

    score: Score
    value: Logistic | None
    aurocs: Mapping[ScoreKind, float]
    starts: tuple[Start, ...] | None
    used: int
    rest: NDArray[np.intp]
    scores: NDArray[np.float64]


def default_fraction(rows: int) -> float:
    """Share of the rows that decides, unless told.

    Below that, the choice is worth less than the rows that it takes from the certificate. Of the oracle's share
    on one real pair, at its hardest promise, 0.70 is kept with a part and 0.79 without at 1,000 rows, 0.87 by both at
    1,500.
    """
    return SELECT_FRACTION if rows >= SELECTS_FROM_ROWS else 0.0


def check_score(name: ScoreName, share: float, *, logits: bool) -> None:
    """Checks a score's requirements before the models run for minutes.

    Args:
        name: of the score.
        share: of the rows that decides; 0 for none.
        logits: whether the edge model shows them.

    Raises:
        ConfigError: it cannot be had.
    """
    if name == "energy" and not logits:
        raise ConfigError("The score 'energy' needs the edge model's logits; nothing shows them here.")
    if name == LEARNED and not share:
        raise ConfigError("A learned score is fitted on a part of the rows; set one aside with --select 0.1.")
    if name == LEARNED:
        require_learning()


def select(
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
    """Splits the rows, and lets the one part decide.

    Args:
        probabilities: (n, classes) of the edge model.
        losses: (n,) of the contract.
        truth: (n,) what the temperature is fitted to: labels, or the full model's answers.
        own: the bundle's score as it stands.
        own_scores: (n,) by it.
        logits: (n, classes) where the model shows them.
        disagreements: (n,) where the losses are others, and rarer: the value is learned with their help.
        name: name of the score; "best" is chosen on the selection part, or is the bundle's own without one.
        fraction: share of the rows that decides; None is `default_fraction`.
        seed: of the split and of the folds.

    Raises:
        ConfigError: a fraction out of range, or a score that these rows cannot have.
    """
    share = default_fraction(len(losses)) if fraction is None else fraction
    check_score(name, share, logits=logits is not None)
    if share:
        check_share("the selection fraction", share)
    part, rest = split(len(losses), share, seed)
    if not len(part):
        score = _named(name, own, own.temperature)
        return Selection(score, None, {}, None, 0, rest, _scores(score, own, own_scores, probabilities, logits))
    temperature = fit_temperature(probabilities[part], truth[part])
    shown = logits[part] if logits is not None else None
    choice = choose_score(
        probabilities[part],
        losses[part],
        logits=shown,
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
    scores = _scores(score, own, own_scores, probabilities, logits)
    starts = starts_at(scores[part], start_shares(len(rest)))
    return Selection(score, value, choice.aurocs, starts, len(part), rest, scores)


def _named(name: ScoreName, own: Score, temperature: float) -> Score:
    """A score that nothing has to be fitted for, but its temperature."""
    match name:
        case "best" | "bundle":
            return own
        case "graph":
            if own.kind != "graph":
                raise ConfigError("The bundle has no score graph.")
            return own
        case _:
            return Score(name, temperature)


def _scores(
    score: Score,
    own: Score,
    own_scores: NDArray[np.float64],
    probabilities: Probabilities,
    logits: Probabilities | None,
) -> NDArray[np.float64]:
    return own_scores if score == own else scorer(score)(probabilities, logits).astype(np.float64)
