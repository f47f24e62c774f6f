"""What a part of the rows decides, the others cannot change."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from firstline.workbench import selection
from firstline.workbench.auroc import auroc
from firstline.workbench.calibrate import fit_temperature
from firstline_core.bundle.loading import scorer
from firstline_core.bundle.manifest import Score
from firstline_core.errors import ConfigError
from firstline_core.routing.certification import split, start_shares, starts_at
from firstline_core.storage.artefact import Artefact
from firstline_core.tasks.classification import LOGITS, Classification, features, margin, score
from firstline_core.types import PROBABILITIES

OWN = Score("max_probability", 1.5)
TASK = Classification(tuple("abcd"))


def scores_by(declared: Score, probabilities: Any) -> Any:
    return scorer(TASK, declared)({PROBABILITIES: probabilities}, {})


def rows(n: int, seed: int = 0) -> tuple[Any, Any, Any]:
    """Probabilities, losses and truths of answers that fail more often where they are unsure."""
    random = np.random.default_rng(seed)
    logits = 3 * random.normal(size=(n, 4))
    found = (np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)).astype(np.float32)
    return found, random.random(n) > found.max(axis=1), random.integers(0, 4, n)


def edge(probabilities: Any, logits: Any = None) -> selection.EdgeRows:
    return selection.EdgeRows(TASK, {PROBABILITIES: probabilities}, {} if logits is None else {LOGITS: logits})


def decided(data: tuple[Any, Any, Any], **options: Any) -> selection.Selection:
    probabilities, losses, targets = data
    own_scores = scores_by(OWN, probabilities).astype(np.float64)
    return selection.select(edge(probabilities), losses, targets=targets, own=OWN, own_scores=own_scores, **options)


def test_small_data_uses_all_rows_and_the_own_score() -> None:
    assert selection.default_fraction(selection.SELECTS_FROM_ROWS - 1) == 0
    assert selection.default_fraction(selection.SELECTS_FROM_ROWS) == selection.SELECT_FRACTION
    found = decided(rows(selection.SELECTS_FROM_ROWS - 1))
    assert (found.score, found.used, found.starts, found.value) == (OWN, 0, None, None)
    np.testing.assert_array_equal(found.rest, np.arange(selection.SELECTS_FROM_ROWS - 1))
    assert decided(rows(selection.SELECTS_FROM_ROWS)).used == 150


@settings(max_examples=4, deadline=None)
@given(st.integers(0, 5), st.integers(0, 1000))
def test_certifying_rows_decide_nothing(seed: int, noise: int) -> None:
    data = rows(400, seed)
    found = decided(data, fraction=0.25, seed=seed)
    other = rows(400, noise + 10)
    part, _ = split(400, 0.25, seed)
    for array, changed in zip(data, other, strict=True):
        changed[part] = array[part]
    again = decided(other, fraction=0.25, seed=seed)
    assert (found.score, found.value, found.starts, found.aurocs) == (
        again.score, again.value, again.starts, again.aurocs,
    )  # fmt: skip
    assert len(found.rest) == 300 and not set(found.rest) & set(part)


def test_each_decision_is_that_of_the_selection_part() -> None:
    data = rows(400)
    part, rest = split(400, 0.5, 0)
    found = decided(data, fraction=0.5, name="entropy")
    assert found.part.tolist() == part.tolist() and found.rest.tolist() == rest.tolist()
    assert found.score.temperature == fit_temperature(data[0][part], data[2][part]) != 1
    assert decided((*data[:2], None), fraction=0.5, name="entropy").score.temperature == 1
    assert found.starts == starts_at(found.scores[part], start_shares(200))
    inputs, lost = features(data[0][part]), data[1][part]
    assert found.value == selection.fit_logistic(inputs, lost)
    disagreements = data[1] | (np.arange(400) % 3 == 0)
    leaning = decided(data, fraction=0.5, disagreements=disagreements).value
    assert leaning == selection.fit_value(inputs, lost, disagreements[part]) != found.value
    assert decided(data, fraction=0.5, disagreements=np.ones(400)).value == found.value


def test_rows_of_a_cluster_are_in_one_part() -> None:
    """Ten clusters of ten rows, and a hundred rows alone: a tenth of the 110 is selected."""
    clusters = [f"clip {row // 10}" if row < 100 else "" for row in range(200)]
    part, rest = selection.split_clusters(clusters, 0.1, 0)
    assert sorted([*part, *rest]) == list(range(200))
    assert len({row // 10 if row < 100 else row for row in part.tolist()}) == 11
    assert not {row // 10 for row in part.tolist() if row < 100} & {row // 10 for row in rest.tolist() if row < 100}
    found = decided(rows(200), fraction=0.1, clusters=clusters)
    assert (found.part.tolist(), found.rest.tolist()) == (part.tolist(), rest.tolist())


def test_named_score_gets_the_fitted_temperature() -> None:
    data = rows(400)
    entropy = decided(data, fraction=0.5, name="entropy")
    assert entropy.score == Score("entropy", decided(data, fraction=0.5).score.temperature)
    assert entropy.score.temperature != OWN.temperature
    np.testing.assert_array_equal(entropy.scores, scores_by(entropy.score, data[0]))
    assert decided(data, fraction=0.5, name="bundle").score == OWN
    learned = decided(data, fraction=0.5, name="learned")
    assert learned.score.learned == learned.value is not None
    assert decided(data, name="margin").score == Score("margin", OWN.temperature)


def test_impossible_selections_are_refused() -> None:
    with pytest.raises(ConfigError, match="needs the edge model's logits"):
        decided(rows(50), name="energy")
    with pytest.raises(ConfigError, match="no score graph"):
        decided(rows(50), name="graph")
    with pytest.raises(ConfigError, match="set one aside"):
        decided(rows(50), name="learned")
    with pytest.raises(ConfigError, match="above 0 and below 1"):
        decided(rows(50), fraction=1.0)


def _answers(seed: int, n: int, worst_class: int | None = None) -> tuple[Any, Any]:
    """Answers over four classes whose risk falls with the margin, and is high for one class whatever the margin."""
    random = np.random.default_rng(seed)
    logits = 3 * random.normal(size=(n, 4))
    rows = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    risk = 0.4 * (1 - margin(rows)) + 0.4 * (rows.argmax(axis=1) == worst_class)
    return np.round(rows * 256).astype(np.float32) / 256, random.random(n) < risk


def test_logistic_score_matches_scikit_learn() -> None:
    from sklearn.linear_model import LogisticRegression

    rows, losses = _answers(0, 500)
    found = features(rows).astype(np.float64)
    measures = found[:, :4]
    found[:, :4] = (measures - measures.mean(axis=0)) / (measures.std(axis=0) + 1e-6)
    reference = LogisticRegression(C=0.1, max_iter=1000, tol=1e-3).fit(found, losses).predict_proba(found)[:, 0]
    np.testing.assert_allclose(
        1 - selection.fit_logistic(features(rows), losses).losses(features(rows)), reference, atol=1e-5
    )


def test_value_uses_the_model_of_disagreements() -> None:
    """A dozen losses show nothing of the classes; the disagreements around them do."""
    rng = np.random.default_rng(3)
    areas = []
    for seed in range(5):
        rows, disagreements = _answers(seed, 4000, worst_class=2)
        losses = disagreements & (rng.random(4000) < 0.1)
        few, many = slice(0, 600), slice(600, None)
        for learned in (
            selection.fit_value(features(rows[few]), losses[few], disagreements[few]),
            selection.fit_logistic(features(rows[few]), losses[few]),
        ):
            areas.append(auroc(1 - learned.losses(features(rows[many])), losses[many]))
    leaning, alone = np.array(areas).reshape(-1, 2).T
    assert leaning.mean() > alone.mean() + 0.005


def test_learned_score_wins_if_the_class_matters() -> None:
    answers, lost = _answers(2, 600, worst_class=1)
    choice = selection.choose_score(edge(answers), lost)
    assert choice.declared.kind == selection.LEARNED
    rows, losses = _answers(3, 4000, worst_class=1)
    learned, plain = auroc(scores_by(choice.declared, rows), losses), auroc(margin(rows), losses)
    assert learned > plain + 0.05


def test_too_few_losses_select_the_margin() -> None:
    rows, _ = _answers(4, 50)
    choice = selection.choose_score(edge(rows), np.arange(50) < 3)
    assert (choice.declared, dict(choice.aurocs)) == (Score("margin"), {})
    np.testing.assert_array_equal(scores_by(choice.declared, rows), score("margin", rows))
    with pytest.raises(ConfigError, match="only one kind"):
        selection.fit_logistic(features(rows), np.zeros(50, np.bool_))
    own = Score("entropy", 2.0)
    assert selection.choose_score(edge(rows), np.arange(50) < 3, own=(own, margin(rows))).declared == own


def test_energy_and_own_graph_are_candidates() -> None:
    rows, losses = _answers(5, 400)
    graph = Score("graph", graph=Artefact("score.onnx", "a" * 64, 1))
    oracle = 1.0 - losses.astype(np.float32)  # nothing beats the losses themselves
    choice = selection.choose_score(edge(rows, np.log(np.maximum(rows, 1e-3))), losses, own=(graph, oracle))
    assert set(choice.aurocs) == {"margin", "max_probability", "entropy", "energy", "graph", "learned"}
    assert (choice.declared, choice.aurocs["graph"]) == (graph, 1.0)


def test_choice_states_the_compared_temperature() -> None:
    rows, losses = _answers(6, 400)
    assert selection.choose_score(edge(rows), losses, temperature=1.7).declared.temperature == 1.7
