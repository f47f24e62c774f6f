"""How decodings are compared by labels."""

from __future__ import annotations

import numpy as np

from firstline.workbench.decodings import similarity
from firstline_core.tasks.arrays import LABEL
from firstline_core.tasks.classification import Classification
from firstline_core.types import PROBABILITIES


def test_labels_do_not_favour_a_model_that_is_sure_of_everything() -> None:
    task = Classification(("circle", "square"))
    truth = {LABEL: np.array([0, 0, 0, 0, 1])}
    careful = np.array([[0.9, 0.1]] * 4 + [[0.6, 0.4]], np.float32)
    sure = np.array([[1.0, 0.0]] * 5, np.float32)
    figures = [similarity(task, {PROBABILITIES: found}, truth).mean() for found in (careful, sure)]
    assert figures[0] > figures[1]


def test_rows_without_a_label_do_not_count() -> None:
    found = similarity(
        Classification(("circle", "square")), {PROBABILITIES: np.eye(2, dtype=np.float32)}, {LABEL: np.array([0, -1])}
    )
    assert found[0] == 1
    assert np.isnan(found[1])
