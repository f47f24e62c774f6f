from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import onnx
import pytest
from onnx import helper
from support.images import by_name, encode, images
from support.impure_models import dynamically_quantised
from support.sample_bundles import COLOURS, NUMBERS, colour_bundle, detector_bundle, number_bundle, solid
from support.sample_models import average_colours, first_column_graph

from bench.support.bundles import artefact, model, write_manifest
from bench.support.onnx_models import float_graph, linear
from firstline_core.bundle import loading
from firstline_core.bundle.loaded_model import LoadedModel
from firstline_core.bundle.loading import load_edge, load_model, load_scorer
from firstline_core.bundle.manifest import Policy, Score
from firstline_core.bundle.store import Bundle, open_bundle
from firstline_core.errors import InferenceError, InvalidTensorError, ModelLoadError
from firstline_core.processing.geometry import GEOMETRY
from firstline_core.processing.steps import (
    BoxRows,
    ClassMap,
    Decode,
    Detr,
    Graph,
    InputSpec,
    LabelOffset,
    Layout,
    PostStep,
    Resize,
    Scale,
    Softmax,
    Suppress,
    Yolo,
    Yolox,
)
from firstline_core.routing.policy import Logistic
from firstline_core.runtime.onnx import OnnxRuntime
from firstline_core.runtime.select import RuntimeOptions
from firstline_core.tasks.classification import LOGITS, features, score
from firstline_core.tasks.detection import Detection
from firstline_core.types import PROBABILITIES, Tensor, join_rows

OPTIONS = RuntimeOptions()
EYE = np.eye(2, dtype=np.float32)


def test_boxes_of_a_detector_lie_in_the_original_image(tmp_path: Path) -> None:
    loaded = load_edge(detector_bundle(tmp_path), OPTIONS)
    large, small = (encode(np.full((side, side, 3), 255, np.uint8)) for side in (80, 8))
    assert set(loaded.prepare(by_name(images(large, small)))) == {"x", GEOMETRY}
    prediction = loaded.predict(by_name(images(large, small)))
    outputs, evidence = prediction.outputs, prediction.evidence
    # Both pictures are 8x8 pixels from the fifth column on: half of their pixels are padding.
    assert outputs["boxes"][:, 0].tolist() == [[0, 20, 40, 60], [0, 2, 4, 6]]
    assert outputs["classes"].tolist() == [[1, -1], [1, -1]] and outputs["count"].tolist() == [1, 1]
    assert set(evidence) == {"candidate_boxes", "candidate_scores", "candidate_classes"}
    np.testing.assert_allclose(load_scorer(detector_bundle(tmp_path), OPTIONS)(outputs, evidence), 0.5)
    joined = join_rows([loaded.prepare(by_name(images(small))), loaded.prepare(by_name(images(large)))])
    assert loaded.run(joined)["boxes"][:, 0].tolist() == [[0, 2, 4, 6], [0, 20, 40, 60]]


@pytest.mark.parametrize(
    ("post", "message"),
    [
        ((Softmax(),), "a decoder comes first, then class_map, then suppress"),
        ((Yolox(), Suppress(0.3)), "trial run: YOLOX with strides"),
        ((BoxRows(), ClassMap((7, 7)), Suppress(0.0, floor=0.0)), "classes outside of 0 to 1"),
        ((Detr("logits", "boxes"), Suppress(0.3)), "has no output 'logits'; it has 'rows'"),
        ((Yolo(objectness=True), Suppress(0.3)), "trial run: The model's output has 1 columns; this decoder"),
    ],
)
def test_steps_that_do_not_fit_a_detector_are_refused(tmp_path: Path, post: tuple[PostStep, ...], message: str) -> None:
    with pytest.raises((ModelLoadError, InferenceError), match=message):
        load_edge(detector_bundle(tmp_path, *post), OPTIONS).predict(
            by_name(images(encode(np.full((8, 8, 3), 255, np.uint8))))
        )


def test_the_size_of_a_detector_s_images_is_known_or_declared(tmp_path: Path) -> None:
    free = ("height", "width")
    loaded = load_edge(detector_bundle(tmp_path, BoxRows("fractions"), Suppress(0.3), size=free), OPTIONS)
    outputs = loaded.predict(by_name(images(encode(np.full((8, 16, 3), 255, np.uint8))))).outputs
    assert outputs["count"].tolist() == [0]  # a box of fractions from 2 to 8 lies outside of the image


