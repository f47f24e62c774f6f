"""How decodings are compared by labels."""

from __future__ import annotations

import tracemalloc
from io import BytesIO
from pathlib import Path

import numpy as np
import pytest
from onnx import helper
from PIL import Image
from support import detector_graphs

from bench.support.onnx_models import float_graph
from firstline.workbench.decodings import Trials, decide, similarity
from firstline.workbench.model_file import read_model_file
from firstline.workbench.recognition import recognise
from firstline.workbench.recognition.reading import COCO, Choice, Feed, Reading
from firstline.workbench.trial import trial_outputs
from firstline_core.errors import ConfigError
from firstline_core.processing.steps import InputSpec
from firstline_core.runtime.select import RuntimeOptions
from firstline_core.tasks.anomaly import ANOMALOUS, SCORE, Anomaly
from firstline_core.tasks.arrays import LABEL
from firstline_core.tasks.classification import Classification
from firstline_core.tasks.detection import Detection
from firstline_core.tasks.segmentation import CONFIDENCE, MASK, Segmentation
from firstline_core.types import PROBABILITIES, object_array


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
    task, mask = Segmentation(("road", "car"), 2, 1), np.array([[[0, 1]], [[0, 1]]], np.uint8)
    outputs = {MASK: mask, CONFIDENCE: np.ones(2, np.float32)}
    np.testing.assert_array_equal(
        similarity(task, outputs, {MASK: np.where([[[True]], [[False]]], mask, 255)}), [1, np.nan]
    )
    nothing = {**outputs, MASK: np.full_like(mask, 255)}  # of another model
    np.testing.assert_array_equal(similarity(task, outputs, nothing), [0, 0])


@pytest.mark.parametrize("sign", [1, -1])
def test_labels_of_anomalies_judge_the_order_of_scores(sign: int) -> None:
    scores = np.array([1, 2, 3, 4, 5], np.float32) * sign
    outputs = {SCORE: scores, ANOMALOUS: np.zeros(5, np.bool_)}
    found = similarity(Anomaly(), outputs, {LABEL: np.array([0, 0, 1, -1, 1])})
    np.testing.assert_array_equal(found, [1, 1, 1, np.nan, 1])
    mixed = similarity(Anomaly(), outputs, {LABEL: np.array([1, 0, 1, 0, -1])})
    np.testing.assert_array_equal(mixed, [1, 0.5, 0.5, 1, np.nan])
    assert np.isnan(similarity(Anomaly(), outputs, {LABEL: np.zeros(5, np.int64)})).all()


def test_labels_of_many_anomalies_take_little_memory() -> None:
    scores = np.arange(2000, dtype=np.float32)
    outputs, labels = {SCORE: scores, ANOMALOUS: scores > 999}, (scores > 999).astype(np.int64)
    tracemalloc.start()
    found = similarity(Anomaly(), outputs, {LABEL: labels})
    _, peak_bytes = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert found.tolist() == [1.0] * 2000
    assert peak_bytes < 1_000_000  # and not those of each pair of rows


@pytest.mark.parametrize("known", [True, False])
def test_numbers_of_classes_are_not_settled_by_the_model_itself(tmp_path: Path, known: bool) -> None:
    path, encoded = detector_graphs.tensorflow(tmp_path / "model.onnx"), BytesIO()
    picture = Image.new("RGB", (detector_graphs.SIDE, detector_graphs.SIDE), "grey")
    picture.save(encoded, "PNG")
    described = read_model_file(path)
    reading = recognise(described, trial_outputs(path, described, picture))[0]
    trials = Trials(path, Detection(COCO), [{"image": object_array([encoded.getvalue()])}], RuntimeOptions())
    assert decide(trials, reading, Choice("class_map", ("", "coco90"), known)).sure == known


def test_a_model_that_no_way_of_decoding_fits_is_refused(tmp_path: Path) -> None:
    weights = np.eye(2, dtype=np.float32)
    float_graph(
        tmp_path / "m.onnx",
        [helper.make_node("MatMul", ["x", "w"], ["y"])],
        {"x": ["n", 2]},
        {"y": ["n", 2]},
        w=weights,
    )
    column = Feed(InputSpec("x", "FP32", (-1, 2)), "x")
    reading = Reading("classifier", "classification", 0.9, "x", classes=2, columns=(column,))
    rows = [{"x": np.full((1, 2), value, np.float32)} for value in (0.5, 0.5, 0.5, 0.5, 7)]  # 7 is not a probability
    trials = Trials(tmp_path / "m.onnx", Classification(("a", "b")), rows, RuntimeOptions())
    with pytest.raises(ConfigError, match=r"No way of decoding fits .* outside of 0 to 1"):
        decide(trials, reading, Choice("decoder", ("", "columns:0/1"), known=False))
