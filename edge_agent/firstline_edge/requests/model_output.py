"""The output of a model for one row."""

from __future__ import annotations

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray


class ModelOutput(Struct, frozen=True, eq=False):
    """The output of one model for one row.

    Args:
        probabilities: FP32 (classes,).
        score: the edge model's confidence; None for the full model.
        value: P(edge wrong and full right), the value of asking the full model; None if the bundle learned none.
    """

    probabilities: NDArray[np.float32]
    score: float | None = None
    value: float | None = None
