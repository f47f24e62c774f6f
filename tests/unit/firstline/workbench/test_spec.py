from pathlib import Path

import pytest
from support.installed_tasks import install

from firstline.workbench.spec import read_recipe
from firstline.workbench.step_syntax import parse_postprocess, parse_preprocess
from firstline_core.errors import ConfigError
from firstline_core.tasks.classification import Classification
from firstline_core.tasks.detection import Detection
from firstline_core.tasks.tensors import DeclaredTensor, Tensors

_RECIPE = """\
name = "cats"
version = 3
labels = "labels.txt"
labels_skip = 1
preprocess = "decode:RGB,resize:8x8"
postprocess = "softmax"

[[edge]]
file = "small.tflite"
id = "small"
postprocess = ""
output = "probabilities"
measured = {accuracy = 0.9}

[full]
file = "deep/large.onnx"
preprocess = "graph:deep/before.onnx"

[policy]
score = "entropy"
temperature = 1.5
threshold = 0.75
"""


def _written(folder: Path, text: str) -> Path:
    (folder / "labels.txt").write_text("background\ncat\ndog\n")
    (folder / "recipe.toml").write_text(text)
    return folder / "recipe.toml"


def test_recipe_declares_every_field(tmp_path: Path) -> None:
    spec = read_recipe(_written(tmp_path, _RECIPE))
    assert (spec.name, spec.version, spec.labels) == ("cats", 3, ("cat", "dog"))
    small = spec.edge[0]
    assert small.file == tmp_path / "small.tflite"
    assert small.preprocess == parse_preprocess("decode:RGB,resize:8x8")
    assert small.postprocess == ()
    assert (small.id, small.output, small.measured) == ("small", "probabilities", {"accuracy": 0.9})
    assert spec.full.file == tmp_path / "deep/large.onnx"
    assert spec.full.preprocess == parse_preprocess("graph:deep/before.onnx", tmp_path)
    assert spec.full.postprocess == parse_postprocess("softmax")
    assert (spec.policy.score, spec.policy.temperature, spec.policy.threshold) == ("entropy", 1.5, 0.75)


def test_recipe_paths_can_start_in_another_folder(tmp_path: Path) -> None:
    models = tmp_path / "models"
    models.mkdir()
    (models / "labels.txt").write_text("background\ncat\ndog\n")
    assert read_recipe(_written(tmp_path, _RECIPE), models).edge[0].file == models / "small.tflite"


def test_score_can_be_a_graph(tmp_path: Path) -> None:
    spec = read_recipe(_written(tmp_path, _RECIPE.replace('"entropy"', '"graph:score.onnx"')))
    assert spec.policy.score == tmp_path / "score.onnx"


def test_a_score_of_logits_is_chosen_by_certify(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="`firstline certify BUNDLE --data DIR --score energy"):
        read_recipe(_written(tmp_path, _RECIPE.replace('"entropy"', '"energy"')))


@pytest.mark.parametrize(
    ("value", "thresholds"), [("0.4", (0.4, 0.4)), ("{ dog = 0.3 }", (0.5, 0.3)), ("{}", (0.5, 0.5))]
)
def test_thresholds_of_independent_labels_are_read(tmp_path: Path, value: str, thresholds: tuple[float, ...]) -> None:
    text = _RECIPE.replace("labels_skip = 1", f"labels_skip = 1\nindependent_labels = true\nlabel_threshold = {value}")
    assert read_recipe(_written(tmp_path, text)).task == Classification(("cat", "dog"), True, thresholds)


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ("label_threshold = 0.4", "label_threshold is of independent labels; add `independent_labels = true`"),
        ("independent_labels = true\nlabel_threshold = { bird = 0.3 }", "'bird' is not a label of labels.txt"),
        ("independent_labels = true\nlabel_threshold = { dog = 30 }", "is 30, but must be above 0 and below 1"),
    ],
)
def test_unfit_thresholds_are_refused(tmp_path: Path, lines: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        read_recipe(_written(tmp_path, _RECIPE.replace("labels_skip = 1", f"labels_skip = 1\n{lines}")))


def test_a_table_makes_the_recipe_one_of_a_detector(tmp_path: Path) -> None:
    text = _RECIPE.replace('score = "entropy"\n', "")
    detector = read_recipe(_written(tmp_path, f"{text}\n[detection]\nk = 50\nleast_side = 12\n"))
    assert detector.configured == detector.task == Detection(detector.labels, k=50, least_side=12)
    assert detector.policy.score == "minimum_confidence"
    with pytest.raises(ConfigError, match=r"recipe.toml:23, 'detection': .*at most 1"):
        read_recipe(_written(tmp_path, f"{text}\n[detection]\niou = 2\n"))
    lowest = _RECIPE.replace('score = "entropy"', 'score = "lowest"')
    with pytest.raises(ConfigError, match=r"use one of minimum_confidence, mean_confidence, no_candidate, product\."):
        read_recipe(_written(tmp_path, f"{lowest}\n[detection]\nk = 50\n"))


def test_a_table_declares_tensors_and_the_loss_graph(tmp_path: Path) -> None:
    (tmp_path / "loss.onnx").write_bytes(b"graph")
    text = """name = "depths"
version = 1
full = { file = "m.onnx" }

[tensors]
loss_graph = "loss.onnx"
tensors = [{ name = "depth", datatype = "FP32", shape = [-1, 4] }]
"""
    spec = read_recipe(_written(tmp_path, text))
    assert spec.task == Tensors((DeclaredTensor("depth", "FP32", (-1, 4)),), loss_graph=b"graph")
    assert (spec.policy.score, spec.labels) == ("none", ())
    with pytest.raises(ConfigError, match=r"The loss graph .*gone.onnx does not exist"):
        read_recipe(_written(tmp_path, text.replace("loss.onnx", "gone.onnx")))


def test_a_recipe_names_the_task_of_an_installed_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = _RECIPE + '\n[task]\nkind = "triage"\nalike = 1\n'
    with pytest.raises(
        ConfigError, match=r"recipe.toml:24, 'task': the task 'triage' belongs to a package that is not"
    ):
        read_recipe(_written(tmp_path, text))
    install(tmp_path / "site", monkeypatch)
    spec = read_recipe(_written(tmp_path, text))
    assert (spec.task.kind, spec.task.labels, spec.policy.score) == ("triage", ("cat", "dog"), "entropy")


@pytest.mark.parametrize("name", ["imagenet-cascade", "cifar10-cascade", "coco-cascade", "spoken-digits-cascade"])
def test_recipes_of_the_repository_are_read(tmp_path: Path, name: str) -> None:
    for labels in ("labels.txt", "labels_1001.txt"):
        (tmp_path / labels).write_text("background\none\ntwo\n")
    assert read_recipe(Path(__file__).parents[4] / "models" / name / "recipe.toml", tmp_path).name == name


def test_labels_that_are_all_skipped_are_counted(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"labels\.txt has 0 labels"):
        read_recipe(_written(tmp_path, _RECIPE.replace("labels_skip = 1", "labels_skip = 9")))


def test_labels_are_not_skipped_from_the_end(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"labels_skip"):
        read_recipe(_written(tmp_path, _RECIPE.replace("labels_skip = 1", "labels_skip = -2")))
