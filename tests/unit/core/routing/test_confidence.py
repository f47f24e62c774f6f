from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from firstline_core.errors import ConfigError, InvalidTensorError
from firstline_core.routing.confidence import (
    MEASURES,
    Logistic,
    auroc,
    energy,
    entropy,
    features,
    margin,
    max_probability,
    score,
    temper,
)

ROWS = np.array([[0.7, 0.2, 0.1], [0.4, 0.4, 0.2], [1, 0, 0], [1 / 3, 1 / 3, 1 / 3]], np.float32)
KINDS: Any = ["max_probability", "margin", "entropy"]


def test_the_scores_by_hand() -> None:
    np.testing.assert_allclose(max_probability(ROWS), [0.7, 0.4, 1, 1 / 3])
    np.testing.assert_allclose(margin(ROWS), [0.5, 0, 1, 0], atol=1e-7)
    by_hand = [1 + sum(p * np.log(p) for p in row if p > 0) / np.log(3) for row in ROWS.tolist()]
    np.testing.assert_allclose(entropy(ROWS), by_hand, atol=1e-6)


def test_tempering_probabilities_is_tempering_logits() -> None:
    logits = np.random.default_rng(0).normal(size=(20, 7)).astype(np.float32)
    expected = np.exp(logits / 2.5) / np.exp(logits / 2.5).sum(axis=1, keepdims=True)
    probabilities = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    np.testing.assert_allclose(temper(probabilities, 2.5), expected, rtol=1e-4)


def test_a_quantised_row_is_normalised_and_its_zeros_stay_last() -> None:
    found = temper(np.array([[0.5, 0.25, 0.0]], np.float32), 1.0)
    np.testing.assert_allclose(found, [[2 / 3, 1 / 3, 0]], atol=1e-6)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_a_row_that_is_no_number_scores_nan_and_harms_no_other(kind: Any, bad: float) -> None:
    rows = ROWS.copy()
    rows[1, 0] = bad
    with np.errstate(invalid="ignore"):
        found = score(kind, rows)
    assert np.isnan(found[1])
    np.testing.assert_array_equal(np.delete(found, 1), np.delete(score(kind, ROWS), 1))


@pytest.mark.parametrize("shape", [(3,), (3, 1), (2, 2, 2)])
def test_what_is_no_matrix_of_classes_is_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(InvalidTensorError, match=r"\[rows, classes >= 2\]"):
        score("margin", np.ones(shape, np.float32))


def test_energy_is_the_log_of_the_summed_exponentials() -> None:
    logits = np.array([[1.0, 2.0, 3.0], [1000.0, 0.0, 0.0]], np.float32)
    np.testing.assert_allclose(energy(logits), [np.log(np.exp([1, 2, 3]).sum()), 1000], rtol=1e-6)
    np.testing.assert_allclose(energy(logits, 2.0)[0], 2 * np.log(np.exp([0.5, 1, 1.5]).sum()), rtol=1e-6)


def test_auroc_counts_pairs_and_half_of_ties() -> None:
    random = np.random.default_rng(0)
    scores, failed = random.integers(0, 6, 80) / 8, random.random(80) < 0.3
    pairs = [(good > bad) + (good == bad) / 2 for good in scores[~failed] for bad in scores[failed]]
    assert auroc(scores, failed) == pytest.approx(np.mean(pairs))
    assert auroc(np.array([0.9, 0.1]), np.array([False, True])) == 1
    assert auroc(scores, np.zeros(80, np.bool_)) is None


def test_the_usual_score_is_to_the_bit_that_of_the_tempered_row() -> None:
    rows = np.random.default_rng(3).dirichlet(np.full(10, 0.2), 500).astype(np.float32)
    for found in (rows, np.zeros((1, 3), np.float32), np.array([[np.nan, 1.0]], np.float32)):
        np.testing.assert_array_equal(score("max_probability", found), max_probability(temper(found, 1.0)))


@pytest.mark.parametrize("temperature", [0.7, 1.0, 1.8])
@pytest.mark.parametrize("classes", [2, 10, 32])
def test_one_row_alone_reaches_the_threshold_that_it_ties_with(classes: int, temperature: float) -> None:
    """Of an overconfident model a large share of the rows ties, and a certificate may end just there."""
    random = np.random.default_rng(5)
    logits = random.normal(size=(500, classes)) * random.choice([1, 5, 30], size=(500, 1))
    rows = np.exp(logits - logits.max(axis=1, keepdims=True))
    rows = (rows / rows.sum(axis=1, keepdims=True)).astype(np.float32)
    alone = [float(score("max_probability", row[None], temperature=temperature)[0]) for row in rows]
    assert alone == score("max_probability", rows, temperature=temperature).tolist()


SATURATED_ROWS = np.array([[0.7, 0.2, 0.1], [0.0, 0.0, 255 / 256]], np.float32)


def test_features_by_hand() -> None:
    found = features(SATURATED_ROWS)
    np.testing.assert_allclose(found[0, [0, 2, 3]], [0.5, np.log(0.2), np.log(0.7)], atol=1e-5)
    np.testing.assert_array_equal(found[:, MEASURES:], [[1, 0, 0], [0, 0, 1]])
    assert found[1, 2] == pytest.approx(np.log(1 / 512))  # what a quantised softmax rounds to zero


def test_with_many_classes_the_class_says_nothing() -> None:
    assert features(np.full((2, 1000), 0.001, np.float32)).shape == (2, MEASURES)


def test_a_logistic_score_is_one_minus_the_probability() -> None:
    weights = (-2.0, 0.0, 0.0, 0.0, 1.0, 0.0, 0.0)
    found = Logistic(weights, 0.5).score(SATURATED_ROWS)
    np.testing.assert_allclose(found, 1 - 1 / (1 + np.exp([-0.5, 1.5])), rtol=1e-4)
    assert found.dtype == np.float32
    with pytest.raises(ConfigError, match="7 weights, but 4 classes give 8"):
        Logistic(weights, 0.5).score(np.full((1, 4), 0.25, np.float32))
