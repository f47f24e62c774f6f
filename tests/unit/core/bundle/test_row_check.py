from collections.abc import Callable
from contextlib import closing
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.impure_models import DEPENDENT_ON_BATCH, DEPENDENT_ON_RUN, noisy_tflite, pure

from bench.support.bundles import artefact, model, write_manifest
from bench.support.onnx_models import linear
from firstline_core.bundle.loading import load_model
from firstline_core.bundle.row_check import TOLERANCE, RowCheck, check_model_rows, check_rows
from firstline_core.errors import InferenceError
from firstline_core.processing.steps import Graph, InputSpec, Softmax
from firstline_core.runtime.select import RuntimeOptions
from firstline_core.tasks.classification import Classification
from firstline_core.tasks.detection import Detection
from firstline_core.types import PROBABILITIES, Array, Arrays

MakeModel = Callable[[Path], Path]
OPTIONS = RuntimeOptions()
CLASSIFIER, DETECTOR = Classification(tuple("abcd")), Detection(("a", "b"), k=2)
ROWS = np.random.default_rng(0).random((40, 4)) * np.resize([1, 0.1, 4], 40)[:, None]


def check(folder: Path, file: Path, **fields: Any) -> RowCheck:
    declared = model(file, folder, **fields)
    bundle = write_manifest(folder, [declared], ["a", "b", "c"], inputs=(InputSpec("x", "FP32", (-1, 4)),))
    with closing(load_model(bundle, bundle.manifest.edge[0], OPTIONS)) as loaded:
        return check_model_rows(bundle, loaded, {"x": ROWS.astype(np.float32)})


@pytest.mark.parametrize(("make", "operator"), DEPENDENT_ON_BATCH.items())
@pytest.mark.parametrize("postprocess", [(), (Softmax(),)])
def test_rows_that_depend_on_the_batch_agree_with_batch_1(
    tmp_path: Path, make: MakeModel, operator: str, postprocess: tuple[Any, ...]
) -> None:
    file = make(tmp_path / "m.onnx")
    found = check(tmp_path, file, postprocess=postprocess)
    assert (found.rows, found.depends_on) == (40, "batch")
    assert found.difference.size > TOLERANCE
    assert (found.operator.kind if found.operator is not None else "") == operator
    assert f"when it runs with other rows{f': {operator}' if operator else '.'}" in found.sentence("m")
    assert check(tmp_path, file, postprocess=postprocess, batch=1).depends_on == "nothing"


@pytest.mark.parametrize(("make", "operator"), DEPENDENT_ON_RUN.items())
@pytest.mark.parametrize("batch", [None, 1])
def test_answers_left_to_chance_are_found(tmp_path: Path, make: MakeModel, operator: str, batch: int | None) -> None:
    found = check(tmp_path, make(tmp_path / "m.onnx"), batch=batch)
    assert found.depends_on == "run"
    assert f"when it runs alone a second time: {operator} " in found.sentence("m")


def test_a_tflite_operator_of_chance_is_named(tmp_path: Path) -> None:
    declared = model(noisy_tflite(tmp_path / "m.tflite"), tmp_path)
    bundle = write_manifest(tmp_path, [declared], ["a", "b", "c"], inputs=(InputSpec("x", "FP32", (-1, 3)),))
    with closing(load_model(bundle, bundle.manifest.edge[0], OPTIONS)) as loaded:
        found = check_model_rows(bundle, loaded, {"x": np.ones((9, 3), np.float32)})
    assert found.depends_on == "run"
    assert found.sentence("m").endswith(
        "alone a second time: RANDOM_UNIFORM draws random numbers; export the model "
        "without it, or with a constant in its place."
    )


def test_independent_rows_agree(tmp_path: Path) -> None:
    found = check(tmp_path, pure(tmp_path / "m.onnx"))
    assert (found.depends_on, found.operator) == ("nothing", None)
    assert found.sentence("m") == "Model 'm' answers each of 40 rows alike alone, in batches and in another order."


def test_the_graphs_of_the_processing_are_checked_too(tmp_path: Path) -> None:
    make = next(iter(DEPENDENT_ON_BATCH))
    before, eye = make(tmp_path / "before.onnx"), linear(tmp_path / "eye.onnx", np.eye(3, dtype=np.float32))
    found = check(tmp_path, eye, preprocess=(Graph(artefact(before, tmp_path)),))
    assert found.depends_on == "batch"
    assert found.operator is not None and found.operator.kind == "Softmax"


def test_state_that_survives_a_run_is_found() -> None:
    runs = count()
    assert (
        check_rows(lambda rows: {PROBABILITIES: rows + 0.01 * next(runs)}, ROWS, CLASSIFIER.difference).depends_on
        == "run"
    )


def test_the_position_in_a_batch_matters() -> None:
    found = check_rows(
        lambda rows: {PROBABILITIES: rows + 0.01 * np.arange(len(rows))[:, None]}, ROWS / 10, CLASSIFIER.difference
    )
    assert (found.depends_on, found.difference.size) == ("batch", pytest.approx(0.31))


