from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from firstline.workbench.selection import LEARNED, choose_score, fit_logistic, fit_value
from firstline_core.bundle.manifest import Score
from firstline_core.errors import ConfigError
from firstline_core.routing.policy import auroc, features, margin, score
from firstline_core.storage.artefact import Artefact


def _answers(seed: int, n: int, worst_class: int | None = None) -> tuple[Any, Any]:
    """Answers over four classes whose risk falls with the margin, and is high for one class whatever the margin."""
    random = np.random.default_rng(seed)
    logits = 3 * random.normal(size=(n, 4))
    rows = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    risk = 0.4 * (1 - margin(rows)) + 0.4 * (rows.argmax(axis=1) == worst_class)
    return np.round(rows * 256).astype(np.float32) / 256, random.random(n) < risk


def test_the_logistic_score_is_that_of_the_fitted_model() -> None:
    from sklearn.linear_model import LogisticRegression

    rows, losses = _answers(0, 500)
    found = features(rows).astype(np.float64)
    measures = found[:, :4]
    found[:, :4] = (measures - measures.mean(axis=0)) / (measures.std(axis=0) + 1e-6)
    reference = LogisticRegression(C=0.1, max_iter=1000, tol=1e-3).fit(found, losses).predict_proba(found)[:, 0]
    np.testing.assert_allclose(fit_logistic(rows, losses).score(rows), reference, atol=1e-5)


def test_a_value_leans_on_what_tells_disagreements() -> None:
    """A dozen losses show nothing of the classes; the disagreements around them do."""
    rng = np.random.default_rng(3)
    areas = []
    for seed in range(5):
        rows, disagreements = _answers(seed, 4000, worst_class=2)
        losses = disagreements & (rng.random(4000) < 0.1)
        few, many = slice(0, 600), slice(600, None)
        for learned in (
            fit_value(rows[few], losses[few], disagreements[few]),
            fit_logistic(rows[few], losses[few]),
        ):
            areas.append(auroc(learned.score(rows[many]), losses[many]))
    leaning, alone = np.array(areas).reshape(-1, 2).T
    assert leaning.mean() > alone.mean() + 0.005


def test_where_the_class_matters_the_learned_score_wins() -> None:
    choice = choose_score(*_answers(2, 600, worst_class=1))
    assert choice.name == LEARNED
    rows, losses = _answers(3, 4000, worst_class=1)
    learned, plain = auroc(choice.score(rows), losses), auroc(margin(rows), losses)
    assert learned is not None
    assert plain is not None
    assert learned > plain + 0.05


def test_too_few_losses_leave_the_margin() -> None:
    rows, _ = _answers(4, 50)
    choice = choose_score(rows, np.arange(50) < 3)
    assert (choice.name, choice.learned, dict(choice.aurocs)) == ("margin", None, {})
    np.testing.assert_array_equal(choice.score(rows), score("margin", rows))
    with pytest.raises(ConfigError, match="only one kind"):
        fit_logistic(rows, np.zeros(50, np.bool_))
    own = Score("entropy", 2.0)
    assert choose_score(rows, np.arange(50) < 3, own=(own, margin(rows))).declared == own


def test_logits_and_the_bundles_own_graph_are_candidates() -> None:
    rows, losses = _answers(5, 400)
    graph = Score("graph", graph=Artefact("score.onnx", "a" * 64, 1))
    oracle = 1.0 - losses.astype(np.float32)  # nothing beats the losses themselves
    choice = choose_score(rows, losses, logits=np.log(np.maximum(rows, 1e-3)), own=(graph, oracle))
    assert set(choice.aurocs) == {"margin", "max_probability", "entropy", "energy", "graph", "learned"}
    assert (choice.declared, choice.aurocs["graph"]) == (graph, 1.0)


def test_the_choice_says_the_temperature_of_what_it_compared() -> None:
    rows, losses = _answers(6, 400)
    assert choose_score(rows, losses, temperature=1.7).declared.temperature == 1.7
