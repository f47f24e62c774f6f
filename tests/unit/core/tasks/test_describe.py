"""Answers for people."""

import numpy as np

from firstline_core.tasks import describe
from firstline_core.tasks.classification import Classification
from firstline_core.tasks.detection import Detection
from firstline_core.types import PROBABILITIES, Arrays


def detections() -> Arrays:
    """Two frames: one dog in the first, nothing in the second."""
    boxes = np.zeros((2, 3, 4), np.float32)
    boxes[0, 0] = (1, 2, 30.04, 40)
    scores = np.zeros((2, 3), np.float32)
    scores[0, 0] = 0.75
    classes = np.full((2, 3), -1, np.int64)
    classes[0, 0] = 1
    return {"boxes": boxes, "scores": scores, "classes": classes, "count": np.array([1, 0])}


def test_each_frame_of_a_detector_lists_its_objects() -> None:
    assert describe(Detection(("cat", "dog"), k=3), detections()) == [
        {
            "count": 1,
            "objects": [{"label": "dog", "score": 0.75, "box": {"x1": 1.0, "y1": 2.0, "x2": 30.0, "y2": 40.0}}],
        },
        {"count": 0, "objects": []},
    ]


def test_an_unknown_models_probabilities_have_the_numbers_of_their_classes() -> None:
    found = describe(None, {PROBABILITIES: np.array([[0.25, 0.75]], np.float32)})
    assert [entry["label"] for entry in found[0]["top"]] == ["1", "0"]


def test_other_outputs_than_the_tasks_have_no_description() -> None:
    classes = {PROBABILITIES: np.array([[b"0.75:1:dog"]], np.object_)}
    assert describe(Classification(("cat", "dog")), classes) is None
    assert describe(Classification(("cat", "dog")), detections()) is None
    assert describe(None, classes) is None
    assert describe(None, detections()) is None
