from __future__ import annotations

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
from firstline_core.types import Array, Arrays, Tensor

MakeModel = Callable[[Path], Path]
OPTIONS = RuntimeOptions()
ROWS = np.random.default_rng(0).random((40, 4)) * np.resize([1, 0.1, 4], 40)[:, None]


def check(folder: Path, file: Path, **fields: Any) -> RowCheck:
    declared = model(file, folder, **fields)
    bundle = write_manifest(folder, [declared], ["a", "b", "c"], input=InputSpec("x", "FP32", (-1, 4)))
    with closing(load_model(bundle, declared, OPTIONS)) as loaded:
        return check_model_rows(bundle, loaded, Tensor("x", ROWS.astype(np.float32)))


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
    bundle = write_manifest(tmp_path, [declared], ["a", "b", "c"], input=InputSpec("x", "FP32", (-1, 3)))
    with closing(load_model(bundle, declared, OPTIONS)) as loaded:
        found = check_model_rows(bundle, loaded, Tensor("x", np.ones((9, 3), np.float32)))
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
    assert check_rows(lambda rows: {"y": rows + 0.01 * next(runs)}, ROWS).depends_on == "run"


def test_the_position_in_a_batch_matters() -> None:
    found = check_rows(lambda rows: {"y": rows + 0.01 * np.arange(len(rows))[:, None]}, ROWS / 10)
    assert (found.depends_on, found.difference.size) == ("batch", pytest.approx(0.31))


@pytest.mark.parametrize(("scale", "depends_on"), [(1, "batch"), (1000, "nothing")])
def test_probabilities_differ_absolutely_and_others_relatively(scale: int, depends_on: str) -> None:
    def answer(rows: Array) -> Arrays:
        return {"y": rows * scale + (0.002 if len(rows) > 1 else 0)}

    assert check_rows(answer, np.full((9, 3), 0.5)).depends_on == depends_on


def test_nan_agrees_with_nan_only() -> None:
    rows = np.array([[0.5, np.nan], [np.inf, 0.5], [0.5, 0.5]])
    assert check_rows(lambda rows: {"y": rows}, rows).depends_on == "nothing"

    def answer(rows: Array) -> Arrays:
        return {"y": rows if len(rows) == 1 else np.full_like(rows, np.nan)}

    found = check_rows(answer, np.full((9, 2), 0.5))
    assert (found.depends_on, found.difference.size) == ("batch", float("inf"))


def test_a_slow_model_runs_fewer_rows() -> None:
    seconds = count()
    assert check_rows(lambda rows: {"y": rows}, ROWS, limit_s=0, now_s=lambda: next(seconds)).rows == 4


def test_a_row_that_fails_alone_is_an_error() -> None:
    def fail(rows: Array) -> Arrays:
        raise InferenceError("no")

    with pytest.raises(InferenceError, match="no"):
        check_rows(fail, ROWS)


@pytest.mark.parametrize("changing", ["scores", "classes"])
def test_any_of_several_outputs_can_differ(changing: str) -> None:
    def answer(rows: Array) -> Arrays:
        moved = float(len(rows) > 1)
        found = {"scores": rows[:, :2], "classes": rows[:, 2:].astype(np.int64)}
        return found | {changing: found[changing] + type(found[changing].flat[0])(moved)}

    found = check_rows(answer, ROWS)
    assert (found.depends_on, found.rows) == ("batch", 40)
    unchanged = check_rows(lambda rows: {"scores": rows[:, :2], "classes": rows[:, 2:].astype(np.int64)}, ROWS)
    assert unchanged.depends_on == "nothing"