def detr_bundle(root: Path, output_rows: str | int, **fields: Any) -> Bundle:
    """A bundle of a detector with outputs [rows, 1, ...], and one without the axis of rows, which is not read."""
    nodes = [
        helper.make_node("ReduceMean", ["x"], ["bright"], axes=[1, 2, 3] if output_rows == "n" else [0, 1, 2, 3]),
        helper.make_node("Reshape", ["bright", "shape"], ["one"]),
        helper.make_node("Mul", ["one", "four"], ["boxes"]),
        helper.make_node("Mul", ["one", "two"], ["logits"]),
        helper.make_node("Constant", [], ["version"], value_float=2.0),
    ]
    shapes = {"version": [], "boxes": [output_rows, 1, 4], "logits": [output_rows, 1, 2]}
    constants = {"shape": np.array([-1, 1, 1]), "four": np.ones(4, np.float32), "two": np.ones(2, np.float32)}
    path = float_graph(root / "detr.onnx", nodes, {"x": ["n", 3, 8, 16]}, shapes, **constants)
    pre = (Decode(), Resize(16, 8), Scale(), Layout("NCHW"))
    variant = model(path, root, preprocess=pre, postprocess=(Detr("logits", "boxes"), Suppress(0.3)), **fields)
    policy = Policy(Score("minimum_confidence"))
    return write_manifest(root, [variant], (), task=Detection(("cat", "dog"), k=2), policy=policy)


TWO_IMAGES = images(*[encode(np.full((8, 16, 3), value, np.uint8)) for value in (255, 128)])


@pytest.mark.parametrize("batch", [None, 1])
def test_only_the_outputs_that_a_detector_s_steps_name_are_read(tmp_path: Path, batch: int | None) -> None:
    loaded = load_edge(detr_bundle(tmp_path, "n", batch=batch), OPTIONS)
    assert loaded.output_names == ("logits", "boxes")
    assert loaded.predict(by_name(TWO_IMAGES)).outputs["count"].tolist() == [1, 1]


def test_the_input_of_a_detector_may_have_the_name_geometry(tmp_path: Path) -> None:
    expected = load_edge(detector_bundle(tmp_path), OPTIONS).predict(by_name(TWO_IMAGES)).outputs["boxes"]
    renamed = onnx.load(tmp_path / "boxes.onnx")
    for node in renamed.graph.node:
        node.input[:] = ["geometry" if name == "x" else name for name in node.input]
    renamed.graph.input[0].name = "geometry"
    onnx.save(renamed, tmp_path / "renamed.onnx")
    before = open_bundle(tmp_path).manifest
    steps = {"preprocess": before.edge[0].presteps, "postprocess": before.edge[0].postprocess}
    variant = model(tmp_path / "renamed.onnx", tmp_path, **steps)
    bundle = write_manifest(tmp_path, [variant], (), task=before.task, policy=before.policy)
    np.testing.assert_array_equal(load_edge(bundle, OPTIONS).predict(by_name(TWO_IMAGES)).outputs["boxes"], expected)


def test_a_detector_gives_one_row_for_each_image(tmp_path: Path) -> None:
    loaded = load_edge(detr_bundle(tmp_path, 1), OPTIONS)
    with pytest.raises(InferenceError, match=r"'logits' has shape \[1, 1, 2\] for 2 rows; export the model"):
        loaded.predict(by_name(TWO_IMAGES))
    alone = load_edge(detr_bundle(tmp_path, 1, batch=1), OPTIONS)
    assert alone.predict(by_name(TWO_IMAGES)).outputs["count"].tolist() == [1, 1]


def test_a_decoder_does_not_belong_to_a_classifier(tmp_path: Path) -> None:
    path = linear(tmp_path / "m.onnx", EYE)
    bundle = write_manifest(tmp_path, [model(path, tmp_path, postprocess=(Yolox(),))], ["a", "b"], inputs=(NUMBERS,))
    with pytest.raises(ModelLoadError, match="yolox does not belong"):
        load_edge(bundle, OPTIONS)


def test_the_first_run_detects_a_wrong_label_file(tmp_path: Path) -> None:
    loaded = load_edge(colour_bundle(tmp_path, labels=("red", "green"), resize=False, size="side"), OPTIONS)
    with pytest.raises(InferenceError, match=r"gave \[1, 3\] for 1 row, but the bundle has 2 labels"):
        loaded.predict(by_name(images(encode(solid(0)))))


