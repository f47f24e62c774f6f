import math
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from onnx import helper
from support.images import by_name, encode
from support.sample_models import first_column_graph, linear_model, one_box, reversing_graph, two_inputs

from bench.support.onnx_models import float_graph
from firstline.workbench import bundle as making
from firstline.workbench.bundle import create_bundle
from firstline.workbench.calibrate import calibrate
from firstline.workbench.data.dataset import open_dataset
from firstline.workbench.inspect import verify
from firstline.workbench.spec import BundleSpec, ModelSpec, PolicySpec, read_labels
from firstline.workbench.step_syntax import parse_postprocess, parse_preprocess
from firstline_core.bundle.golden import deviation, inputs_of, read_golden
from firstline_core.bundle.loading import load_edge, load_model, load_scorer
from firstline_core.bundle.manifest import MANIFEST_NAME, Policy, encode_manifest, valid_certificate
from firstline_core.bundle.store import Bundle, open_bundle
from firstline_core.errors import ConfigError, InferenceError
from firstline_core.processing.steps import InputSpec
from firstline_core.runtime.select import RuntimeOptions
from firstline_core.tasks.detection import Detection
from firstline_core.types import PROBABILITIES, Tensor

_DIGITS = Path(__file__).parents[4] / "models/digits"
_BEFORE = parse_preprocess("decode:L,resize:8x8,scale:0:255")
_AFTER = parse_postprocess("softmax")
_OPTIONS = RuntimeOptions()


def _model(file: str) -> ModelSpec:
    return ModelSpec(_DIGITS / "artefacts" / file, _BEFORE, _AFTER)


@pytest.fixture
def digits() -> BundleSpec:
    return BundleSpec(
        name="digits",
        version=7,
        labels=read_labels(_DIGITS / "labels.txt"),
        edge=(_model("edge.onnx"), _model("edge.tflite"), _model("edge_int8.tflite")),
        full=_model("full.onnx"),
        policy=PolicySpec("margin", 0.8, 0.6),
    )


def _bare(file: Path, labels: int, postprocess: str = "softmax", **more: str) -> BundleSpec:
    """A bundle of one edge model that takes numbers as they are."""
    names = tuple(f"class {n}" for n in range(labels))
    model = ModelSpec(file, postprocess=parse_postprocess(postprocess), **more)
    return BundleSpec("bare", 1, names, (model,), policy=PolicySpec(threshold=1.0))


def _detector(folder: Path, **more: Any) -> BundleSpec:
    before = parse_preprocess("decode:BGR,resize:16x8:letterbox=center,scale,layout:NCHW")
    after = parse_postprocess("box_rows,suppress:0.3")
    model = ModelSpec(one_box(folder / "boxes.onnx"), before, after)
    task = Detection(("cat", "dog"), k=2)
    policy = PolicySpec("minimum_confidence", threshold=0.5)
    return replace(BundleSpec("pets", 1, task.labels, (model,), model, policy, configured=task), **more)


def test_a_detector_becomes_a_bundle_with_golden_answers(tmp_path: Path) -> None:
    white = tmp_path / "white.png"
    white.write_bytes(encode(np.full((8, 8, 3), 255, np.uint8)))
    bundle = create_bundle(_detector(tmp_path), tmp_path / "bundle", golden=[white])
    assert bundle.manifest.task == Detection(("cat", "dog"), k=2)
    golden = read_golden(bundle, bundle.manifest.golden.artefact)
    with closing(load_edge(bundle, _OPTIONS)) as loaded:
        outputs = loaded.predict(inputs_of(golden, bundle.manifest)).outputs
    assert outputs["count"].tolist() == [1]
    assert deviation(golden, "edge", outputs, loaded.task) == 0
    assert [check.outcome for check in verify(bundle.path)] == ["ok"] * 4


def test_labels_that_a_detector_exceeds_are_refused(tmp_path: Path) -> None:
    task = Detection(("cat",), k=2)
    with pytest.raises(ConfigError, match=r"classes outside of 0 to 0.*; correct the labels or the postprocessing"):
        create_bundle(_detector(tmp_path, configured=task, labels=task.labels), tmp_path / "bundle")


def test_a_detector_is_calibrated_without_labels(tmp_path: Path) -> None:
    bundle = create_bundle(_detector(tmp_path), tmp_path / "bundle")
    for value in (255, 128):
        (tmp_path / f"{value}.png").write_bytes(encode(np.full((8, 8, 3), value, np.uint8)))
    found = calibrate(bundle, open_dataset(tmp_path), target_disagreement=0.0)
    assert [variant.edge_share for variant in found.variants] == [1.0]
    assert found.policy.score.temperature == 1.0


