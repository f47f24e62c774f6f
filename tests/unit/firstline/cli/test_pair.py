"""`firstline pair` from the command line."""

import json
import os
import re
import subprocess
import sys
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import tokenizers
from onnx import helper
from PIL import Image
from support import detector_graphs
from support.audio import clip, tone
from support.cli import in_one_line, json_of, run
from support.images import encode
from support.sample_models import average_colours, beep_model, linear_model, one_box, word_model

from bench.support.onnx_models import float_graph
from firstline.workbench.data.dataset import open_dataset
from firstline.workbench.pairing.pair import split
from firstline.workbench.step_syntax import spell
from firstline_core.bundle.store import open_bundle
from firstline_core.processing.steps import Tokenize
from firstline_core.tasks.regression import Regression

COLOURS = ("red", "green", "blue")
_PAIR = ("--edge", "colours.onnx", "--full", "colours.onnx")
_DATA = ("--data", "data", "--out", "out")
_run, _json = partial(run, "pair"), partial(json_of, "pair")


@pytest.fixture(scope="module")
def pictures() -> list[bytes]:
    """120 images, each with more of one colour: red, green, blue, red, and so on."""
    rng = np.random.default_rng(0)
    found = []
    for number in range(120):
        pixels = rng.integers(0, 40, (8, 8, 3), np.uint8)
        pixels[..., number % 3] += rng.integers(10, 30, dtype=np.uint8)
        found.append(encode(pixels))
    return found


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pictures: list[bytes]) -> Path:
    """The working folder, with a model of colours, its labels, and the labelled pictures."""
    monkeypatch.chdir(tmp_path)
    average_colours(tmp_path / "colours.onnx", size=4)
    (tmp_path / "labels.txt").write_text("\n".join(COLOURS))
    images = tmp_path / "data" / "images"
    images.mkdir(parents=True)
    for number, picture in enumerate(pictures):
        (images / f"{number:03}.png").write_bytes(picture)
    lines = "".join(f"{number:03}.png,{number % 3}\n" for number in range(len(pictures)))
    (tmp_path / "data" / "labels.csv").write_text(f"file,label\n{lines}")
    return tmp_path


def test_pictures_of_an_earlier_run_are_deleted(site: Path) -> None:
    (site / "my pair/disagreements").mkdir(parents=True)
    (site / "my pair/disagreements/01-accepted-old.png").touch()
    text = _run(*_PAIR, "--data", "data", "--out", "my pair").stdout
    assert "Pictures of disagreements" not in text
    assert not (site / "my pair/disagreements").exists()
    assert "Next: firstline run 'my pair/bundle'" in text  # a command that can be typed


def test_labels_of_any_script_are_written_without_a_locale(site: Path) -> None:
    (site / "labels.txt").write_text("rouge\nvert\nbleuté\n", encoding="utf-8")
    arguments = (sys.executable, "-m", "firstline", "pair", *_PAIR, *_DATA, "--labels", "labels.txt")
    locale = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    subprocess.run(arguments, env={**os.environ, **locale}, capture_output=True, check=True)
    assert open_bundle(site / "out" / "bundle").manifest.labels == ("rouge", "vert", "bleuté")


def test_folders_of_models_may_have_any_character(site: Path) -> None:
    (site / "📷").mkdir()
    (site / "colours.onnx").rename(site / "📷" / "colours.onnx")
    _run("--full", "📷/colours.onnx", *_DATA)
    assert open_bundle(site / "out" / "bundle").manifest.full is not None
    bytes_name = os.fsdecode(b"m\xff.onnx")
    (site / "📷" / "colours.onnx").rename(site / bytes_name)
    assert _run("--full", bytes_name, *_DATA, "--force", code=2).stderr.endswith(
        "recipe.toml is not UTF-8 text; save it as UTF-8.\n"
    )


