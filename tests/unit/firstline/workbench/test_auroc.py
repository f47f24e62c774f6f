import numpy as np
import pytest

from firstline.workbench.auroc import auroc


def test_auroc_counts_pairs_and_half_of_ties() -> None:
    random = np.random.default_rng(0)
    scores, failed = random.integers(0, 6, 80) / 8, random.random(80) < 0.3
    pairs = [(good > bad) + (good == bad) / 2 for good in scores[~failed] for bad in scores[failed]]
    assert auroc(scores, failed) == pytest.approx(np.mean(pairs))
    assert auroc(np.array([0.9, 0.1]), np.array([False, True])) == 1
    assert auroc(scores, np.zeros(80, np.bool_)) is None