def test_bundle_contains_what_the_spec_declares(digits: BundleSpec, tmp_path: Path) -> None:
    warnings: list[str] = []
    bundle = create_bundle(digits, tmp_path / "new" / "bundle", warn=warnings.append)
    manifest = bundle.manifest
    assert (manifest.name, manifest.version, manifest.labels[9]) == ("digits", 7, "nine")
    assert [model.id for model in manifest.models] == ["edge-onnx-fp32", "edge-tflite-fp32", "edge-tflite-int8", "full"]
    assert manifest.inputs == (InputSpec("image", "BYTES", (-1,), "image"),)
    assert (manifest.policy.score.kind, manifest.policy.score.temperature, manifest.policy.threshold) == (
        "margin",
        0.8,
        0.6,
    )
    assert warnings == []
    assert sorted(path.name for path in bundle.path.parent.iterdir()) == ["bundle"]  # nothing staged is left


def test_same_spec_gives_the_same_bytes(digits: BundleSpec, tmp_path: Path) -> None:
    for name in ("one", "two"):
        create_bundle(digits, tmp_path / name)
    files = sorted(path.name for path in (tmp_path / "one").iterdir())
    assert files == sorted(path.name for path in (tmp_path / "two").iterdir())
    for file in files:
        assert (tmp_path / "one" / file).read_bytes() == (tmp_path / "two" / file).read_bytes()


def test_digits_bundle_matches_its_recipe() -> None:
    bundle = open_bundle(_DIGITS / "bundle")
    for model in bundle.manifest.models:
        assert bundle.has(model)
    artefacts = {path.read_bytes() for path in (_DIGITS / "artefacts").iterdir()}
    assert artefacts == {bundle.file(model.artefact).read_bytes() for model in bundle.manifest.models}
    routing = msgspec.json.decode((_DIGITS / "routing.json").read_bytes())
    score = bundle.manifest.policy.score
    assert (score.kind, score.temperature) == (routing["score"], routing["temperature"])
    assert [valid_certificate(bundle.manifest, model) is not None for model in bundle.manifest.edge] == [True] * 3


def test_bundle_is_replaced_only_with_force(digits: BundleSpec, tmp_path: Path) -> None:
    out = tmp_path / "bundle"
    create_bundle(digits, out)
    with pytest.raises(ConfigError, match="--force"):
        create_bundle(replace(digits, version=8), out)
    assert open_bundle(out).manifest.version == 7
    create_bundle(replace(digits, version=8), out, force=True)
    assert open_bundle(out).manifest.version == 8
    assert [path.name for path in tmp_path.iterdir()] == ["bundle"]


def test_force_never_replaces_other_folders(digits: BundleSpec, tmp_path: Path) -> None:
    (tmp_path / "thesis").mkdir()
    (tmp_path / "thesis" / "chapter.txt").write_text("years of work")
    with pytest.raises(ConfigError, match="is not a bundle"):
        create_bundle(digits, tmp_path / "thesis", force=True)
    assert (tmp_path / "thesis" / "chapter.txt").read_text() == "years of work"


def test_symlink_is_not_followed(digits: BundleSpec, tmp_path: Path) -> None:
    create_bundle(digits, tmp_path / "bundle")
    (tmp_path / "link").symlink_to(tmp_path / "bundle")
    with pytest.raises(ConfigError, match="is a link"):
        create_bundle(digits, tmp_path / "link", force=True)


def test_failure_leaves_only_the_old_bundle(digits: BundleSpec, tmp_path: Path) -> None:
    out = tmp_path / "bundle"
    create_bundle(digits, out)
    with pytest.raises(ConfigError):
        create_bundle(replace(digits, labels=digits.labels[:9]), out, force=True)
    assert open_bundle(out).manifest.version == 7
    assert [path.name for path in tmp_path.iterdir()] == ["bundle"]


@pytest.mark.parametrize("fault", [OSError(28, "No space left on device"), KeyboardInterrupt()], ids=["full", "Ctrl-C"])
def test_failed_rename_restores_old_bundle(
    digits: BundleSpec, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fault: BaseException
) -> None:
    out = tmp_path / "bundle"
    create_bundle(digits, out)
    rename = Path.rename

    def refuse_new(self: Path, target: Path) -> Path:
        if target == out and not self.name.endswith(".old"):
            raise fault
        return rename(self, target)

    monkeypatch.setattr(Path, "rename", refuse_new)
    with pytest.raises((ConfigError, KeyboardInterrupt), match=r"No space left on device|^$"):
        create_bundle(replace(digits, version=8), out, force=True)
    assert open_bundle(out).manifest.version == 7
    assert [path.name for path in tmp_path.iterdir()] == ["bundle"]


