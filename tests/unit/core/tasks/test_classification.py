"""The checks of a classifier's outputs."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from firstline_core.errors import InferenceError
from firstline_core.tasks.classification import Outputs, check, fault, independent, single_label
from firstline_core.types import Array, Tensor

SINGLE = single_label(10)


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
    assert fault(probabilities, SINGLE) == ""


@pytest.mark.parametrize(
    ("probabilities", "said"),
    [
        (np.full((1, 10), 0.9, np.float32), "sums to 9"),
        (-np.full((1, 10), 0.1, np.float32), "values from -0.1 to -0.1"),
        (np.concatenate([rows(1.0), rows(0.84)]), "sums to 0.84, outside of 0.85 to 1.05"),
        (rows(1.0, 0.06), "sums to 1.06"),
        (rows(1.5, -0.5), "values from -0.5 to 1.5 for 1 of 1 rows"),
        (np.concatenate([rows(1.0), rows(np.nan), rows(np.inf)]), "NaN or infinity for 2 of 3 rows"),
        (rows(), "sums to 0"),
    ],
)
def test_impossible_probabilities_are_named(probabilities: Array, said: str) -> None:
    assert said in fault(probabilities, SINGLE)


def test_independent_labels_may_sum_to_anything() -> None:
    declared = independent(10)
    assert fault(np.full((2, 10), 0.9, np.float32), declared) == ""
    assert fault(rows(), declared) == ""
    assert "outside of 0 to 1" in fault(rows(1.1), declared)
    assert "NaN" in fault(rows(np.nan), declared)


def test_a_dropped_class_may_take_the_whole_sum() -> None:
    assert fault(rows(0.1), single_label(10, cut=True)) == ""
    assert fault(rows(0.9, 0.9), single_label(10, cut=True)) != ""


@given(
    labels=st.sampled_from([2, 10, 100, 1000]),
    logits=st.data(),
    spread=st.floats(0, 10),
)
def test_every_quantised_softmax_is_accepted(labels: int, logits: st.DataObject, spread: float) -> None:
    drawn = logits.draw(arrays.arrays(np.float64, (2, labels), elements=st.floats(-1, 1), fill=st.floats(-1, 1)))
    assert fault(quantised(drawn * spread), single_label(labels, rounded=True)) == ""


@pytest.mark.parametrize(
    "found",
    [
        (),
        (Tensor("logits", rows(1.0)),),
        (Tensor("probabilities", rows(1.0).astype(np.float64)),),
        (Tensor("probabilities", rows(1.0)[:, :9]),),
        (Tensor("probabilities", np.concatenate([rows(1.0)] * 2)),),
    ],
)
def test_another_name_type_or_shape_is_refused(found: tuple[Tensor, ...]) -> None:
    with pytest.raises(InferenceError, match=r"expected float32 \[1, 10\]"):
        check(found, SINGLE, 1)


@pytest.mark.parametrize("declared", [SINGLE, independent(10)])
def test_accepted_outputs_are_returned_unchanged(declared: Outputs) -> None:
    probabilities = rows(0.75, 0.25)
    assert check((Tensor("other", rows()), Tensor("probabilities", probabilities)), declared, 1) is probabilities
