"""The loaded models: real bundles, one without its runtime's file, and folders without a bundle."""

import math
import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import msgspec
import numpy as np
import pytest
from support.agent import DIGITS
from support.edge import manifest
from support.images import images
from support.logs import captured_lines

from firstline_core.bundle.manifest import MANIFEST_NAME, Policy, Score, encode_manifest, parse_manifest
from firstline_core.bundle.store import Bundle
from firstline_core.routing.policy import Logistic
from firstline_core.runtime.select import RuntimeOptions
from firstline_core.tasks import classification
from firstline_core.types import PROBABILITIES, InferRequest, Tensor, take_rows
from firstline_edge.models import loading
from firstline_edge.models.loading import bundle_paths, load_bundle, open_models, quickest_ms
from firstline_edge.models.models import DeviceModel, Models, RelativeRunTimes
from firstline_edge.models.workers import Workers


def here(workers: Workers) -> Callable[[Path], DeviceModel]:
    return partial(load_bundle, options=RuntimeOptions(), workers=workers)


@pytest.fixture
def workers() -> Iterator[Workers]:
    found = Workers(1, 1)
    yield found
    found.close()


@pytest.fixture
def model(workers: Workers) -> Iterator[DeviceModel]:
    """The digits, loaded."""
    models = open_models([DIGITS], here(workers))
    yield models.find("digits")
    models.close()


def test_the_digits_are_loaded_and_measured(workers: Workers) -> None:
    models = open_models([DIGITS], here(workers))
    model = models.find("digits")
    assert model.edge is not None and model.problem == ""
    assert 0 < model.edge.row_ms < 100
    assert model.edge.digest != model.edge.loaded.digest  # the score is part of the evidence
    assert model.metadata.labels[0] == "zero"
    assert model.metadata.platform == "onnxruntime_onnx"
    assert model.edge.loaded.passed_over == ()
    assert models.find("digits", "1") is model
    assert models.find("digits", "2") is None and models.find("other") is None
    models.close()


def test_a_learned_score_and_value_are_computed_with_the_answer(tmp_path: Path, workers: Workers) -> None:
    shutil.copytree(DIGITS, tmp_path / "digits")
    learned = Logistic((-3.0, *[0.0] * 13), 1.0)  # of the margin alone
    found = parse_manifest((tmp_path / "digits" / MANIFEST_NAME).read_bytes())
    found = msgspec.structs.replace(found, version=2, policy=Policy(Score("learned", learned=learned), 0.5, learned))
    (tmp_path / "digits" / MANIFEST_NAME).write_bytes(encode_manifest(found))
    models = open_models([DIGITS, tmp_path], here(workers))
    plain, taught = models.find("digits", "1"), models.find("digits", "2")
    assert taught.edge.digest != plain.edge.digest
    tensor = taught.edge.loaded.made_up_inputs(typical=True)
    assert tensor is not None
    (one,), (other,) = taught.edge.run(tensor), plain.edge.run(tensor)
    margin = classification.margin(one.outputs[PROBABILITIES])[0]
    assert one.value == pytest.approx(1 / (1 + np.exp(3 * margin - 1)), rel=1e-5)
    assert one.score == pytest.approx(1 - (one.value or 0))
    assert other.value is None
    models.close()


def test_a_score_without_bounds_leaves_the_value_to_the_likeliest_class(tmp_path: Path, workers: Workers) -> None:
    shutil.copytree(DIGITS, tmp_path / "digits")
    found = parse_manifest((tmp_path / "digits" / MANIFEST_NAME).read_bytes())
    found = msgspec.structs.replace(found, version=2, policy=Policy(Score("energy"), 5.0))
    (tmp_path / "digits" / MANIFEST_NAME).write_bytes(encode_manifest(found))
    models = open_models([tmp_path], here(workers))
    model = models.find("digits")
    tensor = model.edge.loaded.made_up_inputs(typical=True)
    assert tensor is not None
    (output,) = model.edge.run(tensor)
    assert output.score is not None and output.score > 1  # of which one minus the score would be worth nothing
    assert output.value == pytest.approx(1 - output.outputs[PROBABILITIES].max())
    models.close()


def test_other_load_does_not_count_as_model_time(model: DeviceModel, monkeypatch: pytest.MonkeyPatch) -> None:
    now_s, taken_s = 0.0, iter([0.9, 0.8, 0.005, 0.004, 0.0004, 0.007, 0.006])  # the first two warm up
    monkeypatch.setattr(loading, "time", SimpleNamespace(perf_counter=lambda: now_s))

    def run(_tensor: Tensor) -> None:
        nonlocal now_s
        now_s += next(taken_s)

    assert quickest_ms(model.edge.loaded, run, 5)[0] == pytest.approx(0.4)


def test_small_work_is_quick_and_large_work_is_not(model: DeviceModel) -> None:
    assert model.edge is not None
    edge = replace(model.edge, row_ms=0.1, sample_bytes=100)

    assert edge.quick(edge.measured_ms(100)) and edge.quick(edge.measured_ms(10))
    assert not edge.quick(20 * edge.measured_ms(100))  # many rows
    assert not edge.quick(edge.measured_ms(2000))  # a picture that takes long to decode
    assert not edge.quick(replace(edge, row_ms=math.inf).measured_ms(1))
    request = InferRequest("digits", (images(b"x" * 300, b"x" * 100),), "")
    assert edge.sure_ms(request, 1) == pytest.approx(0.2)  # of the rows' mean size