def test_two_files_become_a_certified_bundle(site: Path) -> None:
    out, arguments = site / "out", (*_PAIR, *_DATA, "--name", "colours")
    found = _json(*arguments)
    assert set(found) == {
        *("bundle", "task", "family", "certified", "contracts", "share_at_edge", "quality", "bytes_sent", "latency_ms"),
        *("sequences", "usual_answer", "broken"),
    }
    assert (found["bundle"], found["task"]) == ("out/bundle", "classification")
    assert found["family"] == {"edge": "logits classifier", "full": "logits classifier"}
    assert (found["certified"], found["contracts"][0]["event"], found["contracts"][0]["epsilon"]) == (True, "", 0.05)
    assert found["share_at_edge"] > 0.3
    assert found["quality"] == {"edge": 1.0, "full": 1.0, "tiered": 1.0}
    assert found["latency_ms"]["edge"] > 0
    manifest = open_bundle(out / "bundle").manifest
    assert (manifest.name, manifest.version, manifest.labels) == ("colours", 2, COLOURS)
    assert manifest.edge[0].certificate is not None
    recipe = (out / "recipe.toml").read_text()
    assert "# logits classifier" in recipe
    assert 'labels = "labels.txt"' in recipe
    assert "exists" in _run(*arguments, code=2).stderr


def test_a_promise_that_is_not_proved_fails_where_it_is_required(site: Path) -> None:
    result = _run(*_PAIR, *_DATA, "--promise", "missed red 0.1% at 99%", "--require", code=1)
    assert "Not proved" in result.stdout
    assert "more would be needed" in result.stdout
    assert "(nothing is certified, so every request goes to the full model)" in in_one_line(result.stdout)


def test_a_promise_on_too_few_rows_is_reported_with_what_is_missing(site: Path) -> None:
    arguments = (*_PAIR, *_DATA, "--limit", 60, "--force")
    (tried,) = _json(*arguments)["contracts"]
    assert (tried["event"], tried["epsilon"], tried["delta"], tried["n"]) == ("", 0.05, 0.1, 30)
    assert (tried["certified"], tried["risk_upper"], tried["n_needed"]) == (False, None, 15)
    assert "at least 15 more rows without a single error" in in_one_line(_run(*arguments).stdout)
    (looser,) = _json(*arguments, "--promise", "10% at 80%")["contracts"]
    assert (looser["event"], looser["epsilon"], looser["delta"], looser["certified"]) == ("", 0.1, 0.2, True)


def test_frames_of_one_video_are_reported_as_dependent(site: Path) -> None:
    frames = site / "frames"
    frames.mkdir()
    for file in (site / "data" / "images").iterdir():
        file.rename(frames / f"yard_frame_{file.name}")
    arguments = (*_PAIR, "--data", "frames", "--labels", "labels.txt", "--force", "--choose", "full=3")
    arguments = (*arguments, "--choose", "full=1", "--out", "out")
    rows = 120 - 48
    sentence = f"they count as about 1 observation, not {rows}, and nothing is proved"
    assert sentence in in_one_line(_run(*arguments).stdout)
    assert _json(*arguments)["sequences"]["effective"] == 1