def test_a_label_offset_applies_to_logits(tmp_path: Path) -> None:
    path = linear(tmp_path / "m.onnx", np.eye(2, 3, dtype=np.float32))
    steps = (Softmax(), LabelOffset())
    bundle = write_manifest(tmp_path, [model(path, tmp_path, postprocess=steps)], ["a", "b"], inputs=(NUMBERS,))
    found = load_edge(bundle, OPTIONS).predict(by_name(Tensor("x", np.array([[3.0, 1.0]], np.float32))))
    np.testing.assert_allclose(found.evidence[LOGITS], [[1, 0]])
    (edge,) = bundle.manifest.edge
    assert edge.shows_logits
    assert not msgspec.structs.replace(edge, postprocess=(Softmax(), Graph(edge.artefact))).shows_logits
    assert not msgspec.structs.replace(edge, postprocess=()).shows_logits


@pytest.mark.parametrize("resize", [True, False])
def test_a_wrong_label_file_is_refused_at_load(tmp_path: Path, resize: bool) -> None:
    bundle = colour_bundle(tmp_path, labels=("red", "green"), resize=resize)
    with pytest.raises(ModelLoadError, match=r"gave \[1, 3\] for 1 row, but the bundle has 2 labels"):
        load_edge(bundle, OPTIONS)


def test_unsuitable_steps_are_refused_at_load(tmp_path: Path) -> None:
    path = average_colours(tmp_path / "colours.onnx", size=4)
    bundle = write_manifest(
        tmp_path, [model(path, tmp_path, preprocess=(Decode(), Resize(5, 5), Layout("NCHW")))], COLOURS
    )
    with pytest.raises(ModelLoadError, match=r"trial run: .*rows of shape \[3, 5, 5\]"):
        load_edge(bundle, OPTIONS)


def test_several_outputs_need_a_name(tmp_path: Path) -> None:
    path = linear(tmp_path / "m.onnx", EYE, softmax=True)
    unnamed = write_manifest(tmp_path, [model(path, tmp_path)], ["a", "b"], inputs=(NUMBERS,))
    with pytest.raises(ModelLoadError, match="2 outputs, 'logits', 'probabilities'; name one of them as `output`"):
        load_edge(unnamed, OPTIONS)
    wrong = write_manifest(tmp_path, [model(path, tmp_path, output="scores")], ["a", "b"], inputs=(NUMBERS,))
    with pytest.raises(ModelLoadError, match="no output 'scores'; it has 'logits', 'probabilities'"):
        load_edge(wrong, OPTIONS)
    named = write_manifest(tmp_path, [model(path, tmp_path, output="probabilities")], ["a", "b"], inputs=(NUMBERS,))
    found = load_edge(named, OPTIONS).predict(by_name(Tensor("x", EYE))).outputs[PROBABILITIES]
    np.testing.assert_allclose(found.sum(axis=1), 1, rtol=1e-6)


def test_graphs_of_the_bundle_before_and_after_the_model(tmp_path: Path) -> None:
    before = linear(tmp_path / "before.onnx", EYE[::-1].copy())
    after = linear(tmp_path / "after.onnx", EYE / 10)
    path = linear(tmp_path / "m.onnx", EYE)
    steps = Graph(artefact(before, tmp_path)), Graph(artefact(after, tmp_path))
    declared = model(path, tmp_path, preprocess=(steps[0],), postprocess=(steps[1],))
    bundle = write_manifest(tmp_path, [declared], ["a", "b"], inputs=(NUMBERS,))
    loaded = load_edge(bundle, OPTIONS)
    found = loaded.predict(by_name(Tensor("x", np.array([[1, 9]], np.float32)))).outputs[PROBABILITIES]
    np.testing.assert_allclose(found, [[0.9, 0.1]])
    loaded.close()
    with pytest.raises(InferenceError, match="closed"):
        loaded.predict(by_name(Tensor("x", EYE)))
    after.unlink()
    with pytest.raises(ModelLoadError, match=r"has no after\.onnx"):
        load_model(bundle, declared, OPTIONS)


