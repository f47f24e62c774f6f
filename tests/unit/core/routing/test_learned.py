from __future__ import annotations

import numpy as np
import pytest

from firstline_core.errors import ConfigError
from firstline_core.routing.learned import MEASURES, Logistic, features

ROWS = np.array([[0.7, 0.2, 0.1], [0.0, 0.0, 255 / 256]], np.float32)


def test_features_by_hand() -> None:
    found = features(ROWS)
    np.testing.assert_allclose(found[0, [0, 2, 3]], [0.5, np.log(0.2), np.log(0.7)], atol=1e-5)
    np.testing.assert_array_equal(found[:, MEASURES:], [[1, 0, 0], [0, 0, 1]])
    assert found[1, 2] == pytest.approx(np.log(1 / 512))  # what a quantised softmax rounds to zero


def test_with_many_classes_the_class_says_nothing() -> None:
    assert features(np.full((2, 1000), 0.001, np.float32)).shape == (2, MEASURES)


def test_a_logistic_score_is_one_minus_the_probability() -> None:
    weights = (-2.0, 0.0, 0.0, 0.0, 1.0, 0.0, 0.0)
    found = Logistic(weights, 0.5).score(ROWS)
    np.testing.assert_allclose(found, 1 - 1 / (1 + np.exp([-0.5, 1.5])), rtol=1e-4)
    assert found.dtype == np.float32
    with pytest.raises(ConfigError, match="7 weights, but 4 classes give 8"):
        Logistic(weights, 0.5).score(np.full((1, 4), 0.25, np.float32))
