"""COCO's average precision, compared with precision and recall by hand."""

import numpy as np
import pytest

from firstline_core.errors import ConfigError
from firstline_core.processing.boxes import Boxes
from firstline_core.tasks.average_precision import average_precision

pytest.importorskip("pycocotools")

SQUARE = (0.0, 0.0, 10.0, 10.0)
ELSEWHERE = (50.0, 50.0, 60.0, 60.0)


def boxes(*found: tuple[tuple[float, float, float, float], float, int]) -> Boxes:
    """Each has corners, a score and a class."""
    corners = np.array([each[0] for each in found], np.float32).reshape(-1, 4)
    return Boxes(corners, np.array([each[1] for each in found], np.float32), np.array([each[2] for each in found], int))


def test_precision_is_interpolated_at_101_recalls() -> None:
    """A right box, a wrong one, a right one: precision is 1 to a recall of 0.5, and 2/3 from there to 1."""
    truth = [boxes((SQUARE, 1, 3)), boxes((SQUARE, 1, 3))]
    found = [boxes((SQUARE, 0.9, 3), (ELSEWHERE, 0.8, 3)), boxes((SQUARE, 0.7, 3))]
    expected = (51 + 50 * 2 / 3) / 101
    assert average_precision(found, truth) == pytest.approx((expected, expected))


def test_overlaps_count_from_half_in_steps_of_a_twentieth() -> None:
    """An overlap of 0.82 suffices at 0.5, 0.55, ... 0.8: seven of ten."""
    found = [boxes(((0.0, 0.0, 10.0, 8.2), 0.9, 0))]
    assert average_precision(found, [boxes((SQUARE, 1, 0))]) == pytest.approx((1, 0.7))


def test_only_classes_of_the_truth_count() -> None:
    truth = [boxes((SQUARE, 1, 0), (ELSEWHERE, 1, 2))]
    found = [boxes((SQUARE, 0.9, 0), (SQUARE, 0.99, 1))]
    assert average_precision(found, truth) == pytest.approx((0.5, 0.5))
    swapped = [boxes((SQUARE, 0.9, 2), (ELSEWHERE, 0.9, 0))]
    assert average_precision(swapped, truth) == (0, 0)


@pytest.mark.parametrize(("wrong", "expected"), [(99, 0.01), (100, 0.0)])
def test_the_hundred_best_boxes_of_an_image_count(wrong: int, expected: float) -> None:
    found = [boxes(*[(ELSEWHERE, 0.9, 0)] * wrong, (SQUARE, 0.5, 0))]
    assert average_precision(found, [boxes((SQUARE, 1, 0))]).ap50 == pytest.approx(expected)


def test_a_truth_without_boxes_is_refused() -> None:
    with pytest.raises(ConfigError, match="the data has none"):
        average_precision([boxes((SQUARE, 1, 0))], [boxes()])
