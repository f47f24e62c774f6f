from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from firstline_core.errors import InvalidTensorError
from firstline_core.runtime.base import cast_feed


@pytest.mark.parametrize(
    ("given", "dtype", "said"),
    [
        (
            np.array([[1.0, -1e6]], np.float32),
            np.float16,
            r"float16, up to 65504, but was fed values up to 1e\+06",
        ),
        (np.array([[1e300]]), np.float32, r"takes float32, up to 3\.40282e\+38, but was fed values up to 1e\+300"),
        (np.array([[np.nan, 1e300]]), np.float32, r"up to 1e\+300"),
        (np.array([[70_000]], np.int64), np.float16, "up to 70000"),
    ],
)
def test_no_finite_value_becomes_infinite(given: Any, dtype: type, said: str) -> None:
    with pytest.raises(InvalidTensorError, match=f"'x' .*{said}"):
        cast_feed("x", given, np.dtype(dtype))


@pytest.mark.parametrize(
    ("given", "dtype"),
    [
        (np.array([[65504.0, -65504.0]], np.float32), np.float16),
        (np.array([[2**24 + 1]], np.int64), np.float32),
        (np.array([[True, False]]), np.float16),
        (np.array([[np.inf, np.nan]]), np.float32),  # what a graph says, the model may hear
        (np.zeros((0, 3)), np.float32),
    ],
)
def test_lossless_casts_are_accepted(given: Any, dtype: type) -> None:
    found = cast_feed("x", given, np.dtype(dtype))
    np.testing.assert_array_equal(found, given.astype(dtype), strict=True)