def test_policy_is_chosen_on_the_finished_files(digits: BundleSpec, tmp_path: Path) -> None:
    def choose(staged: Bundle) -> Policy:
        load_edge(staged, _OPTIONS).close()
        assert not (tmp_path / "bundle").exists()
        return Policy(threshold=0.25)

    bundle = create_bundle(digits, tmp_path / "bundle", choose_policy=choose)
    assert bundle.manifest.policy == Policy(threshold=0.25)


def test_input_without_decode_is_that_of_the_model(tmp_path: Path) -> None:
    file = linear_model(tmp_path / "m.onnx", pixels=6, classes=3)
    bundle = create_bundle(_bare(file, 3), tmp_path / "out")
    assert bundle.manifest.inputs == (InputSpec(name="image", datatype="FP32", shape=(-1, 6)),)
    assert [model.id for model in bundle.manifest.models] == ["edge"]


def test_graphs_are_copied_and_run(tmp_path: Path) -> None:
    file = linear_model(tmp_path / "m.onnx", pixels=6, classes=3)
    turn, column = reversing_graph(tmp_path / "turn.onnx", 3), first_column_graph(tmp_path / "column.onnx", 3)
    plain = create_bundle(_bare(file, 3), tmp_path / "plain")
    spec = _bare(file, 3, f"softmax,graph:{turn}")
    turned = create_bundle(replace(spec, policy=PolicySpec(column, 1.0, 0.5)), tmp_path / "turned")

    rows = Tensor("image", np.random.default_rng(3).random((5, 6), np.float32))
    first, second = (
        load_model(bundle, bundle.manifest.edge[0], _OPTIONS).predict(by_name(rows)) for bundle in (plain, turned)
    )
    np.testing.assert_allclose(first.outputs[PROBABILITIES], second.outputs[PROBABILITIES][:, ::-1])
    np.testing.assert_allclose(
        load_scorer(turned, _OPTIONS)(second.outputs, second.evidence), second.outputs[PROBABILITIES][:, 0]
    )


@pytest.mark.parametrize(
    ("outputs", "labels", "postprocess", "message"),
    [
        (11, 10, "softmax", "has 11 outputs and there are 10 labels: add label_offset:1 to its postprocessing"),
        (11, 11, "softmax,label_offset:1", "11 outputs, 10 after label_offset:1, and there are 11 labels: leave out"),
        (10, 11, "softmax", "10 outputs and there are 11 labels: leave out the first label (--labels-skip 1)"),
        (100, 10, "softmax", "100 outputs and there are 10 labels: give the labels of this model"),
    ],
)
def test_different_numbers_of_classes_and_labels_are_refused(
    tmp_path: Path, outputs: int, labels: int, postprocess: str, message: str
) -> None:
    file = linear_model(tmp_path / "mine.onnx", pixels=4, classes=outputs)
    with pytest.raises(ConfigError) as caught:
        create_bundle(_bare(file, labels, postprocess), tmp_path / "out")
    assert caught.value.message.startswith("mine.onnx has ")
    assert message in caught.value.message
    assert not (tmp_path / "out").exists()


def test_independent_labels_need_no_sum(tmp_path: Path) -> None:
    nodes = [helper.make_node("Sigmoid", ["x"], ["y"])]
    sigmoid = float_graph(tmp_path / "m.onnx", nodes, {"x": ["n", 3]}, {"y": ["n", 3]})
    likely = Tensor("x", np.full((1, 3), 2.0, np.float32))
    spec, warnings = _bare(sigmoid, 3, ""), list[str]()
    with pytest.raises(ConfigError, match=r"a row that sums to .*, or declare `independent_labels = true`"):
        create_bundle(spec, tmp_path / "out")
    bundle = create_bundle(replace(spec, independent_labels=True), tmp_path / "out", warn=warnings.append)
    with closing(load_edge(bundle, RuntimeOptions())) as loaded:
        np.testing.assert_allclose(loaded.predict(by_name(likely)).outputs[PROBABILITIES], [[0.880797] * 3], rtol=1e-5)
    assert warnings == []
    assert verify(bundle.path)[1].outcome == "ok"

    manifest = bundle.manifest
    exclusive = msgspec.structs.replace(manifest, task=msgspec.structs.replace(manifest.task, independent=False))
    (bundle.path / MANIFEST_NAME).write_bytes(encode_manifest(exclusive))
    with (
        closing(load_edge(open_bundle(bundle.path), RuntimeOptions())) as loaded,
        pytest.raises(InferenceError, match=r"sums to 2\.64, outside of 0\.85 to 1\.05"),
    ):
        loaded.predict(by_name(likely))
    check = verify(bundle.path)[1]
    assert check.outcome == "failed" and "`independent_labels = true`" in check.detail