@pytest.mark.parametrize(("added", "depends_on"), [(0.002, "batch"), (0.0005, "nothing")])
def test_probabilities_differ_absolutely(added: float, depends_on: str) -> None:
    def answer(rows: Array) -> Arrays:
        return {PROBABILITIES: rows + (added if len(rows) > 1 else 0)}

    assert check_rows(answer, np.full((9, 3), 0.5), CLASSIFIER.difference).depends_on == depends_on


def boxes(rows: int) -> dict[str, Array]:
    """Two boxes of 500 pixels in each row, with scores that rounding may reverse."""
    return {
        "boxes": np.tile(np.array([[0, 0, 500, 500], [600, 0, 1100, 500]], np.float32), (rows, 1, 1)),
        "scores": np.tile(np.array([0.70001, 0.7], np.float32), (rows, 1)),
        "classes": np.tile(np.array([0, 1]), (rows, 1)),
        "count": np.full(rows, 2),
    }


@pytest.mark.parametrize(
    ("name", "added", "depends_on"),
    [
        ("boxes", 0.05, "nothing"),
        ("boxes", 2, "batch"),
        ("scores", 0.0005, "nothing"),
        ("scores", 0.002, "batch"),
        ("classes", -1, "batch"),
        ("count", -1, "batch"),
    ],
)
def test_boxes_differ_relatively_and_any_output_can(name: str, added: float, depends_on: str) -> None:
    def answer(rows: Array) -> Arrays:
        found = boxes(len(rows))
        return found | ({name: (found[name] + added).astype(found[name].dtype)} if len(rows) > 1 else {})

    assert check_rows(answer, ROWS, DETECTOR.difference).depends_on == depends_on


def test_boxes_of_equal_scores_may_change_places() -> None:
    def answer(rows: Array) -> Arrays:
        found = boxes(len(rows))
        if len(rows) == 1:
            return found
        return {name: array[:, ::-1] if array.ndim > 1 else array for name, array in found.items()} | {
            "scores": found["scores"]
        }

    found = check_rows(answer, ROWS, DETECTOR.difference)
    assert (found.depends_on, found.difference.size) == ("nothing", pytest.approx(1e-5, rel=0.01))


def test_a_detection_may_be_a_candidate_in_a_batch() -> None:
    def answer(rows: Array) -> Arrays:
        found, count = boxes(len(rows)), 2 - (len(rows) > 1)
        padding = np.arange(2) >= count
        detections = {name: array * (~padding if array.ndim == 2 else 1) for name, array in found.items()}
        candidates = {f"candidate_{name}": found[name][:, ::-1] for name in ("boxes", "scores", "classes")}
        return detections | candidates | {"count": np.full(len(rows), count)}

    assert check_rows(answer, ROWS, DETECTOR.difference).depends_on == "nothing"


def test_outputs_of_text_and_without_columns_are_compared() -> None:
    def answer(rows: Array) -> Arrays:
        text = np.array([b"several" if len(rows) > 1 else b"one"] * len(rows), object)
        return {"text": text, "values": rows[:, :0]}

    def differ(expected: Arrays, actual: Arrays) -> float:
        return float(expected["text"].tolist() != actual["text"].tolist())

    assert check_rows(answer, ROWS, differ).depends_on == "batch"
    assert check_rows(lambda rows: {"values": rows[:, :0]}, ROWS, differ).depends_on == "nothing"


def test_nan_agrees_with_nan_only() -> None:
    rows = np.array([[0.5, np.nan], [np.inf, 0.5], [0.5, 0.5]])
    assert check_rows(lambda rows: {PROBABILITIES: rows}, rows, CLASSIFIER.difference).depends_on == "nothing"

    def answer(rows: Array) -> Arrays:
        return {PROBABILITIES: rows if len(rows) == 1 else np.full_like(rows, np.nan)}

    def reversed_answer(rows: Array) -> Arrays:
        return {PROBABILITIES: np.full_like(rows, np.nan) if len(rows) == 1 else rows}

    for each in (answer, reversed_answer):
        found = check_rows(each, np.full((9, 2), 0.5), CLASSIFIER.difference)
        assert (found.depends_on, found.difference.size) == ("batch", float("inf"))


def test_a_slow_model_runs_fewer_rows() -> None:
    seconds = count()
    assert (
        check_rows(
            lambda rows: {PROBABILITIES: rows}, ROWS, CLASSIFIER.difference, limit_s=0, now_s=lambda: next(seconds)
        ).rows
        == 4
    )


def test_a_row_that_fails_alone_is_an_error() -> None:
    def fail(rows: Array) -> Arrays:
        raise InferenceError("no")

    with pytest.raises(InferenceError, match="no"):
        check_rows(fail, ROWS, CLASSIFIER.difference)
