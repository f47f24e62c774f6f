"""What holds for the outputs of every task."""

import numpy as np
import pytest

from firstline_core.errors import InferenceError
from firstline_core.tasks import like
from firstline_core.tasks.arrays import shaped
from firstline_core.tasks.base import check_outputs
from firstline_core.types import Arrays, TensorSpec

BEFORE: Arrays = {"values": np.zeros((3, 2), np.float32), "text": np.array([b"a", b"bc", b""], object)}
LIKE = like(BEFORE)


def outputs(rows: int, **changed: object) -> Arrays:
    return {"values": np.ones((rows, 2), np.float32), "text": np.array([b"other"] * rows, object)} | changed


@pytest.mark.parametrize("rows", [1, 3, 4])
def test_outputs_of_any_number_of_rows_are_alike(rows: int) -> None:
    check_outputs(LIKE, outputs(rows, further=np.full(rows, 7)), rows)


@pytest.mark.parametrize(
    ("found", "message"),
    [
        ({}, r"'values' is nothing, expected float32 \[1, 2\]"),
        (outputs(1, values=np.ones((1, 2))), r"'values' is float64 \[1, 2\]"),
        (outputs(1, values=np.ones((1, 3), np.float32)), r"'values' is float32 \[1, 3\]"),
        (outputs(2), r"'values' is float32 \[2, 2\], expected float32 \[1, 2\]"),
        (outputs(1, text=np.array([["a"]], object)), r"'text' is object \[1, 1\], expected object \[1\]"),
        (outputs(1, values=np.array([[1, np.nan]], np.float32)), "has NaN or infinity in 'values'"),
        (outputs(1, values=np.array([[1, np.inf]], np.float32)), "has NaN or infinity in 'values'"),
    ],
)
def test_other_outputs_are_refused(found: Arrays, message: str) -> None:
    with pytest.raises(InferenceError, match=message):
        check_outputs(LIKE, found, 1)


def test_a_fault_names_the_output() -> None:
    assert LIKE.fault(outputs(2)) == ""
    assert LIKE.fault(outputs(1, values=np.array([[np.inf, 1]], np.float32))) == "NaN or infinity in 'values'"


def test_outputs_may_lack_axes_of_one_or_be_flat() -> None:
    numbers = np.arange(6, dtype=np.float32)
    for shape in ((1, 2, 3), (1, 1, 2, 3), (1, 2, 1, 3), (1, 6)):
        found = shaped(numbers.reshape(shape), TensorSpec("x", "FP32", (-1, 2, 3)), 1, "Model 'm'")
        assert found.tolist() == numbers.reshape(1, 2, 3).tolist()


def test_outputs_in_another_layout_are_refused() -> None:
    with pytest.raises(InferenceError, match=r"gave 'x' \[1, 3, 2\] for 1 row, but the bundle declares \[-1, 2, 3\]"):
        shaped(np.zeros((1, 3, 2), np.float32), TensorSpec("x", "FP32", (-1, 2, 3)), 1, "Model 'm'")
