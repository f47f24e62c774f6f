"""Classification: the checks of a classifier's outputs, scores, features and comparisons."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from PIL import Image

from firstline_core.errors import ConfigError, InferenceError, InvalidTensorError
from firstline_core.processing.steps import Softmax
from firstline_core.tasks.base import DeclaredOutputs, check_outputs
from firstline_core.tasks.classification import (
    LOGITS,
    Classification,
    energy,
    entropy,
    features,
    margin,
    max_probability,
    score,
    temper,
)
from firstline_core.types import PROBABILITIES, Array, Arrays, TensorSpec


def declared(
    labels: int = 10, *, independent: bool = False, rounded: bool = False, cut: bool = False
) -> DeclaredOutputs:
    task = Classification(tuple(map(str, range(labels))), independent=independent)
    return task.declared(rounded=rounded, cut=cut)


SINGLE = declared()


def rows(*values: float) -> Array:
    """One row of ten labels: these, then zeros."""
    return np.array([[*values, *[0.0] * (10 - len(values))]], np.float32)


def quantised(logits: Array) -> Array:
    """The softmax as eight bits hold it, dequantised."""
    exponentials = np.exp(logits - logits.max(axis=1, keepdims=True))
    steps = np.clip(np.round(exponentials / exponentials.sum(axis=1, keepdims=True) * 256), 0, 255)
    return (steps / 256).astype(np.float32)


@pytest.mark.parametrize(
    "probabilities",
    [
        rows(1.0),
        rows(0.91),  # a quantised softmax
        rows(0.6, 0.25),
        rows(1.0, 0.05),
        np.full((3, 10), 0.1, np.float32),
        rows(np.float32(255) * np.float32(1 / 255)),  # a rounding above 1
    ],
)
def test_probabilities_of_exclusive_labels_are_accepted(probabilities: Array) -> None:
    assert SINGLE.fault({PROBABILITIES: probabilities}) == ""


@pytest.mark.parametrize(
    ("probabilities", "message"),
    [
        (np.full((1, 10), 0.9, np.float32), "sums to 9"),
        (-np.full((1, 10), 0.1, np.float32), "values from -0.1 to -0.1"),
        (np.concatenate([rows(1.0), rows(0.84)]), "sums to 0.84, outside of 0.85 to 1.05"),
        (np.concatenate([rows(1.0), rows(1.0, 0.06)]), "sums to 1.06"),
        (rows(1.5, -0.5), "values from -0.5 to 1.5 for 1 of 1 rows"),
        (np.concatenate([rows(1.0), rows(np.nan), rows(np.inf)]), "NaN or infinity for 2 of 3 rows"),
        (rows(), "sums to 0"),
    ],
)
def test_impossible_probabilities_are_named(probabilities: Array, message: str) -> None:
    assert message in SINGLE.fault({PROBABILITIES: probabilities})


def test_independent_labels_may_sum_to_anything() -> None:
    fault = declared(independent=True, rounded=True).fault
    assert fault({PROBABILITIES: np.full((2, 10), 0.9, np.float32)}) == ""
    assert fault({PROBABILITIES: rows()}) == ""
    assert "outside of 0 to 1" in fault({PROBABILITIES: rows(1.1)})
    assert "NaN" in fault({PROBABILITIES: rows(np.nan)})


def test_a_dropped_class_may_take_the_whole_sum() -> None:
    assert declared(cut=True).fault({PROBABILITIES: rows(0.1)}) == ""
    assert declared(cut=True).fault({PROBABILITIES: rows(0.9, 0.9)}) != ""


@given(labels=st.sampled_from([2, 10, 100, 1000]), logits=st.data(), spread=st.floats(0, 10))
def test_every_quantised_softmax_is_accepted(labels: int, logits: st.DataObject, spread: float) -> None:
    drawn = logits.draw(arrays.arrays(np.float64, (2, labels), elements=st.floats(-1, 1), fill=st.floats(-1, 1)))
    assert declared(labels, rounded=True).fault({PROBABILITIES: quantised(drawn * spread)}) == ""


@pytest.mark.parametrize(
    "found",
    [
        {},
        {"logits": rows(1.0)},
        {PROBABILITIES: rows(1.0).astype(np.float64)},
        {PROBABILITIES: rows(1.0)[:, :9]},
        {PROBABILITIES: np.concatenate([rows(1.0)] * 2)},
    ],
)
def test_another_name_type_or_shape_is_refused(found: Arrays) -> None:
    with pytest.raises(InferenceError, match=r"expected float32 \[1, 10\]"):
        check_outputs(SINGLE, found, 1)


@pytest.mark.parametrize("independent", [False, True])
def test_further_outputs_are_accepted(independent: bool) -> None:
    check_outputs(declared(independent=independent), {"other": rows(), PROBABILITIES: rows(0.75, 0.25)}, 1)


TASK = Classification(("a", "b", "c"))


def answers(*values: list[float]) -> Arrays:
    return {PROBABILITIES: np.array(values, np.float32)}


class TestClassification:
    def test_it_declares_one_probability_per_label(self) -> None:
        assert TASK.outputs == (TensorSpec(PROBABILITIES, "FP32", (-1, 3)),)
        assert TASK.declared(rounded=True, cut=False).outputs == TASK.outputs

    def test_one_label_is_too_few(self) -> None:
        with pytest.raises(ValueError, match="at least two labels"):
            Classification(("a",))

    def test_a_loss_is_another_likeliest_label(self) -> None:
        edge, full = answers([0.5, 0.3, 0.2], [0.5, 0.3, 0.2]), answers([0.9, 0.1, 0.0], [0.4, 0.6, 0.0])
        assert TASK.loss(edge, full).tolist() == [0, 1]

    def test_groups_are_the_predicted_labels(self) -> None:
        assert TASK.groups(answers([0.5, 0.3, 0.2], [0.1, 0.2, 0.7])) == ["a", "c"]

    def test_an_event_counts_the_rows_of_its_label(self) -> None:
        edge = answers([0.5, 0.3, 0.2], [0.5, 0.3, 0.2], [0.1, 0.2, 0.7])
        full = answers([0.9, 0.1, 0.0], [0.4, 0.6, 0.0], [0.1, 0.8, 0.1])
        missed, invented = TASK.events_of(["missed b", "invented a"], edge, full).values()
        assert (missed.counts.tolist(), missed.loss.tolist()) == ([False, True, True], [0, 1, 1])
        assert (invented.counts.tolist(), invented.loss.tolist()) == ([True, True, False], [0, 1, 0])
        assert TASK.events[:2] == ("missed a", "invented a")
        assert TASK.occurrences(edge).tolist() == [[1, 0, 0], [1, 0, 0], [0, 0, 1]]
        with pytest.raises(ConfigError, match="no event 'lost a'; use one of missed a, invented a"):
            TASK.events_of(["lost a"], edge, full)

    def test_an_event_counts_all_classes_of_its_label(self) -> None:
        cranes = Classification(("crane", "dog", "crane"))
        edge = answers([0.1, 0.8, 0.1], [0.1, 0.1, 0.8], [0.1, 0.8, 0.1])
        full = answers([0.1, 0.1, 0.8], [0.1, 0.1, 0.8], [0.1, 0.8, 0.1])
        missed = cranes.events_of(["missed crane"], edge, full)["missed crane"]
        assert (missed.counts.tolist(), missed.loss.tolist()) == ([True, True, False], [1, 0, 0])

    def test_the_summary_counts_labelled_rows(self) -> None:
        outputs = answers([0.5, 0.3, 0.2], [0.1, 0.2, 0.7], [0.1, 0.2, 0.7], [0.1, 0.2, 0.7])
        truth = {"label": np.array([0, 1, 2, -1])}
        figures = TASK.summary(outputs, {}, truth)
        assert figures == {"accuracy": pytest.approx(2 / 3), "f1": pytest.approx((1 + 0 + 2 / 3) / 3)}
        assert TASK.truth_loss(outputs, truth).tolist() == [0, 1, 0, 1]
        with pytest.raises(ConfigError, match="labelled rows"):
            TASK.summary(outputs, {}, {"label": np.full(4, -1)})

    def test_a_drawing_shows_the_label(self) -> None:
        plain = Image.new("L", (200, 100))
        drawn = TASK.draw(plain, answers([0.5, 0.3, 0.2]), 0)
        assert (drawn.mode, drawn.size, plain.getbbox()) == ("RGB", (200, 100), None)
        assert drawn.crop((0, 0, 60, 20)).getbbox() is not None
        assert drawn.crop((100, 50, 200, 100)).getbbox() is None
        assert TASK.draw(Image.new("RGB", (24, 20)), answers([0.5, 0.3, 0.2]), 0).size == (144, 120)

    def test_supposed_losses_are_the_missing_probability(self) -> None:
        np.testing.assert_allclose(TASK.supposed_losses(answers([0.5, 0.3, 0.2]), {}), [0.5])

    def test_the_difference_is_that_of_a_probability(self) -> None:
        expected = answers([0.5, 0.3, 0.2], [0.1, 0.2, 0.7])
        assert TASK.difference(expected, answers([0.5, 0.3, 0.2], [0.1, 0.3, 0.6])) == pytest.approx(0.1)
        assert TASK.difference(expected, answers([0.5, 0.3, 0.2])) == float("inf")
        unknown = answers([0.5, 0.3, 0.2], [0.1, 0.2, np.nan])
        assert TASK.difference(expected, unknown) == TASK.difference(unknown, expected) == float("inf")

    def test_only_the_energy_score_uses_the_logits(self) -> None:
        logits = {LOGITS: np.array([[1.0, 2.0, 3.0]], np.float32)}
        outputs = answers([0.5, 0.3, 0.2])
        np.testing.assert_array_equal(TASK.score("energy", outputs, logits), energy(logits[LOGITS]))
        for kind in ("max_probability", "margin", "entropy"):
            expected = score(kind, outputs[PROBABILITIES], temperature=2.0)
            np.testing.assert_array_equal(TASK.score(kind, outputs, logits, temperature=2.0), expected)
        with pytest.raises(InvalidTensorError, match="needs logits"):
            TASK.score("energy", outputs, {})


ROWS = np.array([[0.7, 0.2, 0.1], [0.4, 0.4, 0.2], [1, 0, 0], [1 / 3, 1 / 3, 1 / 3]], np.float32)
SCORES = ["max_probability", "margin", "entropy"]


def test_the_scores_by_hand() -> None:
    np.testing.assert_allclose(max_probability(ROWS), [0.7, 0.4, 1, 1 / 3])
    np.testing.assert_allclose(margin(ROWS), [0.5, 0, 1, 0], atol=1e-7)
    by_hand = [1 + sum(p * np.log(p) for p in row if p > 0) / np.log(3) for row in ROWS.tolist()]
    np.testing.assert_allclose(entropy(ROWS), by_hand, atol=1e-6)
    for kind, function in zip(SCORES, (max_probability, margin, entropy), strict=True):
        np.testing.assert_array_equal(score(kind, ROWS, temperature=2.0), function(temper(ROWS, 2.0)))


def test_tempering_probabilities_is_tempering_logits() -> None:
    logits = np.random.default_rng(0).normal(size=(20, 7)).astype(np.float32)
    expected = np.exp(logits / 2.5) / np.exp(logits / 2.5).sum(axis=1, keepdims=True)
    probabilities = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    np.testing.assert_allclose(temper(probabilities, 2.5), expected, rtol=1e-4)


@pytest.mark.parametrize("kind", SCORES)
def test_probabilities_of_double_precision_have_the_same_scores(kind: str) -> None:
    probabilities = np.random.default_rng(0).random((50, 7))  # rows need not sum to 1
    np.testing.assert_array_equal(score(kind, probabilities), score(kind, probabilities.astype(np.float32)))


def test_a_quantised_row_is_normalised() -> None:
    found = temper(np.array([[0.5, 0.25, 0.0]], np.float32), 1.0)
    np.testing.assert_allclose(found, [[2 / 3, 1 / 3, 0]], atol=1e-6)


@pytest.mark.parametrize("kind", SCORES)
@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_a_row_with_nan_scores_nan_alone(kind: str, bad: float) -> None:
    rows = ROWS.copy()
    rows[1, 0] = bad
    with np.errstate(invalid="ignore"):
        found = score(kind, rows)
    assert np.isnan(found[1])
    np.testing.assert_array_equal(np.delete(found, 1), np.delete(score(kind, ROWS), 1))


@pytest.mark.parametrize("shape", [(3,), (3, 1), (2, 2, 2)])
def test_a_score_needs_a_matrix_of_classes(shape: tuple[int, ...]) -> None:
    with pytest.raises(InvalidTensorError, match=r"\[rows, classes >= 2\]"):
        score("margin", np.ones(shape, np.float32))


def test_energy_is_the_log_of_the_summed_exponentials() -> None:
    logits = np.array([[1.0, 2.0, 3.0], [1000.0, 0.0, 0.0]], np.float32)
    np.testing.assert_allclose(energy(logits), [np.log(np.exp([1, 2, 3]).sum()), 1000], rtol=1e-6)
    np.testing.assert_allclose(energy(logits, 2.0)[0], 2 * np.log(np.exp([0.5, 1, 1.5]).sum()), rtol=1e-6)


def test_the_usual_score_equals_the_tempered_one() -> None:
    rows = np.random.default_rng(3).dirichlet(np.full(10, 0.2), 500).astype(np.float32)
    for found in (rows, np.zeros((1, 3), np.float32), np.array([[np.nan, 1.0]], np.float32)):
        np.testing.assert_array_equal(score("max_probability", found), max_probability(temper(found, 1.0)))


@pytest.mark.parametrize("temperature", [0.7, 1.0, 1.8])
@pytest.mark.parametrize("classes", [2, 10, 32])
def test_a_row_scores_the_same_alone_and_in_a_batch(classes: int, temperature: float) -> None:
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
    np.testing.assert_array_equal(found[:, 4:], [[1, 0, 0], [0, 0, 1]])
    assert found[1, 2] == pytest.approx(np.log(1 / 512))  # what a quantised softmax rounds to zero


def test_many_classes_have_no_one_hot_features() -> None:
    assert features(np.full((2, 1000), 0.001, np.float32)).shape == (2, 4)


TAGS = Classification(("dog", "cat", "bird"), independent=True)


def tags(*rows: list[float]) -> dict[str, Any]:
    return {PROBABILITIES: np.array(rows, np.float32)}


def test_an_answer_of_independent_labels_is_a_set() -> None:
    edge, full = tags([0.9, 0.6, 0.1], [0.9, 0.6, 0.1], [0, 0, 0]), tags([0.5, 0.9, 0.4], [0.9, 0.4, 0.1], [0, 0.4, 0])
    assert TAGS.loss(edge, full).tolist() == [0, 1, 0]
    missed, invented = TAGS.events_of(["missed cat", "invented cat"], edge, full).values()
    assert (missed.counts.tolist(), missed.loss.tolist()) == ([True, False, False], [0, 0, 0])
    assert (invented.counts.tolist(), invented.loss.tolist()) == ([True, True, False], [0, 1, 0])
    assert TAGS.occurrences(edge).tolist() == [[1, 1, 0], [1, 1, 0], [0, 0, 0]]
    assert TAGS.describe(edge, 0)["labels"] == ["dog", "cat"] and TAGS.describe(edge, 2)["labels"] == []
    assert "labels" not in Classification(("a", "b")).describe(tags([0.9, 0.1]), 0)


def test_scores_of_independent_labels_are_of_the_least_certain_one() -> None:
    found = tags([0.9, 0.3, 0.02], [0.5, 1, 0])
    assert TAGS.score("max_probability", found, {}) == pytest.approx([0.7, 0.5])
    assert TAGS.score("margin", found, {}) == pytest.approx([0.4, 0])
    assert TAGS.score("margin", found, {}, temperature=2) == pytest.approx([0.2087, 0], abs=1e-3)
    assert TAGS.score("entropy", tags([0.5, 0.5, 0.5], [1, 0, 1]), {}) == pytest.approx([0, 1], abs=1e-5)
    assert TAGS.supposed_losses(found, {}) == pytest.approx([1 - 0.9 * 0.7 * 0.98, 0.5], abs=1e-5)
    assert "labels that exclude each other" in TAGS.unscored("energy", (Softmax(),))
    with pytest.raises(InvalidTensorError, match="labels that exclude each other"):
        TAGS.score("energy", found, {})


def test_thresholds_decide_which_labels_are_in_the_answer() -> None:
    task = Classification(TAGS.labels, independent=True, thresholds=(0.2, 0.5, 0.8))
    edge, full = tags([0.25, 0.6, 0.7], [0.1, 0.6, 0.9]), tags([0.9, 0.9, 0.9], [0.3, 0.6, 0.79])
    assert task.occurrences(edge).tolist() == [[1, 1, 0], [0, 1, 1]]
    assert task.loss(edge, edge).tolist() == [0, 0] and task.loss(edge, full).tolist() == [1, 1]
    assert TAGS.loss(tags([0.25, 0.6, 0.7]), tags([0.3, 0.6, 0.6])).tolist() == [0]
    assert task.events_of(["missed dog"], edge, full)["missed dog"].loss.tolist() == [0, 1]
    assert task.events_of(["invented bird"], edge, full)["invented bird"].loss.tolist() == [0, 1]
    assert task.truth_loss(edge, {"label": np.array([[1, 1, 0], [1, 1, 0]], np.bool_)}).tolist() == [0, 1]
    assert task.describe(edge, 0)["labels"] == ["dog", "cat"]
    # A probability at its threshold is as uncertain as 0.5 without one, and certain ones stay certain.
    assert task.score("margin", tags([0.2, 0, 0], [0, 0, 0.8], [1, 1, 0]), {}) == pytest.approx([0, 0, 1], abs=1e-5)
    assert task.score("max_probability", tags([0.5, 1, 1]), {}) == pytest.approx([0.8])
    assert task.supposed_losses(tags([0.5, 1, 1]), {}) == pytest.approx([0.2], abs=1e-5)
    halves = Classification(TAGS.labels, independent=True, thresholds=(0.5, 0.5, 0.5))
    assert halves.features(edge, {}) == pytest.approx(TAGS.features(edge, {}))
    digests = {one.digest for one in (TAGS, task, halves, Classification(TAGS.labels))}
    assert len(digests) == 4


@pytest.mark.parametrize(
    ("fields", "message"),
    [({"thresholds": (0.5, 0.5)}, "independent labels"), ({"independent": True, "thresholds": (0.5,)}, "one for each")],
)
def test_thresholds_need_independent_labels(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Classification(("a", "b"), **fields)


def test_the_quality_of_sets() -> None:
    outputs, truth = tags([0.9, 0.6, 0.1], [0.9, 0.1, 0.1]), {"label": np.array([[1, 1, 0], [1, 1, 0]], np.bool_)}
    assert TAGS.truth_loss(outputs, truth).tolist() == [0, 1]
    assert TAGS.summary(outputs, {}, truth) == pytest.approx({"accuracy": 0.5, "f1": (1 + 2 / 3) / 2})
    [spec] = TAGS.truth
    assert (spec.datatype, spec.shape) == ("BOOL", (-1, 3))