def test_a_score_graph_of_chance_is_refused(tmp_path: Path) -> None:
    nodes = [
        helper.make_node("RandomUniformLike", ["probabilities"], ["noise"]),
        helper.make_node("ReduceMax", ["noise"], ["score"], axes=[1], keepdims=0),
    ]
    noisy = float_graph(tmp_path / "noisy.onnx", nodes, {"probabilities": ["n", 2]}, {"score": ["n"]})
    bundle = number_bundle(tmp_path, policy=Policy(Score("graph", graph=artefact(noisy, tmp_path))))
    with pytest.raises(ModelLoadError, match="the same answer different scores; export it without random numbers"):
        load_scorer(bundle, OPTIONS)


@pytest.mark.parametrize("part", ["model", "graph before", "graph after"])
def test_batch_1_runs_every_part_row_by_row(tmp_path: Path, part: str) -> None:
    rows = Tensor("x", np.array([[0, 1, 0, 0], [1, 0, 0, 0], [100, 100, 0, 1]], np.float32))
    mixing = dynamically_quantised(tmp_path / "mixing.onnx")
    eye = linear(tmp_path / "eye.onnx", np.eye(3 if part == "graph before" else 4, dtype=np.float32))
    step = (Graph(artefact(mixing, tmp_path)),)
    steps: dict[str, Any] = {"model": {}, "graph before": {"preprocess": step}, "graph after": {"postprocess": step}}
    path = mixing if part == "model" else eye
    spec = InputSpec("x", "FP32", (-1, 4))
    found = {}
    for batch in (None, 1):
        declared = model(path, tmp_path, batch=batch, **steps[part])
        loaded = load_edge(write_manifest(tmp_path, [declared], ["a", "b", "c"], inputs=(spec,)), OPTIONS)
        prepared = [loaded.prepare(by_name(Tensor("x", rows.array[i : i + 1]))) for i in range(3)]
        alone = np.concatenate([loaded.compute(row).outputs[PROBABILITIES] for row in prepared])
        together = loaded.compute(loaded.prepare(by_name(rows))).outputs[PROBABILITIES]
        found[batch] = float(np.abs(together - alone).max())
        with pytest.raises(InvalidTensorError, match="no rows"):
            port = loaded.inputs[0].port
            loaded.run({port.name: np.zeros((0, port.shape[1]), np.float32)})
    assert found[1] == 0
    assert found[None] is not None and found[None] > 0.1


