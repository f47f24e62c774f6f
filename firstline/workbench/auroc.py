"""The area under the ROC curve: how well a score tells failed rows from successful ones."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


def auroc(scores: NDArray[np.floating], failed: NDArray[np.bool_]) -> float | None:
    """Returns the area under the ROC curve: the probability that a failed row has a lower score than a successful one.

    Computed from ranks (Mann and Whitney 1947); equal scores count one half.

    Args:
        scores: (n,), higher means more certain.
        failed: (n,), such as "edge disagrees with full".

    Returns:
        1 for a perfect order, 0.5 for a random one; None if no row or every row failed.
    """
    bad = int(failed.sum())
    good = len(failed) - bad
    if not bad or not good:
        return None
    _, inverse, counts = np.unique(scores, return_inverse=True, return_counts=True)
    ranks = (np.cumsum(counts) - (counts - 1) / 2)[inverse]
    return float((ranks[~failed].sum() - good * (good + 1) / 2) / (bad * good))
