"""Combines the answers to the windows of a clip. Pure."""

from __future__ import annotations

from typing import Literal

import numpy as np
from numpy.typing import NDArray

from firstline_core.types import Array

WINDOWS = "firstline/windows"
"""Name of the numbers of windows next to a model's prepared rows, and of no model's input: INT64 (rows,)."""


def combine_windows(answers: Array, counts: NDArray[np.int64], combine: Literal["mean", "max"]) -> Array:
    """Returns one answer for each clip.

    Args:
        answers: FP32 (rows, windows, ...), of which each row has `counts` windows; the others are silence.
        counts: (rows,), each at least 1.
        combine: mean or maximum of the windows.

    Returns:
        FP32 (rows, ...).
    """
    # One clip at a time, so that an answer does not depend on the windows of other clips.
    parts = [row[:count] for row, count in zip(answers, counts, strict=True)]
    each = [part.max(axis=0) if combine == "max" else part.mean(axis=0, dtype=np.float64) for part in parts]
    return np.stack(each).astype(np.float32)
