"""Quality on data: a model that does not load has none."""

import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from firstline.workbench.data.dataset import open_dataset
from firstline.workbench.quality import qualities_on, quality, require_fitting_labels
from firstline_core.bundle.store import open_bundle
from firstline_core.errors import ConfigError
from firstline_core.tasks.arrays import LABEL
from firstline_core.tasks.base import Scores
from firstline_core.tasks.classification import Classification
from firstline_core.tasks.regression import VALUES, Regression
from firstline_core.types import PROBABILITIES, Arrays

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


@pytest.mark.parametrize("count", [2, 3, 4])
def test_few_labels_fit_answers_that_are_often_right(count: int) -> None:
    labels = np.arange(count)
    answers = np.where(labels < count // 2, labels, 9)
    task, outputs = Classification(tuple("abcdefghij")), {PROBABILITIES: np.eye(10, dtype=np.float32)[answers]}
    require_fitting_labels(task, outputs, {LABEL: labels})
    with pytest.raises(ConfigError, match="no better than by chance"):
        require_fitting_labels(task, outputs, {LABEL: np.roll(labels, 1)})


def answers_and_labels() -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Answers of five classes, which most of the known labels agree with."""
    random = np.random.default_rng(0)
    answers = random.integers(0, 5, 200)
    labels = np.where(random.random(200) < 0.3, random.integers(0, 5, 200), answers)
    labels[:20] = -1
    return answers, labels


def check_fit(answers: NDArray[np.int64], labels: NDArray[np.int64]) -> None:
    outputs = {PROBABILITIES: np.eye(5, dtype=np.float32)[answers]}
    require_fitting_labels(Classification(tuple("abcde")), outputs, {LABEL: labels})


def test_labels_that_answers_often_meet_fit() -> None:
    check_fit(*answers_and_labels())
    rare = np.array([1, *[0] * 59])
    check_fit(rare, rare)
    check_fit(np.zeros(200, np.int64), np.arange(200) % 5 // 4)


@pytest.mark.parametrize(
    "change",
    [
        pytest.param(lambda labels: np.where(labels < 0, labels, (labels + 1) % 5), id="shifted"),
        pytest.param(np.random.default_rng(0).permutation, id="shuffled"),
        pytest.param(lambda labels: np.full_like(labels, 3), id="same"),
    ],
)
def test_labels_met_by_chance_are_refused(change: Callable[[NDArray[np.int64]], NDArray[np.int64]]) -> None:
    answers, labels = answers_and_labels()
    with pytest.raises(ConfigError, match="meet the data's labels no better than by chance"):
        check_fit(answers, change(labels))


def test_few_rows_show_that_labels_surely_fit() -> None:
    class Counting(Classification, frozen=True):
        def truth_loss(self, outputs: Arrays, truth: Arrays) -> Scores:
            rows.append(len(truth[LABEL]))
            return super().truth_loss(outputs, truth)

    rows: list[int] = []
    task, labels = Counting(tuple("abcde")), np.random.default_rng(0).integers(0, 5, 5000)
    outputs = {PROBABILITIES: np.eye(5, dtype=np.float32)[labels]}
    require_fitting_labels(task, outputs, {LABEL: labels})
    assert sum(rows) <= 5000
    rare = {PROBABILITIES: np.eye(5, dtype=np.float32)[np.arange(5000) % 100 // 99]}
    with pytest.raises(ConfigError, match="no better than by chance"):
        require_fitting_labels(task, rare, {LABEL: (np.arange(5000) % 100 == 50).astype(np.int64)})