@pytest.mark.parametrize(
    ("softmax", "labels", "advice"),
    [(True, ("bird", "cat", "dog"), "drop softmax"), (False, ("background", "cat", "dog"), "label_offset:1")],
)
def test_second_softmax_or_background_class_gives_a_warning(
    tmp_path: Path, softmax: bool, labels: tuple[str, ...], advice: str
) -> None:
    spec = _bare(linear_model(tmp_path / "m.onnx", pixels=4, classes=3, softmax=softmax), 3)
    create_bundle(replace(spec, labels=labels), tmp_path / "out", warn=(warnings := list[str]()).append)
    assert len(warnings) == 1 and advice in warnings[0]


def test_one_of_several_outputs_must_be_named(tmp_path: Path) -> None:
    file = linear_model(tmp_path / "m.onnx", pixels=4, classes=3, outputs=2)
    with pytest.raises(
        ConfigError, match=r"has 2 outputs, 'scores', 'scores_1'; name one of them as `output` in the recipe"
    ):
        create_bundle(_bare(file, 3), tmp_path / "out")
    create_bundle(_bare(file, 3, output="scores_1"), tmp_path / "out")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"name": "digits\n"}, "is not valid: use 1 to 64 letters"),
        ({"policy": PolicySpec(temperature=0.0)}, "The temperature 0 is not valid: it is a number from 0.01 to 100."),
        ({"policy": PolicySpec(temperature=math.inf)}, "The temperature inf is not valid"),
        ({"policy": PolicySpec("energi")}, "'energi' is not one of this task's; use one of max_probability"),
        ({"policy": PolicySpec(Path("graph.onnx"), threshold=math.inf)}, "The threshold inf is not valid"),
        (
            {"full": replace(_model("full.onnx"), preprocess=parse_preprocess("decode:L,scale:nan:1"))},
            "The step 'scale:mean=nan:std=1' is not valid: use finite numbers, and a std other than 0.",
        ),
        ({"full": replace(_model("full.onnx"), preprocess=parse_preprocess("scale:0:1/1e-60"))}, "a std other than 0"),
        ({"full": replace(_model("full.onnx"), measured={"accuracy": math.nan})}, "The figure 'accuracy' of full.onnx"),
        (
            {"full": ModelSpec(_DIGITS / "artefacts/full.onnx", parse_preprocess("graph:gone.onnx"))},
            "gone.onnx does not exist",
        ),
    ],
)
def test_invalid_specs_are_refused(digits: BundleSpec, tmp_path: Path, change: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        create_bundle(replace(digits, **change), tmp_path / "out")
    assert message in caught.value.message


def test_runtime_follows_from_the_content(tmp_path: Path) -> None:
    hidden = tmp_path / "model.bin"
    hidden.write_bytes((_DIGITS / "artefacts/edge.tflite").read_bytes())
    assert making.runtime_of(hidden) == "tflite"


def test_labels_are_read_from_a_file(tmp_path: Path) -> None:
    file = tmp_path / "labels.txt"
    file.write_text("background\ncat\n dog \n\n", encoding="utf-8")
    assert read_labels(file, skip=1) == ("cat", "dog")
    file.write_text("cat\n\ndog\n", encoding="utf-8")
    with pytest.raises(ConfigError, match=r"labels\.txt:2 is empty"):
        read_labels(file)


def test_a_model_with_two_inputs_names_none_of_them_alone(tmp_path: Path) -> None:
    file = two_inputs(tmp_path / "pair.onnx")
    with pytest.raises(ConfigError, match=r"Model 'edge' has the inputs a, b: write the steps of each .* `inputs`"):
        create_bundle(_bare(file, 2, "", input="a"), tmp_path / "out")


def test_golden_answers_are_those_of_each_variant(digits: BundleSpec, tmp_path: Path) -> None:
    image = tmp_path / "digit.png"
    image.write_bytes(encode(np.random.default_rng(3).integers(0, 255, (28, 28), np.uint8)))
    bundle = create_bundle(digits, tmp_path / "bundle", golden=[image, image])
    golden = bundle.manifest.golden
    answers = read_golden(bundle, golden.artefact)
    assert sorted(answers.outputs) == ["edge-onnx-fp32", "edge-tflite-fp32", "edge-tflite-int8"]
    for model in bundle.manifest.edge:
        loaded = load_model(bundle, model, _OPTIONS)
        outputs = loaded.predict(inputs_of(answers, bundle.manifest)).outputs
        found = deviation(answers, model.id, outputs, loaded.task)
        assert found is not None and found < 1e-6
        loaded.close()
    with pytest.raises(ConfigError, match="absent does not exist; check the path"):
        create_bundle(digits, tmp_path / "other", golden=[tmp_path / "absent"])
    assert not (tmp_path / "other").exists()
