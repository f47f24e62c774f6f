from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import onnx
import pytest
from msgspec.structs import replace
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

from bench.support.onnx_models import write_graph
from firstline.workbench.compress import student
from firstline.workbench.compress.student import Lesson, checkpoint_file, start_of, train_student, views
from firstline_core.bundle.store import open_bundle
from firstline_core.errors import ConfigError
from firstline_core.processing.steps import ModelInput
from firstline_core.runtime.select import RuntimeOptions

_DIGITS = Path(__file__).parents[5] / "models/digits/bundle"


def _network(path: Path, seed: int, channels: int = 8) -> Path:
    """Images [n, 3, 8, 8] to two logits, by two convolutions and a dense layer."""
    random = np.random.default_rng(seed)
    weights: list[Any] = []

    def convolution(given: str, name: str, inputs: int) -> Any:
        kernel = random.normal(0, 0.3, (channels, inputs, 3, 3)).astype(np.float32)
        weights.append(numpy_helper.from_array(kernel, f"{name}.w"))
        weights.append(numpy_helper.from_array(np.zeros(channels, np.float32), f"{name}.b"))
        return helper.make_node("Conv", [given, f"{name}.w", f"{name}.b"], [name], pads=[1, 1, 1, 1])

    nodes = [
        convolution("x", "first", 3),
        helper.make_node("Relu", ["first"], ["r1"]),
        convolution("r1", "second", channels),
        helper.make_node("Relu", ["second"], ["r2"]),
        helper.make_node("GlobalAveragePool", ["r2"], ["pooled"]),
        helper.make_node("Flatten", ["pooled"], ["flat"]),
        helper.make_node("Gemm", ["flat", "fc.w", "fc.b"], ["logits"], transB=1),
    ]
    weights.append(numpy_helper.from_array(random.normal(0, 1, (2, channels)).astype(np.float32), "fc.w"))
    weights.append(numpy_helper.from_array(np.zeros(2, np.float32), "fc.b"))
    return write_graph(
        path,
        nodes,
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 3, 8, 8])],
        [helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["n", 2])],
        weights,
    )


def _images(count: int, seed: int = 1) -> Any:
    return np.random.default_rng(seed).normal(0, 1, (count, 3, 8, 8)).astype(np.float32)


def _error(model: Path, teacher: Path, rows: Any) -> float:
    """Squared error of the difference of both logits."""
    found, wanted = (np.diff(ReferenceEvaluator(onnx.load(one)).run(None, {"x": rows})[0]) for one in (model, teacher))
    return float(np.square(found - wanted).mean())


def test_views_are_of_the_same_images() -> None:
    rows = np.random.default_rng(0).random((6, 3, 8, 8), np.float32)
    made = views(rows, np.random.default_rng(1))
    assert (made.shape, made.dtype) == (rows.shape, np.float32)
    assert not np.array_equal(made, rows)
    assert np.array_equal(made, views(rows, np.random.default_rng(1)))
    assert views(rows.reshape(6, -1), np.random.default_rng(1)).shape == (6, 192)


def test_each_training_has_a_file_of_its_own(tmp_path: Path) -> None:
    rows = np.arange(600 * 4, dtype=np.float32).reshape(600, 4)
    first = checkpoint_file(tmp_path, rows, [b"student", b"teacher"])
    assert checkpoint_file(tmp_path, rows.copy(order="F"), [b"student", b"teacher"]) == first
    last = rows.copy()
    last[-1, -1] += 1
    others = {
        checkpoint_file(tmp_path, last, [b"student", b"teacher"]),
        checkpoint_file(tmp_path, rows.reshape(300, 8), [b"student", b"teacher"]),
        checkpoint_file(tmp_path, rows.astype(np.float64), [b"student", b"teacher"]),
        checkpoint_file(tmp_path, rows, [b"studentteacher"]),
        checkpoint_file(tmp_path, rows, [b"teacher", b"student"]),
    }
    assert len(others - {first}) == 5
    assert first.parent == tmp_path


