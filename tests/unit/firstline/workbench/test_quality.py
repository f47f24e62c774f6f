"""Quality on data: a model that does not load has none."""

import shutil
from pathlib import Path

import numpy as np
import pytest

from firstline.workbench.data.dataset import open_dataset
from firstline.workbench.quality import qualities_on, quality
from firstline_core.bundle.store import open_bundle
from firstline_core.errors import ConfigError
from firstline_core.tasks.regression import VALUES, Regression

DIGITS = Path(__file__).parents[4] / "models/digits"


def test_a_model_that_does_not_load_has_no_quality(tmp_path: Path) -> None:
    shutil.copytree(DIGITS / "bundle", tmp_path / "bundle")
    bundle = open_bundle(tmp_path / "bundle")
    first = bundle.manifest.edge[0]
    bundle.file(first.artefact).write_bytes(b"no model")
    dataset = open_dataset(DIGITS / "heldout", 10)
    found = qualities_on(bundle, dataset)
    assert first.digest not in found and found
    with pytest.raises(ConfigError, match=r"No model of .* loads here"):
        qualities_on(bundle, dataset, (first.id,))


def test_rows_without_a_label_do_not_count_as_errors() -> None:
    task = Regression(("price",), absolute=1)
    outputs = {VALUES: np.array([[1], [9], [5]], np.float32)}
    truth = np.array([[1], [2], [np.nan]], np.float32)
    assert quality(task, outputs, {}, {VALUES: truth}) == 0.5
    with pytest.raises(ConfigError, match="needs labelled rows"):
        quality(task, outputs, {}, {VALUES: np.full((3, 1), np.nan, np.float32)})
