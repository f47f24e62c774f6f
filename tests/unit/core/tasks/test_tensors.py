from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from onnx import helper
from PIL import Image

from bench.support.bundles import model, write_manifest
from bench.support.onnx_models import float_graph, linear
from firstline_core.bundle.loading import load_model, load_scorer
from firstline_core.bundle.manifest import Policy, Score, encode_manifest, parse_manifest
from firstline_core.bundle.store import Bundle
from firstline_core.errors import ConfigError, InferenceError, ModelLoadError
from firstline_core.processing.steps import InputSpec, PostStep, Softmax
from firstline_core.runtime import onnx
from firstline_core.runtime.select import RuntimeOptions
from firstline_core.tasks.base import check_outputs
from firstline_core.tasks.tensors import DeclaredTensor, Tensors

DEPTH = DeclaredTensor("depth", "FP32", (-1, 2))
NAMES = DeclaredTensor("name", "BYTES", (-1,))
UNSCORED = Score("none")
TASK = Tensors((DEPTH, NAMES), absolute=0.1, relative=0.1)


def answers(*depths: tuple[float, float], names: str = "") -> dict[str, Any]:
    texts = np.array([name.encode() for name in names or "a" * len(depths)], object)
    return {"depth": np.array(depths, np.float32), "name": texts}


def mean_distance(path: Path, *, output: tuple[str, ...] = ("n",)) -> bytes:
    """A loss graph: the mean distance of the depths."""
    nodes = [
        helper.make_node("Sub", ["edge/depth", "full/depth"], ["d"]),
        helper.make_node("Abs", ["d"], ["a"]),
        helper.make_node("ReduceMean", ["a"], ["loss"], axes=[1], keepdims=0),
    ]
    inputs = {"edge/depth": ["n", 2], "full/depth": ["n", 2]}
    return float_graph(path, nodes, inputs, {"loss": output}).read_bytes()


def bundle_of(folder: Path, task: Tensors, *postprocess: PostStep, score: Score = UNSCORED) -> Bundle:
    """A bundle of this task whose edge model returns its two numbers."""
    edge = model(linear(folder / "m.onnx", np.eye(2, dtype=np.float32)), folder, postprocess=postprocess)
    return write_manifest(
        folder, [edge], (), task=task, inputs=(InputSpec("x", "FP32", (-1, 2)),), policy=Policy(score)
    )


def test_numbers_may_differ_by_the_tolerances_and_texts_not_at_all() -> None:
    full = answers((1, 10), (1, 10), (1, 10), (0, 0), names="aaab")
    edge = answers((1.19, 11), (1.21, 10), (1, 8.8), (0.05, 0), names="aaab")
    assert TASK.loss(edge, full).tolist() == [0, 1, 1, 0]
    assert TASK.loss(answers((1, 10)), answers((1, 10), names="b")).tolist() == [1]


def test_a_loss_graph_compares_the_answers(tmp_path: Path) -> None:
    task = Tensors((DEPTH, NAMES), loss_graph=mean_distance(tmp_path / "loss.onnx"))
    edge, full = answers((0, 0), (0.5, 0.5)), answers((0.5, 0), (0.5, 0.5))
    np.testing.assert_allclose(task.loss(edge, full), [0.25, 0])
    assert task.truth_loss(edge, answers((0, 0), (np.nan, 0))).tolist() == [0, 1]


def test_losses_out_of_range_are_clipped_but_certify_refuses(tmp_path: Path) -> None:
    task = Tensors((DEPTH, NAMES), loss_graph=mean_distance(tmp_path / "loss.onnx"))
    edge, full = answers((1.7, 1.7), (0, 0), (np.nan, 0)), answers((0, 0), (0.5, 0), (0, 0))
    assert task.loss(edge, full).tolist() == [1, 0.25, 1]
    outputs = {name: array[:2] for name, array in edge.items()}, {name: array[:2] for name, array in full.items()}
    with pytest.raises(
        InferenceError, match=r"The loss graph of the task gives 1.7; export one whose output is in 0 to 1\."
    ):
        task.check_loss(*outputs)
    task.check_loss(outputs[1], outputs[1])


def test_the_manifest_holds_the_loss_graph_and_the_digest_covers_it(tmp_path: Path) -> None:
    task = Tensors((DEPTH,), loss_graph=mean_distance(tmp_path / "loss.onnx"))
    bundle = bundle_of(tmp_path, task)
    assert parse_manifest(encode_manifest(bundle.manifest)).task == task
    assert task.digest != Tensors((DEPTH,)).digest