def test_a_student_has_the_input_and_output_of_its_teacher() -> None:
    manifest = open_bundle(_DIGITS).manifest
    assert manifest.full is not None
    edge = manifest.edge[0]
    alike = msgspec.structs.replace(manifest.full, inputs=edge.inputs, postprocess=edge.postprocess)
    assert start_of(manifest, alike, edge.id) == edge
    other = msgspec.structs.replace(alike, inputs=(ModelInput("image"),))
    for source, wanted, words in (
        (alike, "nobody", "has no model 'nobody'"),
        (alike, "full", "cannot teach itself"),
        (alike, "edge-tflite-int8", "starts as ONNX in fp32"),
        (other, edge.id, "fed or read otherwise"),
        (replace(alike, postprocess=()), edge.id, "learns the logits"),
    ):
        with pytest.raises(ConfigError, match=words):
            start_of(manifest, source, wanted)


@pytest.mark.train
@pytest.mark.filterwarnings("default")
def test_normalisation_changes_nothing_and_folds_away(tmp_path: Path) -> None:
    import torch
    from onnx2torch import convert

    network = convert(onnx.load(_network(tmp_path / "m.onnx", 0)))
    rows = torch.from_numpy(_images(30))
    with torch.no_grad():
        before = network(rows)
        ready = student.normalised(network, rows)
        assert torch.allclose(ready(rows), before, rtol=1e-3, atol=1e-3)  # while training, by the rows' own statistics
        after = student.folded(ready)
        assert not any(isinstance(layer, torch.nn.BatchNorm2d) for layer in after.modules())
        assert torch.allclose(after(rows), ready.eval()(rows), rtol=1e-3, atol=1e-3)


@pytest.mark.train
@pytest.mark.filterwarnings("default")
def test_a_trained_student_is_nearer_to_its_teacher(tmp_path: Path) -> None:
    teacher, start = _network(tmp_path / "teacher.onnx", 0, 16), _network(tmp_path / "start.onnx", 1)
    before, out = start.read_bytes(), tmp_path / "student.onnx"
    lesson = Lesson("small", epochs=40, rate=2e-2)
    parameters = train_student(teacher, start, out, _images(128), lesson, options=RuntimeOptions())
    assert (parameters["start"], parameters["rows"], parameters["epochs"]) == ("small", "128", "40")
    assert start.read_bytes() == before
    onnx.checker.check_model(onnx.load(out))
    new = _images(128, seed=3)
    assert _error(out, teacher, new) < 0.5 * _error(start, teacher, new)


@pytest.mark.train
@pytest.mark.filterwarnings("default")
def test_an_interrupted_training_continues_to_the_same_student(tmp_path: Path) -> None:
    teacher, start = _network(tmp_path / "teacher.onnx", 0), _network(tmp_path / "start.onnx", 1)
    checkpoints, rows, lesson = tmp_path / "checkpoints", _images(128), Lesson("small", epochs=6, rate=1e-2)
    checkpoints.mkdir()
    reports: list[str] = []
    epochs: list[int] = []

    def trained(name: str, rows: Any, lesson: Lesson, ends_after: int = 99) -> bytes:
        def progress(epoch: int, _total: int) -> None:
            epochs.append(epoch)
            if epoch == ends_after:
                raise KeyboardInterrupt

        epochs.clear()
        reports.clear()
        train_student(
            teacher,
            start,
            tmp_path / name,
            rows,
            lesson,
            options=RuntimeOptions(),
            checkpoints=None if name == "undisturbed" else checkpoints,
            report=reports.append,
            progress=progress,
        )
        return (tmp_path / name).read_bytes()

    undisturbed = trained("undisturbed", rows, lesson)
    with pytest.raises(KeyboardInterrupt):
        trained("interrupted", rows, lesson, ends_after=4)
    assert reports == []
    assert trained("resumed", rows, lesson) == undisturbed
    assert (reports, epochs) == (["The training continues after epoch 4 of 6"], [5, 6])
    assert trained("again", rows, lesson) == undisturbed
    assert epochs == []
    assert trained("other-rows", rows[::-1], lesson) != undisturbed
    assert trained("other-rate", rows, replace(lesson, rate=2e-2)) != undisturbed
    assert reports == []
    files = sorted(checkpoints.iterdir())
    assert len(files) == 3
    for file in files:
        file.write_bytes(file.read_bytes()[:-100])
    with pytest.raises(ConfigError, match=r"training-\w+\.pt is damaged; remove it to start the training over"):
        trained("damaged", rows, lesson)
