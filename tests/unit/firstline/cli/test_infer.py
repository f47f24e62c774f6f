"""`firstline infer` with the models of a bundle."""

import json
import zipfile
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from support.agent import CHECKOUT, DIGITS
from support.cli import in_one_line, run
from support.images import encode
from support.sample_bundles import NUMBERS, colour_bundle, detector_bundle, number_bundle, solid
from support.task_bundles import TASKS

from bench.support.bundles import model, write_manifest
from bench.support.onnx_models import linear
from firstline_core.bundle.manifest import Policy, Score
from firstline_core.bundle.store import Bundle, open_bundle
from firstline_core.tasks.regression import Regression

_run = partial(run, "infer")


def _lines(*arguments: object, code: int = 0) -> list[dict[str, Any]]:
    return [json.loads(line) for line in _run(*arguments, "-o", "json", code=code).stdout.splitlines()]


@pytest.fixture
def colours(tmp_path: Path) -> Bundle:
    folder = tmp_path / "bundle"
    folder.mkdir()
    return colour_bundle(folder)


@pytest.fixture
def pictures(tmp_path: Path) -> Path:
    folder = tmp_path / "pictures"
    (folder / "more").mkdir(parents=True)
    for channel, name in enumerate(("b.png", "more/a.png", "c.png")):
        (folder / name).write_bytes(encode(solid(channel)))
    (folder / ".hidden").write_text("not an image")
    return folder


def test_files_of_a_folder_are_answered_by_name(colours: Bundle, pictures: Path) -> None:
    found = _lines(colours.path, pictures)
    assert [(line["file"], line["label"], line["tier"]) for line in found] == [
        (str(pictures / "b.png"), "red", "edge"),
        (str(pictures / "c.png"), "blue", "edge"),
        (str(pictures / "more/a.png"), "green", "edge"),
    ]


def test_text_has_a_line_for_each_file(colours: Bundle, pictures: Path) -> None:
    assert _run(colours.path, pictures / "b.png").stdout.startswith(f"{pictures / 'b.png'}: red 0.57")


def test_unfit_file_is_named_and_the_others_are_answered(colours: Bundle, pictures: Path) -> None:
    (pictures / "bad.png").write_text("not an image")
    result = _run(colours.path, pictures, "-o", "json", code=1)
    answers = [json.loads(line) for line in result.stdout.splitlines()]
    assert [line.get("label") or line["code"] for line in answers] == ["red", "invalid_tensor", "blue", "green"]
    assert f"{pictures / 'bad.png'}: it is neither JPEG nor PNG" in result.stderr
    assert "1 of 4 files failed" in result.stderr


def test_swapped_bundle_and_file_give_the_right_command(colours: Bundle, tmp_path: Path) -> None:
    file = tmp_path / "a picture.png"
    file.write_bytes(b"")
    refused = _run(file, colours.path, code=2).stderr
    assert in_one_line(refused).endswith(f"firstline infer {colours.path} '{file}'.")


def test_the_name_of_a_file_does_not_steer_the_terminal(colours: Bundle, tmp_path: Path) -> None:
    file = tmp_path / "\x9b31m.png"
    file.write_text("not an image")
    assert "\\x9b31m.png: " in _run(colours.path, file, code=1).stderr


def test_answers_are_drawn_into_a_folder(tmp_path: Path) -> None:
    (tmp_path / "bundle").mkdir()
    detector_bundle(tmp_path / "bundle")
    (tmp_path / "white.png").write_bytes(encode(np.full((80, 80, 3), 255, np.uint8)))
    (found,) = _lines(tmp_path / "bundle", tmp_path / "white.png", "--draw", tmp_path / "drawn")
    assert found["objects"] == [{"label": "dog", "score": 0.5, "box": {"x1": 0.0, "y1": 20.0, "x2": 40.0, "y2": 60.0}}]
    with Image.open(tmp_path / "drawn" / "white.png") as drawn:
        assert (drawn.size, drawn.getpixel((10, 60)) == (255, 255, 255)) == ((80, 80), False)


def test_images_of_16_bits_are_drawn_as_the_model_sees_them(tmp_path: Path) -> None:
    (tmp_path / "bundle").mkdir()
    detector_bundle(tmp_path / "bundle")
    Image.fromarray(np.linspace(0, 4000, 6400).reshape(80, 80).astype(np.uint16)).save(tmp_path / "grey.png")
    _lines(tmp_path / "bundle", tmp_path / "grey.png", "--draw", tmp_path / "drawn")
    with Image.open(tmp_path / "drawn" / "grey.png") as drawn:
        assert drawn.getpixel((79, 40)) == (131, 131, 131)