def test_a_detector_without_edge_answers_has_full_quality(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Candidates below the operating score count in the precision of the full model, and so in that of both tiers."""
    images, boxes = tmp_path / "data" / "images", tmp_path / "data" / "labels"
    images.mkdir(parents=True)
    boxes.mkdir()
    for number, level in enumerate(np.linspace(0, 250, 40).astype(np.uint8)):
        Image.fromarray(np.full((8, 16, 3), level, np.uint8)).save(images / f"{number:03}.png")
        (boxes / f"{number:03}.txt").write_text("1 0.375 0.5 0.25 0.5\n")
    (tmp_path / "classes.txt").write_text("car\nperson\n")
    for role in ("edge", "full"):
        one_box(tmp_path / f"{role}.onnx", white=255)
    models = ("--edge", tmp_path / "edge.onnx", "--full", tmp_path / "full.onnx", "--labels", tmp_path / "classes.txt")
    promise = ("--promise", "missed person 0.1% at 99%")
    arguments = (*models, *promise, "--data", tmp_path / "data", "--out", tmp_path / "out")
    found = _json(*arguments)
    assert (found["task"], found["certified"], found["share_at_edge"]) == ("detection", False, 0)
    hidden = _run(*arguments[:-1], tmp_path / "other", "--promise", "5% at 90%", code=2).stderr
    assert "is about all answers" in in_one_line(hidden)
    assert (
        "names an event"
        in _run(*models, *arguments[-4:-1], tmp_path / "third", "--promise", "5% at 90%", code=2).stderr
    )
    assert found["quality"]["tiered"] == found["quality"]["full"] > 0
    monkeypatch.setitem(sys.modules, "pycocotools.coco", None)
    without = _run(*arguments, "--force", "-o", "json")
    assert json.loads(without.stdout)["quality"] is None
    sentence = "The quality was not measured. pycocotools computes average precision: pip install 'firstline[analysis]'"
    assert sentence in in_one_line(without.stderr)


def test_a_model_alone_becomes_a_bundle_of_one_tier(site: Path) -> None:
    found = _json("--edge", "colours.onnx", *_DATA)
    assert (found["certified"], found["contracts"], found["share_at_edge"], found["bytes_sent"]) == (False, [], 1.0, 0)
    assert found["family"] == {"edge": "logits classifier", "full": None}
    assert open_bundle(site / "out" / "bundle").manifest.full is None


def test_a_promise_needs_two_models(site: Path) -> None:
    refused = _run("--edge", "colours.onnx", *_DATA, "--promise", "missed red 5% at 90%", code=2).stderr
    sentence = "--promise compares an edge model with a full one; name --full FILE too, or leave --promise out"
    assert sentence in in_one_line(refused)
    assert "sure" not in refused


def test_a_person_chooses_from_a_contact_sheet_what_nothing_tells(site: Path) -> None:
    out = site / "out"
    arguments = ("--full", "colours.onnx", "--data", "data/images", "--out", "out", "--labels", "labels.txt")
    stderr = _run(*arguments, code=2).stderr
    assert "Look at out/contact-full-scaling.png, and repeat the command with --choose full=N (1: " in stderr
    with Image.open(out / "contact-full-scaling.png") as sheet:
        assert sheet.size == (1280, 1920)
    assert "has the numbers 1 to 6" in _run(*arguments, "--choose", "full=9", code=2).stderr
    for number in ("²", "1" * 5000):
        assert "is not in the form" in _run(*arguments, "--choose", f"full={number}", code=2).stderr
    _run(*arguments, "--choose", "full=3")
    recipe = (out / "recipe.toml").read_text()
    assert "pixels from 0 to 1: chosen from contact-full-scaling.png" in recipe
    assert "scale:0:255" in recipe


@pytest.mark.parametrize("content", [b"not an image", "cut"])
def test_an_image_that_cannot_be_decoded_is_named(site: Path, content: bytes | str) -> None:
    for damaged in (site / "data" / "images").glob("1*.png"):
        damaged.write_bytes(damaged.read_bytes()[:100] if isinstance(content, str) else content)
    result = _run("--edge", "colours.onnx", *_DATA, code=2)
    assert re.search(r"/1\d\d\.png", result.stderr)
    assert "Remove the file from the data, or replace it." in result.stderr


def test_colours_that_two_models_may_both_take_in_another_order_are_asked(site: Path) -> None:
    arguments = (*_PAIR, "--labels", "labels.txt", "--data", "data/images", "--out", "out", "--choose", "full=3")
    stderr = _run(*arguments, code=2).stderr
    assert "only the data's labels or a settled model could tell: colours in the order RGB" in in_one_line(stderr)
    _run(*arguments, "--choose", "full=2")
    assert (site / "out" / "recipe.toml").read_text().count("decode:BGR") == 2


def test_failure_after_reading_the_models_leaves_the_bundle(site: Path) -> None:
    out = site / "out"
    _run(*_PAIR, *_DATA)
    before = (out / "bundle" / "manifest.json").read_bytes()
    _, rest = split(open_dataset(site / "data"))
    damaged = site / "data" / "images" / rest.samples[-1].file
    damaged.write_bytes(damaged.read_bytes()[:100])
    assert damaged.name in _run(*_PAIR, *_DATA, "--force", code=2).stderr
    assert (out / "bundle" / "manifest.json").read_bytes() == before
    _run(*_PAIR, "--data", "data", "--out", "new", code=2)
    assert sorted(path.name for path in (site / "new").iterdir()) == ["labels.txt", "recipe.toml"]


def test_copies_of_one_image_are_no_fault_of_the_model(site: Path) -> None:
    images = sorted((site / "data" / "images").iterdir())
    for image in images[1:]:
        image.write_bytes(images[0].read_bytes())
    arguments = ("--labels", "labels.txt", "--data", "data/images", "--out", "out", "--choose", "full=3")
    arguments = (*arguments, "--choose", "full=1")
    assert "Give data with rows that differ" in _run(*_PAIR, *arguments, code=2).stderr


def test_models_of_columns_are_paired_on_a_table(tmp_path: Path) -> None:
    for role, seed in (("edge", 0), ("full", 0), ("other", 5)):
        linear_model(tmp_path / f"{role}.onnx", pixels=3, classes=3, softmax=True, seed=seed)
    rows = np.random.default_rng(0).normal(size=(200, 3)).round(3).tolist()
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps({"image": row}) + "\n" for row in rows))
    arguments = ("--full", tmp_path / "full.onnx", "--data", tmp_path / "rows.jsonl", "--out", tmp_path / "out")
    found = _json("--edge", tmp_path / "edge.onnx", *arguments)
    assert (found["family"]["edge"], found["certified"], found["quality"]) == ("table classifier", True, None)
    arguments = (*arguments[:-1], tmp_path / "refused")
    refused = _run("--edge", tmp_path / "other.onnx", *arguments, code=2)
    assert "does not fit the full model" in refused.stderr
    assert not (tmp_path / "refused" / "bundle").exists()


def test_labels_in_another_order_than_the_models_are_refused(tmp_path: Path) -> None:
    linear_model(tmp_path / "model.onnx", pixels=3, classes=3, softmax=True)
    weights = np.random.default_rng(0).standard_normal((3, 3)).astype(np.float32)
    rows = np.random.default_rng(0).normal(size=(200, 3)).round(3)
    labels = (rows @ weights).argmax(axis=1)
    arguments = ("--full", tmp_path / "model.onnx", "--data", tmp_path / "rows.jsonl", "--out")
    for shift in (0, 1):
        lines = [
            json.dumps({"image": row, "label": (label + shift) % 3}) + "\n"
            for row, label in zip(rows.tolist(), labels.tolist(), strict=True)
        ]
        (tmp_path / "rows.jsonl").write_text("".join(lines))
        found = _run(*arguments, tmp_path / f"out{shift}", code=2 * shift)
        assert ("meet the data's labels no better than by chance" in found.stderr) == bool(shift)


def test_a_model_that_fails_on_a_row_is_named(tmp_path: Path) -> None:
    nodes = [helper.make_node("Log", ["x"], ["l"]), helper.make_node("MatMul", ["l", "w"], ["logits"])]
    float_graph(tmp_path / "logs.onnx", nodes, {"x": ["n", 4]}, {"logits": ["n", 3]}, w=np.eye(4, 3, dtype=np.float32))
    (tmp_path / "rows.jsonl").write_text('{"x": [-1, 2, 3, 4]}\n' * 2)
    (tmp_path / "labels.txt").write_text("a\nb\nc\n")
    arguments = ("--data", tmp_path / "rows.jsonl", "--labels", tmp_path / "labels.txt", "--out", tmp_path / "out")
    found = _run("--full", tmp_path / "logs.onnx", *arguments, code=1).stderr
    assert "Model 'logs.onnx' gave NaN or infinity" in found and "nan to nan" not in found


@pytest.mark.parametrize(
    ("label", "reason"),
    [
        ("a; b", "A sigmoid ends the full model model.onnx, so its labels do not exclude each other"),
        ([0.5, 0.25], "The full model model.onnx is of no family that `firstline pair` knows for rows of a table"),
    ],
)
def test_a_sigmoid_over_labels_needs_a_recipe(tmp_path: Path, label: object, reason: str) -> None:
    nodes = [helper.make_node("MatMul", ["x", "w"], ["l"]), helper.make_node("Sigmoid", ["l"], ["p"])]
    float_graph(tmp_path / "model.onnx", nodes, {"x": ["n", 4]}, {"p": ["n", 3]}, w=np.eye(4, 3, dtype=np.float32))
    (tmp_path / "rows.jsonl").write_text(json.dumps({"x": [1, 2, 3, 4], "label": label}) + "\n")
    (tmp_path / "labels.txt").write_text("a\nb\nc\n")
    arguments = ("--data", tmp_path / "rows.jsonl", "--labels", tmp_path / "labels.txt", "--out", tmp_path / "out")
    found = _run("--full", tmp_path / "model.onnx", *arguments, code=2).stderr
    assert reason in found and ("`independent_labels = true`" in found) == isinstance(label, str)


def test_percentages_are_refused_with_the_output(tmp_path: Path) -> None:
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["l"]),
        helper.make_node("Softmax", ["l"], ["p"]),
        helper.make_node("Mul", ["p", "hundred"], ["percent"]),
    ]
    weights = {"w": np.eye(4, 3, dtype=np.float32), "hundred": np.float32(100)[None]}
    float_graph(tmp_path / "model.onnx", nodes, {"x": ["n", 4]}, {"percent": ["n", 3]}, **weights)
    (tmp_path / "rows.jsonl").write_text(json.dumps({"x": [1, 2, 3, 4]}) + "\n")
    arguments = ("--data", tmp_path / "rows.jsonl", "--out", tmp_path / "out")
    found = _run("--full", tmp_path / "model.onnx", *arguments, code=2).stderr
    assert "The output 'percent' of the full model model.onnx gives percentages" in found


def test_labels_show_that_the_last_output_is_the_background(tmp_path: Path) -> None:
    rows = np.random.default_rng(0).normal(size=(80, 4)).round(3)
    weights = np.eye(4, dtype=np.float32)
    weights[3, 3] = 0
    nodes = [helper.make_node("MatMul", ["x", "w"], ["l"])]
    float_graph(tmp_path / "model.onnx", nodes, {"x": ["n", 4]}, {"l": ["n", 4]}, w=weights)
    (tmp_path / "labels.txt").write_text("a\nb\nc\n")
    arguments = ("--data", tmp_path / "rows.jsonl", "--labels", tmp_path / "labels.txt", "--out", tmp_path / "out")
    lines = [json.dumps({"x": row}) + "\n" for row in rows.tolist()]
    (tmp_path / "rows.jsonl").write_text("".join(lines))
    stderr = _run("--full", tmp_path / "model.onnx", *arguments, code=2).stderr
    assert "2: the last output is a background class" in in_one_line(stderr)
    labels = rows[:, :3].argmax(axis=1).tolist()
    lines = [json.dumps({"x": row, "label": label}) + "\n" for row, label in zip(rows.tolist(), labels, strict=True)]
    (tmp_path / "rows.jsonl").write_text("".join(lines))
    settled = _run("--full", tmp_path / "model.onnx", *arguments).stderr
    assert "full: the last output is a background class: settled by labels" in in_one_line(settled)
    (full,) = open_bundle(tmp_path / "out/bundle").manifest.models
    assert spell(full.postprocess) == "softmax,columns:0/1/2"


def test_models_of_one_number_list_run_row_by_row(tmp_path: Path) -> None:
    nodes = [helper.make_node("MatMul", ["x", "w"], ["l"]), helper.make_node("Softmax", ["l"], ["p"], axis=0)]
    float_graph(tmp_path / "model.onnx", nodes, {"x": [3]}, {"p": [3]}, w=4 * np.eye(3, dtype=np.float32))
    rows = np.random.default_rng(0).normal(size=(120, 3)).round(3).tolist()
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps({"x": row}) + "\n" for row in rows))
    model = tmp_path / "model.onnx"
    arguments = ("--edge", model, "--full", model, "--data", tmp_path / "rows.jsonl", "--out", tmp_path / "out")
    found = _json(*arguments)
    assert (found["task"], found["certified"]) == ("classification", True)
    full = open_bundle(tmp_path / "out" / "bundle").manifest.full
    assert (full.batch, full.without_rows) == (1, ("x", "p"))


def test_edge_model_larger_than_the_full_one_is_noted(site: Path) -> None:
    average_colours(site / "larger.onnx", size=4)
    (site / "larger.onnx").write_bytes((site / "larger.onnx").read_bytes() + b"\x72\x04\x0a\x02ab")  # metadata
    assert "exchange --edge and --full" in _run("--edge", "larger.onnx", "--full", "colours.onnx", *_DATA).stderr


def test_a_folder_of_data_as_output_stays_as_it_is(site: Path) -> None:
    before = sorted((site / "data").rglob("*"))
    assert "has other files" in _run(*_PAIR, "--data", "data", "--out", "data", code=2).stderr
    assert sorted((site / "data").rglob("*")) == before


def test_a_folder_that_cannot_be_written_is_refused_before_any_work(site: Path) -> None:
    (site / "file").touch()
    found = _run("--edge", "colours.onnx", "--data", "data", "--out", "file/out", code=2)
    assert "cannot be written" in found.stderr
    assert "sure" not in found.stderr


def test_columns_that_the_data_lack_are_named(tmp_path: Path) -> None:
    linear_model(tmp_path / "model.onnx", pixels=3, classes=3, softmax=True)
    (tmp_path / "rows.csv").write_text("a,b\n1,2\n3,4\n")
    arguments = ("--data", tmp_path / "rows.csv", "--out", tmp_path / "out")
    found = _run("--full", tmp_path / "model.onnx", *arguments, code=2).stderr
    assert "takes 'image', and the data have no column of this name; they have 'a', 'b'" in found
    nodes = [helper.make_node("Abs", ["wave"], ["scores"])]
    float_graph(tmp_path / "bare.onnx", nodes, {"wave": [15600]}, {"scores": [15600]})
    found = _run("--full", tmp_path / "bare.onnx", *arguments, code=2).stderr
    assert "takes recordings, and the data hold rows of a table" in found


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--full", "colours.onnx", "--choose", "edge=1"], "is not in the form edge=N or full=N"),
        (["--full", "colours.onnx", "--choose", "full=1"], "answers no question: nothing was asked"),
        (["--full", "colours.onnx", "--tolerance", "5%"], "--tolerance is of models that answer with numbers"),
        (["--full", "labels.txt"], "neither an ONNX (.onnx) nor a TFLite model"),
        (["--full", "cut.onnx"], "cut.onnx"),
        (["--full", "cut.tflite"], "cut.tflite"),
        (["--full", "colours.onnx", "--data", "/dev/null"], "/dev/null is neither a folder nor a file with data"),
        (["--full", "colours.onnx", "--data", "bare"], "bare has masks/, and no images were found next to it"),
        (
            ["--full", "unknown.onnx"],
            "is of no family that `firstline pair` knows for images (inputs 'images' FP32 [1, 3, 96",
        ),
        (["--full", "anchors.onnx"], "gives 1916 boxes and scores of anchors, as SSD does, but not of "),
        (
            ["--edge", "colours.onnx", "--full", "yolo.onnx"],
            "need the same task; they are: edge logits classifier, full yolov8",
        ),
    ],
)
def test_what_cannot_become_a_pair_is_refused(site: Path, arguments: list[str], message: str) -> None:
    detector_graphs.constant_outputs(site / "unknown.onnx", {"depth": np.ones((1, 1, 96, 96), np.float32)})
    detector_graphs.yolov8(site / "yolo.onnx")
    anchors = {"offsets": np.ones((1, 1916, 4), np.float32), "scores": np.ones((1, 1916, 91), np.float32)}
    detector_graphs.constant_outputs(site / "anchors.onnx", anchors)
    (site / "cut.onnx").write_bytes((site / "colours.onnx").read_bytes()[:100])
    (site / "cut.tflite").write_bytes(b"\x1c\0\0\0TFL3" + bytes(20))
    (site / "bare" / "masks").mkdir(parents=True)
    (site / "bare" / "images.csv").write_text("file\na.png\n")
    found = in_one_line(_run("--data", "data", *arguments, code=2).stderr)
    assert message in found
    assert "observations" not in found and not (site / "pair" / "bundle").exists()


@pytest.fixture
def beeps(tmp_path: Path) -> Path:
    """A folder with models of beeps, and 40 recordings at 16 kHz with labels."""
    beep_model(tmp_path / "edge.onnx", 2000)
    beep_model(tmp_path / "full.onnx")
    (tmp_path / "labels.txt").write_text("quiet\nbeep\n")
    audio = tmp_path / "data" / "audio"
    audio.mkdir(parents=True)
    lines = ["file,label"]
    for number in range(40):
        loudness, is_beep = 0.2 + number / 60, number % 2
        (audio / f"{number}.wav").write_bytes(clip(loudness * tone(1000 if is_beep else 300, 16_000), 16_000))
        lines.append(f"{number}.wav,{is_beep}")
    (tmp_path / "data" / "labels.csv").write_text("\n".join(lines) + "\n")
    return tmp_path


def test_labels_decide_the_sample_rate_of_models_of_recordings(beeps: Path) -> None:
    arguments = ("--edge", beeps / "edge.onnx", "--full", beeps / "full.onnx", "--out", beeps / "out")
    report = _json(*arguments, "--data", beeps / "data")
    assert report["family"] == {"edge": "audio classifier", "full": "audio classifier"}
    assert report["quality"]["full"] == 1.0
    (feed,) = open_bundle(beeps / "out" / "bundle").manifest.edge[0].inputs
    assert spell(feed.preprocess) == "decode_audio,mono,resample:8000,crop:8000:start,pad:8000:end"


def test_a_person_names_the_sample_rate_that_nothing_tells(beeps: Path) -> None:
    arguments = ("--full", beeps / "full.onnx", "--data", beeps / "data" / "audio", "--out", beeps / "out")
    arguments = (*arguments, "--labels", beeps / "labels.txt")
    stderr = _run(*arguments, code=2).stderr
    assert "Repeat the command with --choose full=N (1: 8000 samples a second; 2: 16000 samples a second" in stderr
    _run(*arguments, "--choose", "full=1")
    assert "resample:8000" in (beeps / "out" / "recipe.toml").read_text()


def test_models_of_images_are_refused_for_recordings(beeps: Path) -> None:
    average_colours(beeps / "colours.onnx", size=4)
    refused = _run("--full", beeps / "colours.onnx", "--data", beeps / "data", "--out", beeps / "out", code=2)
    assert "colours.onnx takes images, and the data hold recordings" in refused.stderr


def test_a_model_of_tokens_is_read_with_the_tokenizer_next_to_it(tmp_path: Path) -> None:
    words = ["[PAD]", "[UNK]", *(f"word{number}" for number in range(20))]
    word_model(tmp_path / "full.onnx", len(words))
    (tmp_path / "labels.txt").write_text("even\nodd\n")
    rows = [{"sentence": f"word{n % 20} word{(n + 2) % 20}", "label": "odd" if n % 2 else "even"} for n in range(60)]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    arguments = ("--full", tmp_path / "full.onnx", "--data", tmp_path / "rows.jsonl", "--out", tmp_path / "out")
    assert "there is no tokenizer.json of its tokenizer" in _run(*arguments, code=2).stderr
    vocabulary = {word: number for number, word in enumerate(words)}
    tokenizer = tokenizers.Tokenizer(tokenizers.models.WordLevel(vocabulary, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    tokenizer.enable_truncation(8)
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    found = _json(*arguments)
    assert (found["family"]["full"], found["quality"]["full"]) == ("text classifier", 1.0)
    manifest = open_bundle(tmp_path / "out" / "bundle").manifest
    assert [(each.name, each.kind) for each in manifest.inputs] == [("sentence", "text")]
    parts = [step for feed in manifest.full.inputs for step in feed.preprocess if isinstance(step, Tokenize)]
    assert [(step.part, step.length, step.truncate) for step in parts] == [("ids", 8, True), ("mask", 8, True)]


def test_models_of_numbers_get_their_tolerance_from_labels(tmp_path: Path) -> None:
    linear_model(tmp_path / "model.onnx", pixels=3, classes=1)
    weights = np.random.default_rng(0).standard_normal((3, 1)).astype(np.float32)  # those of the model
    rng = np.random.default_rng(1)
    rows = rng.normal(size=(200, 3))
    noise = rng.choice([-0.5, 0.5], 200)
    labels = (rows @ weights)[:, 0] + noise
    lines = (json.dumps({"image": row, "price": label}) for row, label in zip(rows.tolist(), labels, strict=True))
    (tmp_path / "rows.jsonl").write_text("\n".join(lines))
    model, out = tmp_path / "model.onnx", tmp_path / "out"
    arguments = ("--edge", model, "--full", model, "--data", tmp_path / "rows.jsonl", "--out", out)
    stderr = _run(*arguments, code=2).stderr
    assert "need a tolerance" in stderr and "--tolerance" in stderr
    found = _json(*arguments, "--label-column", "price")
    assert (found["task"], found["certified"]) == ("regression", True)
    task = open_bundle(out / "bundle").manifest.task
    assert isinstance(task, Regression)
    assert (task.names, task.absolute) == (("price",), 0.5)
    _run(*arguments, "--tolerance", "0.75", "--force")
    task = open_bundle(out / "bundle").manifest.task
    assert isinstance(task, Regression)
    assert task.absolute == 0.75
    assert "needs an edge model that gives the error" in _run(*arguments, "--tolerance", "5%", "--force", code=2).stderr


@pytest.mark.parametrize("mean", [0, 3e5])
def test_anomaly_models_get_their_operating_scores_from_labels(tmp_path: Path, mean: float) -> None:
    linear_model(tmp_path / "model.onnx", pixels=3, classes=1)
    weights = np.random.default_rng(0).standard_normal((3, 1)).astype(np.float32)
    rows = np.random.default_rng(1).normal(size=(300, 3))
    anomalous = ((rows @ weights)[:, 0] < -1).astype(int)
    read = (rows + mean).tolist()
    lines = [json.dumps({"image": row, "label": int(one)}) for row, one in zip(read, anomalous, strict=True)]
    (tmp_path / "rows.jsonl").write_text("\n".join(lines))
    model, out = tmp_path / "model.onnx", tmp_path / "out"
    found = _json("--edge", model, "--full", model, "--data", tmp_path / "rows.jsonl", "--out", out)
    assert (found["task"], found["contracts"][0]["event"]) == ("anomaly", "missed anomaly")
    assert found["quality"]["full"] > 0.9
    assert ":below:scale=" in (out / "recipe.toml").read_text()
