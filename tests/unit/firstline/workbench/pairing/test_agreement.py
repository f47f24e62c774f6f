"""The comparison of both models before use, and proposed operating scores."""

import numpy as np
import pytest

from firstline.workbench.pairing.agreement import check_agreement, propose_score
from firstline_core.errors import ConfigError
from firstline_core.tasks.classification import Classification
from firstline_core.tasks.detection import Detection
from firstline_core.types import Arrays

DETECTION = Detection(("cat", "dog"), k=4)
CLASSES = Classification(tuple("abcdefghij"))


def _boxes(*rows: list[tuple[float, int, float]]) -> Arrays:
    """Outputs with boxes of 10 x 10 pixels at (left, class, score)."""
    outputs = {
        "boxes": np.zeros((len(rows), 4, 4), np.float32),
        "scores": np.zeros((len(rows), 4), np.float32),
        "classes": np.full((len(rows), 4), -1, np.int64),
        "count": np.array([len(row) for row in rows]),
    }
    for at, row in enumerate(rows):
        for place, (left, label, score) in enumerate(row):
            outputs["boxes"][at, place] = [left, 0, left + 10, 10]
            outputs["scores"][at, place], outputs["classes"][at, place] = score, label
    return outputs


def _says(labels: np.ndarray[tuple[int], np.dtype[np.int64]]) -> Arrays:
    return {"probabilities": np.eye(10, dtype=np.float32)[labels % 10]}


FULL = _boxes([(0, 0, 0.9), (50, 1, 0.8)], [(20, 1, 0.7)], [])


def test_detectors_that_agree_are_counted() -> None:
    edge = _boxes([(1, 0, 0.6)], [(20, 1, 0.7)], [(70, 0, 0.5)])
    sentence = check_agreement(DETECTION, edge, FULL, {})
    assert sentence == "it finds 2 of the 3 objects that the full model finds, and 1 others"


def test_a_detector_with_other_boxes_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"finds 0 of the 3 objects.*read wrongly.*No bundle was made"):
        check_agreement(DETECTION, _boxes([(30, 0, 0.9)], [(90, 1, 0.9)], []), FULL, {})


def test_a_saturated_output_is_named_as_the_cause() -> None:
    raw = np.random.default_rng(0).uniform(0, 0.9, (1, 50, 7)).astype(np.float32)
    raw[0, :20, :4] = 0.996
    with pytest.raises(ConfigError, match=r"40% of the box terms in its output 'out' are exactly .* or 0.996"):
        check_agreement(DETECTION, _boxes([], [], []), FULL, {"out": raw})


def test_a_full_model_without_any_object_is_refused() -> None:
    with pytest.raises(ConfigError, match="finds no object in the data"):
        check_agreement(DETECTION, FULL, _boxes([], [], []), {})


def test_one_label_for_all_rows_shows_nothing() -> None:
    edge = {"probabilities": np.array([[0.9, 0.1], [0.8, 0.2]], np.float32)}
    full = {"probabilities": np.array([[0.7, 0.3], [0.8, 0.2]], np.float32)}
    with pytest.raises(ConfigError, match="one and the same label to all 2 rows"):
        check_agreement(Classification(("a", "b")), edge, full, {})


def test_classifiers_that_agree_by_chance_are_refused() -> None:
    labels = np.random.default_rng(0).integers(0, 10, 200)
    assert check_agreement(CLASSES, _says(labels), _says(labels), {}).startswith(
        "both models give the same label to 100%"
    )
    with pytest.raises(ConfigError, match="labels have another order"):
        check_agreement(CLASSES, _says(np.random.default_rng(1).integers(0, 10, 200)), _says(labels), {})
    with pytest.raises(ConfigError, match="shifted by 1 against those of the full model, as by a background class"):
        check_agreement(CLASSES, _says(labels + 1), _says(labels), {})


@pytest.mark.parametrize(("usual", "score"), [(0.3, 0.65), (0.7, 0.7)])
def test_the_operating_score_with_the_best_f1_is_proposed(usual: float, score: float) -> None:
    edge = _boxes([(0, 0, 0.9), (50, 1, 0.75), (90, 0, 0.6)], [(20, 1, 0.7), (60, 0, 0.5)], [(70, 0, 0.4)])
    proposed = propose_score(DETECTION, edge, FULL, usual, "the full model")
    assert proposed.score == score
    assert "F1 1.00 against the full model" in proposed.why