def test_a_device_without_onnxruntime_refuses_a_loss_graph(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Another graph than those of the other tests, which stay loaded.
    bundle = bundle_of(tmp_path, Tensors((DEPTH,), loss_graph=mean_distance(tmp_path / "loss.onnx", output=("rows",))))

    def absent(*_: object, **__: object) -> None:
        raise ModelLoadError("ONNX models need onnxruntime, which cannot be imported")

    monkeypatch.setattr("firstline_core.tasks.tensors.OnnxRuntime", absent)
    with pytest.raises(ModelLoadError, match="need onnxruntime"):
        load_model(bundle, bundle.manifest.edge[0], RuntimeOptions())


def test_a_loss_graph_that_does_not_fit_is_refused_at_load(tmp_path: Path) -> None:
    task = Tensors((DeclaredTensor("heat", "FP32", (-1, 2)),), loss_graph=mean_distance(tmp_path / "loss.onnx"))
    bundle = bundle_of(tmp_path, task)
    with pytest.raises(ModelLoadError, match="loss graph does not fit its outputs: it has an input 'edge/depth', but"):
        load_model(bundle, bundle.manifest.edge[0], RuntimeOptions())


def test_a_score_graph_reads_the_outputs_by_name(tmp_path: Path) -> None:
    nodes = [helper.make_node("ReduceMax", ["depth"], ["score"], axes=[1], keepdims=0)]
    graph = float_graph(tmp_path / "score.onnx", nodes, {"depth": ["n", 2]}, {"score": ["n"]})
    artefact = model(graph, tmp_path).artefact
    bundle = bundle_of(tmp_path, TASK, score=Score("graph", graph=artefact))
    score = load_scorer(bundle, RuntimeOptions())
    assert score(answers((1, 2), (4, 3)), {}).tolist() == [2, 4]
    other = msgspec.structs.replace(bundle.manifest, task=Tensors((NAMES, DeclaredTensor("x", "FP32", (-1, 2)))))
    with pytest.raises(ModelLoadError, match="reads 'depth', and the outputs are name, x"):
        load_scorer(Bundle(bundle.path, other), RuntimeOptions())


def test_steps_apply_to_a_single_output(tmp_path: Path) -> None:
    bundle = bundle_of(tmp_path, Tensors((DEPTH,)), Softmax())
    loaded = load_model(bundle, bundle.manifest.edge[0], RuntimeOptions())
    outputs = loaded.predict({"x": np.zeros((3, 2), np.float32)}).outputs
    check_outputs(loaded.declared, outputs, 3)
    assert outputs["depth"].tolist() == [[0.5, 0.5]] * 3
    loaded.close()


def test_answers_are_described_and_drawn() -> None:
    found = answers((1.5, 2))
    assert TASK.describe(found, 0) == {"outputs": {"depth": [[1.5, 2]], "name": ["a"]}}
    blank = Image.new("RGB", (80, 40), "black")
    assert TASK.draw(blank, found, 0).getbbox() is not None


def test_golden_answers_are_compared_relative_to_their_size() -> None:
    assert TASK.difference(answers((100, 0)), answers((101, 0))) == pytest.approx(0.01)
    assert TASK.difference(answers((1, 0)), answers((1, 0), names="b")) == np.inf


def test_figures_need_labels() -> None:
    outputs = answers((1, 10), (1, 10))
    assert TASK.summary(outputs, {}, answers((1, 10), (2, 10))) == {"loss": 0.5}
    with pytest.raises(ConfigError, match="needs labelled rows"):
        TASK.summary(outputs, {}, answers((np.nan, 0), (np.nan, 0)))


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"tensors": (DEPTH, DEPTH)}, "names of outputs differ"),
        ({"tensors": (DEPTH,), "absolute": 1.0, "loss_graph": b"x"}, "keep one of them"),
    ],
)
def test_contradictions_are_refused(fields: dict[str, Any], reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        Tensors(**fields)


@pytest.mark.parametrize("shape", [(1, 2), (-1, -1), (-1, 0)])
def test_outputs_have_fixed_sizes(shape: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="then fixed sizes"):
        DeclaredTensor("x", "FP32", shape)


def test_the_runtime_takes_a_model_without_a_file(tmp_path: Path) -> None:
    content = linear(tmp_path / "m.onnx", np.eye(2, dtype=np.float32)).read_bytes()
    loaded = onnx.OnnxRuntime(Path("held"), providers=("CPUExecutionProvider",), threads=1, content=content)
    assert loaded.run({"x": np.ones((1, 2), np.float32)})["logits"].tolist() == [[1, 1]]