def test_slow_model_leaves_the_event_loop_until_quick_again(model: DeviceModel) -> None:
    edge = replace(model.edge, row_ms=0.1, sample_bytes=100)
    measured_ms = edge.measured_ms(100)
    sample = model.edge.loaded.made_up_inputs(typical=True)
    assert sample is not None
    for _ in range(3):  # not for a moment's sake
        edge.run(sample, measured_s=0.0)
    assert edge.quick(measured_ms) and edge.pace.factor * measured_ms == pytest.approx(0.1 * 1.05**3)
    while edge.quick(measured_ms):
        edge.pace.ran(1.0, 0.0)
    assert edge.pace.factor * measured_ms >= 1.0
    while not edge.quick(measured_ms):
        edge.pace.ran(0.0, 1.0)
    for _ in range(100):
        edge.run(sample, measured_s=9.0)
    assert edge.pace.factor * measured_ms == 0.1  # not quicker than it was ever measured


def test_one_run_that_holds_up_the_loop_moves_the_next_ones(model: DeviceModel) -> None:
    edge = replace(model.edge, row_ms=0.1, sample_bytes=100)
    edge.pace.ran(0.09, 0.0001)
    edge.pace.ran(1.0, 0.1)  # many rows, in a thread
    assert edge.quick(0.1)
    edge.pace.ran(0.2, 0.0001)
    assert not edge.quick(0.1), "the model may loop as often as an input says"
    for _ in range(999):
        edge.pace.ran(0.0001, 0.0001)
    assert not edge.quick(0.1)
    edge.pace.ran(0.0001, 0.0001)
    assert edge.quick(0.1)


def test_a_line_that_was_expected_to_be_quicker_teaches_the_pace_once() -> None:
    pace = RelativeRunTimes()
    for _ in range(500):  # each three times as long as measured, and all were asked for before the first ended
        pace.ran(0.003, 0.001)
    assert 3 / 1.1 < pace.factor < 3 * 1.1


def test_a_bundle_without_edge_files_answers_from_the_cloud(tmp_path: Path, workers: Workers) -> None:
    path = tmp_path / "digits"
    path.mkdir()
    shutil.copy(DIGITS / MANIFEST_NAME, path)
    models = open_models([tmp_path], here(workers))
    model = models.find("digits")
    assert model.edge is None
    assert "edge-onnx.onnx" in model.problem
    assert model.metadata.platform == "firstline"


@pytest.mark.parametrize("damage", ["manifest", "model"])
def test_a_bundle_with_changed_files_is_not_loaded(tmp_path: Path, workers: Workers, damage: str) -> None:
    path = tmp_path / "digits"
    shutil.copytree(DIGITS, path)
    file = path / (MANIFEST_NAME if damage == "manifest" else "edge-onnx.onnx")
    file.write_bytes(file.read_bytes()[:-3])
    models = open_models([path], here(workers))
    assert models.all == ()
    (problem,) = models.problems
    assert problem.path == path and problem.message.endswith(".")


def test_a_folder_without_bundles_is_a_problem(tmp_path: Path, workers: Workers) -> None:
    assert [problem.path for problem in open_models([tmp_path], here(workers)).problems] == [tmp_path]
    assert bundle_paths([DIGITS.parent]) == [DIGITS]


def test_a_second_bundle_of_a_version_is_a_problem(tmp_path: Path, workers: Workers) -> None:
    for folder in ("a", "b"):
        shutil.copytree(DIGITS, tmp_path / folder)
    models = open_models([tmp_path], here(workers))
    assert models.find("digits").bundle.path == tmp_path / "a"
    (problem,) = models.problems
    assert problem.path == tmp_path / "b" and "remove one of them" in problem.message


def test_a_bundle_with_two_paths_is_found_once(tmp_path: Path) -> None:
    shutil.copytree(DIGITS, tmp_path / "digits-3")
    (tmp_path / "newest").symlink_to("digits-3")
    assert bundle_paths([tmp_path, tmp_path / "digits-3"]) == [tmp_path / "digits-3"]


def test_unfinished_bundles_are_passed_over(tmp_path: Path) -> None:
    for folder in (".digits.4f1c", "digits/3"):
        shutil.copytree(DIGITS, tmp_path / folder)
    assert bundle_paths([tmp_path]) == [tmp_path / "digits" / "3"]


def test_the_newest_version_is_the_current_one() -> None:
    old, new = (msgspec.structs.replace(manifest(), version=version) for version in (9, 10))
    models = Models([DeviceModel(Bundle(Path(), manifest), None) for manifest in (new, old)])
    current = models.find("m")
    assert current.version == "10"
    assert models.find("m", "9") is not None


def test_rows_are_scored_one_by_one(model: DeviceModel) -> None:
    sample = model.edge.loaded.made_up_inputs(typical=True)
    one, two = model.edge.run(take_rows(sample, [0, 0]))
    np.testing.assert_array_equal(one.outputs[PROBABILITIES], two.outputs[PROBABILITIES])
    assert one.score == two.score and one.score is not None and 0 <= one.score <= 1


def test_a_folder_without_a_bundle_is_warned_of(workers: Workers, tmp_path: Path) -> None:
    with captured_lines() as lines:
        models = open_models([tmp_path, tmp_path / "absent"], here(workers))
    empty, absent = models.problems
    assert "holds no bundle" in empty.message and "no such folder" in absent.message
    assert [(line["level"], line["path"], line["error"]) for line in lines] == [
        ("warning", str(empty.path), empty.message),
        ("warning", str(absent.path), absent.message),
    ]


def test_a_refused_folder_of_bundles_is_a_problem(workers: Workers, tmp_path: Path) -> None:
    (problem,) = open_models([tmp_path / ("long" * 100)], here(workers)).problems
    assert problem.message == "It cannot be read: File name too long; check the path."
