"""Standardises the numbers of each row, and maps a model's values back to the row's own units. Pure.

A model of time series is trained on windows with mean 0 and deviation 1. The mean and the deviation of each row travel
with the prepared rows.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from firstline_core.types import Array

STANDARDIZATION: Final = "firstline/standardization"
"""Name of the side array of mean and scale, and of no model's input: FP64 (rows, 2)."""

_FLAT = 1e-6


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
