"""Standardises the numbers of each row, and maps a model's values back to the row's own units. Pure.

A model of time series is trained on windows with mean 0 and deviation 1. The mean and the deviation of each row travel
with the prepared rows. So do the numbers that follow a window, with which a forecast is compared.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from firstline_core.errors import InvalidTensorError
from firstline_core.types import Array

STANDARDIZATION: Final = "firstline/standardization"
"""Name of the side array of mean and scale, and of no model's input: FP64 (rows, 2)."""

OBSERVED: Final = "firstline/observed"
"""Name of the side array of the numbers that follow a row, in the units of the prepared rows: FP64 (rows, ...)."""

_FLAT = 1e-6


def split_observed(array: Array, samples: int) -> tuple[Array, NDArray[np.float64]]:
    """Returns the rows of a forecast model, and the numbers that follow them.

    Args:
        array: (n, ...) of numbers, in the order of time along the second axis.
        samples: number of the last ones, which the model does not see.

    Raises:
        InvalidTensorError: the rows have no more numbers than these.
    """
    if array.ndim < 2 or array.shape[1] <= samples:
        raise InvalidTensorError(
            f"The input has rows of shape {list(array.shape[1:])}; the last {samples} numbers of a row are the "
            "observed ones, and the model takes those before them."
        )
    return array[:, :-samples], array[:, -samples:].astype(np.float64)


def standardize(array: Array) -> tuple[NDArray[np.float32], NDArray[np.float64]]:
    """Returns (x - mean) / scale of each row, and its mean and scale.

    The scale is the population standard deviation. It is 1 if the row is flat: if the deviation is at most a millionth
    of the mean's size or of 1. Both are computed in FP64, because FP32 loses small changes of large numbers.

    Args:
        array: (n, ...) of finite numbers.

    Returns:
        FP32 of the same shape, and FP64 (n, 2).
    """
    rows = array.reshape(len(array), -1).astype(np.float64)
    mean = rows.mean(axis=1, keepdims=True)
    scale = rows.std(axis=1, keepdims=True)
    scale[scale <= _FLAT * np.maximum(1, np.abs(mean))] = 1
    standard = ((rows - mean) / scale).astype(np.float32).reshape(array.shape)
    return standard, np.concatenate((mean, scale), axis=1)


def in_units_of(values: Array, standardization: NDArray[np.float64]) -> NDArray[np.float64]:
    """Returns (x - mean) / scale with the mean and the scale of each row.

    Args:
        values: (n, ...).
        standardization: (n, 2), from `standardize`.
    """
    mean, scale = (part.reshape(-1, *(1,) * (values.ndim - 1)) for part in standardization.T)
    return np.asarray((values - mean) / scale, np.float64)
