from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import onnx
import pytest
from msgspec.structs import replace
from onnx import helper
from onnx.reference import ReferenceEvaluator

from bench.support.onnx_models import float_graph
from firstline.workbench.compress import student
from firstline.workbench.compress.student import Lesson, start_of, train_student, views
from firstline_core.bundle.store import open_bundle
from firstline_core.errors import ConfigError
from firstline_core.processing.steps import ModelInput
from firstline_core.runtime.select import RuntimeOptions

_DIGITS = Path(__file__).parents[5] / "models/digits/bundle"


def _network(path: Path, seed: int, channels: int = 8) -> Path:
    """Images [n, 3, 8, 8] to two logits, by two convolutions and a dense layer."""
    random = np.random.default_rng(seed)
    weights: dict[str, Any] = {}

    def convolution(input_name: str, name: str, inputs: int) -> Any:
        weights[f"{name}.w"] = random.normal(0, 0.3, (channels, inputs, 3, 3)).astype(np.float32)
        weights[f"{name}.b"] = np.zeros(channels, np.float32)
        return helper.make_node("Conv", [input_name, f"{name}.w", f"{name}.b"], [name], pads=[1, 1, 1, 1])

    nodes = [
        convolution("x", "first", 3),
        helper.make_node("Relu", ["first"], ["r1"]),
        convolution("r1", "second", channels),
        helper.make_node("Relu", ["second"], ["r2"]),
        helper.make_node("GlobalAveragePool", ["r2"], ["pooled"]),
        helper.make_node("Flatten", ["pooled"], ["flat"]),
        helper.make_node("Gemm", ["flat", "fc.w", "fc.b"], ["logits"], transB=1),
    ]
    weights |= {"fc.w": random.normal(0, 1, (2, channels)).astype(np.float32), "fc.b": np.zeros(2, np.float32)}
    return float_graph(path, nodes, {"x": ["n", 3, 8, 8]}, {"logits": ["n", 2]}, **weights)


def _images(count: int, seed: int = 1) -> Any:
    return np.random.default_rng(seed).normal(0, 1, (count, 3, 8, 8)).astype(np.float32)


def _error(model: Path, teacher: Path, rows: Any) -> float:
    """Squared error of the difference of both logits."""
    found, target = (np.diff(ReferenceEvaluator(onnx.load(one)).run(None, {"x": rows})[0]) for one in (model, teacher))
    return float(np.square(found - target).mean())


def test_views_are_of_the_same_images() -> None:
    rows = np.random.default_rng(0).random((6, 3, 8, 8), np.float32)
    augmented = views(rows, np.random.default_rng(1))
    assert (augmented.shape, augmented.dtype) == (rows.shape, np.float32)
    assert not np.array_equal(augmented, rows)
    assert np.array_equal(augmented, views(rows, np.random.default_rng(1)))
    assert views(rows.reshape(6, -1), np.random.default_rng(1)).shape == (6, 192)


def test_a_student_has_the_input_and_output_of_its_teacher() -> None:
    manifest = open_bundle(_DIGITS).manifest
    assert manifest.full is not None
    edge = manifest.edge[0]
    alike = msgspec.structs.replace(manifest.full, inputs=edge.inputs, postprocess=edge.postprocess)
    assert start_of(manifest, alike, edge.id) == edge
    other = msgspec.structs.replace(alike, inputs=(ModelInput("image"),))
    for source, teacher, words in (
        (alike, "nobody", "has no model 'nobody'"),
        (alike, "full", "cannot teach itself"),
        (alike, "edge-tflite-int8", "starts as ONNX in fp32"),
        (other, edge.id, "fed or read otherwise"),
        (replace(alike, postprocess=()), edge.id, "learns the logits"),
    ):
        with pytest.raises(ConfigError, match=words):
            start_of(manifest, source, teacher)


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