def test_the_first_variant_that_loads_is_used(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    broken = tmp_path / "broken.tflite"
    broken.write_bytes(b"not a model")
    absent, good = linear(tmp_path / "absent.onnx", EYE), linear(tmp_path / "good.onnx", EYE)
    variants = [model(path, tmp_path) for path in (absent, broken, good)]
    absent.unlink()
    bundle = write_manifest(tmp_path, variants, ["a", "b"], inputs=(NUMBERS,))
    loaded = load_edge(bundle, OPTIONS)
    assert loaded.model.id == "good"
    first, second = loaded.passed_over
    assert first.startswith("absent: ") and second.startswith("broken: ")
    assert [record.levelname for record in caplog.records] == ["WARNING", "WARNING"]
    assert "has no absent.onnx" in caplog.text and "broken.tflite is not a TFLite model" in caplog.text
    good.unlink()
    with pytest.raises(ModelLoadError) as refused:
        load_edge(bundle, OPTIONS)
    for text in (
        "absent:",
        "has no absent.onnx",
        "broken:",
        "broken.tflite is not a TFLite model",
        "good:",
        "has no good.onnx",
    ):
        assert text in refused.value.message


def test_a_bundle_without_edge_variants_is_refused(tmp_path: Path) -> None:
    path = linear(tmp_path / "m.onnx", EYE)
    bundle = write_manifest(tmp_path, [], ["a", "b"], inputs=(NUMBERS,), full=model(path, tmp_path))
    with pytest.raises(ModelLoadError, match="declares no edge variant"):
        load_edge(bundle, OPTIONS)
    assert bundle.manifest.full is not None
    assert isinstance(load_model(bundle, bundle.manifest.full, OPTIONS), LoadedModel)


ANSWERS = np.array([[0.7, 0.3], [0.5, 0.5]], np.float32)


def test_the_declared_score(tmp_path: Path) -> None:
    found = load_scorer(number_bundle(tmp_path, policy=Policy(Score("margin", temperature=2.0))), OPTIONS)
    expected = score("margin", ANSWERS, temperature=2.0)
    np.testing.assert_array_equal(found({PROBABILITIES: ANSWERS}, {}), expected)


def test_a_learned_score_is_one_minus_the_loss(tmp_path: Path) -> None:
    learned = Logistic((-2.0, 0.0, 0.0, 0.0, 1.0, 0.0), 0.5)
    found = load_scorer(number_bundle(tmp_path, policy=Policy(Score("learned", learned=learned))), OPTIONS)
    expected = 1 - learned.losses(features(ANSWERS))
    np.testing.assert_array_equal(found({PROBABILITIES: ANSWERS}, {}), expected)


def test_the_energy_score_uses_the_input_of_the_softmax(tmp_path: Path) -> None:
    bundle = number_bundle(tmp_path, policy=Policy(Score("energy", temperature=2.0)))
    score = load_scorer(bundle, OPTIONS)
    rows = np.array([[3.0, 1.0], [0.0, 0.0]], np.float32)
    found = load_edge(bundle, OPTIONS).predict(by_name(Tensor("x", rows)))
    np.testing.assert_allclose(
        score(found.outputs, found.evidence), 2 * np.log(np.exp(rows / 2).sum(axis=1)), rtol=1e-6
    )
    with pytest.raises(InvalidTensorError, match="needs logits"):
        score(found.outputs, {})


def log_odds_graph(path: Path) -> Path:
    """Log-odds of the first of two classes, infinite where it is certain."""
    nodes = [
        helper.make_node("Log", ["probabilities"], ["logs"]),
        helper.make_node("MatMul", ["logs", "difference"], ["score"]),
    ]
    difference = np.array([[1], [-1]], np.float32)
    return float_graph(path, nodes, {"probabilities": ["n", 2]}, {"score": ["n", 1]}, difference=difference)


def test_the_bundles_own_score_graph(tmp_path: Path) -> None:
    graph = first_column_graph(tmp_path / "score.onnx", 2)
    bundle = number_bundle(tmp_path, policy=Policy(Score("graph", graph=artefact(graph, tmp_path))))
    found = load_scorer(bundle, OPTIONS)({PROBABILITIES: ANSWERS}, {})
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, [0.7, 0.5])
    graph.unlink()
    with pytest.raises(ModelLoadError, match="score graph is absent"):
        load_scorer(bundle, OPTIONS)


def test_an_infinite_score_becomes_the_largest_finite_number(tmp_path: Path) -> None:
    graph = log_odds_graph(tmp_path / "score.onnx")
    score = load_scorer(
        number_bundle(tmp_path, policy=Policy(Score("graph", graph=artefact(graph, tmp_path)))), OPTIONS
    )
    answers = np.array([[1, 0], [0, 1], [0.5, 0.5], [np.nan, 0.5]], np.float32)
    high, low, middle, none = score({PROBABILITIES: answers}, {})
    assert (high, low, middle) == (np.finfo(np.float32).max, np.finfo(np.float32).min, 0)
    assert np.isnan(none)  # never kept


def test_loading_refuses_a_score_graph_for_other_classes(tmp_path: Path) -> None:
    graph = first_column_graph(tmp_path / "score.onnx", 5)
    bundle = number_bundle(tmp_path, policy=Policy(Score("graph", graph=artefact(graph, tmp_path))))
    with pytest.raises(ModelLoadError, match="does not score 2 classes"):
        load_scorer(bundle, OPTIONS)


def test_a_refused_score_graph_is_closed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[OnnxRuntime] = []

    class Noted(OnnxRuntime):
        def __init__(self, *arguments: Any, **more: Any) -> None:
            super().__init__(*arguments, **more)
            opened.append(self)

    nodes = [helper.make_node("ReduceMax", ["probabilities"], [name], axes=[1], keepdims=0) for name in ("one", "two")]
    graph = float_graph(tmp_path / "two.onnx", nodes, {"probabilities": ["n", 2]}, {"one": ["n"], "two": ["n"]})
    monkeypatch.setattr(loading, "OnnxRuntime", Noted)
    with pytest.raises(ModelLoadError, match=r"two\.onnx has 2 outputs"):
        load_scorer(number_bundle(tmp_path, policy=Policy(Score("graph", graph=artefact(graph, tmp_path)))), OPTIONS)
    with pytest.raises(InferenceError, match="closed"):
        opened[0].run({"probabilities": ANSWERS})