def test_a_mask_covers_the_image(tmp_path: Path) -> None:
    (tmp_path / "bundle").mkdir()
    write, _ = TASKS["segmentation"]
    write(tmp_path / "bundle")
    (tmp_path / "red.png").write_bytes(encode(solid(0, 40)[:30]))
    (found,) = _lines(tmp_path / "bundle", tmp_path / "red.png")
    assert (found["width"], found["height"]) == (40, 30)
    assert (found["mask"]["width"], found["mask"]["height"]) == (43, 32)
    assert "red.png: red 100 % (edge" in _run(tmp_path / "bundle", tmp_path / "red.png").stdout


def test_drawn_files_differ_by_the_whole_name_only_if_they_must(tmp_path: Path) -> None:
    (tmp_path / "bundle").mkdir()
    detector_bundle(tmp_path / "bundle")
    files = [tmp_path / name for name in ("a.jpg", "a.png", "a.jpg.png", "b.jpg")]
    for file in files:
        file.write_bytes(encode(np.full((8, 8, 3), 255, np.uint8)))
    _lines(tmp_path / "bundle", *files, "--draw", tmp_path / "drawn")
    drawn = {path.name for path in (tmp_path / "drawn").iterdir()}
    assert drawn == {"a.jpg.png", "a.png.png", "a.jpg.png.png", "b.png"}
    refused = _run(tmp_path / "bundle", files[0], "--draw", files[1], code=2)
    assert "a.png, which is not a folder" in in_one_line(refused.stderr)


def test_a_tier_gets_no_key_of_another_gateway(monkeypatch: pytest.MonkeyPatch, pictures: Path) -> None:
    monkeypatch.setenv("FIRSTLINE_GATEWAY", "https://gateway:8080")
    monkeypatch.setenv("FIRSTLINE_KEY_FILE", str(pictures / "absent.key"))
    refused = _run("digits", pictures, "--url", "http://127.0.0.1:9", code=1)
    assert "FIRSTLINE_KEY_FILE is not used" in in_one_line(refused.stderr)


def test_rows_are_json(tmp_path: Path) -> None:
    number_bundle(tmp_path)
    (tmp_path / "row.json").write_text("[0, 3]")
    (tmp_path / "rows.json").write_text("[[0, 3], [3, 0]]")
    found = _lines(tmp_path, tmp_path / "row.json", tmp_path / "rows.json", code=1)
    assert found[0]["label"] == "b"
    assert "has 2 rows; send one row" in found[1]["error"]


def test_the_full_model_answers_where_the_edge_model_is_not_sure(tmp_path: Path) -> None:
    with zipfile.ZipFile(CHECKOUT / "models/digits/heldout/images.zip") as archive:
        archive.extractall(tmp_path)
    manifest = open_bundle(DIGITS).manifest
    certificate = manifest.edge[0].certificate
    assert certificate is not None
    assert manifest.full is not None
    found = _lines(DIGITS, tmp_path)
    assert {line["tier"] for line in found} == {"edge", "cloud"}
    for line in found:
        accepted = line["confidence"] >= certificate.threshold
        assert (line["tier"], line["reason"]) == (("edge", "confident") if accepted else ("cloud", "uncertain"))
        assert line["certified"] is True
        assert line["model_digest"] == (manifest.edge[0] if accepted else manifest.full).digest
    assert {line["tier"] for line in _lines(DIGITS, tmp_path, "--route", "cloud")} == {"cloud"}


def test_the_digest_of_a_full_model_covers_its_task(tmp_path: Path) -> None:
    (tmp_path / "numbers").mkdir()
    files = {
        role: linear(tmp_path / "numbers" / f"{role}.onnx", np.eye(2, dtype=np.float32)) for role in ("edge", "full")
    }
    edge, full = (model(file, tmp_path / "numbers", id=role) for role, file in files.items())
    task = Regression(("a", "b"), absolute=1)
    policy = Policy(Score("small_values"), 0.5)
    bundle = write_manifest(tmp_path / "numbers", [edge], (), task=task, inputs=(NUMBERS,), full=full, policy=policy)
    (tmp_path / "row.json").write_text("[0, 3]")
    (line,) = _lines(bundle.path, tmp_path / "row.json", "--route", "cloud")
    assert line["model_digest"] == bundle.manifest.full_digest != full.digest


def test_credentials_go_with_a_url() -> None:
    assert "--key-file and --ca go with --url" in _run(DIGITS, __file__, "--key-file", "key", code=2).stderr
