"""Quality on data."""

import numpy as np
import pytest

from firstline.workbench.quality import quality
from firstline_core.errors import ConfigError
from firstline_core.tasks.regression import VALUES, Regression


def test_rows_without_a_label_do_not_count_as_errors() -> None:
    task = Regression(("price",), absolute=1)
    outputs = {VALUES: np.array([[1], [9], [5]], np.float32)}
    truth = np.array([[1], [2], [np.nan]], np.float32)
    assert quality(task, outputs, {}, {VALUES: truth}) == 0.5
    with pytest.raises(ConfigError, match="needs labelled rows"):
        quality(task, outputs, {}, {VALUES: np.full((3, 1), np.nan, np.float32)})
