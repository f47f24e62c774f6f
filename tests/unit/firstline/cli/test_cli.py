from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace
from support.sample_bundles import detector_bundle
from typer.testing import CliRunner

from firstline.cli.app import app
from firstline_core.bundle.manifest import MANIFEST_NAME, encode_manifest
from firstline_core.bundle.store import open_bundle

_DIGITS = Path(__file__).parents[4] / "models/digits"
_FILES = _DIGITS / "artefacts"
_CREATE = [
    "bundle", "create", "--name", "mine", "--labels", str(_DIGITS / "labels.txt"),
    "--edge", str(_FILES / "edge.onnx"), "--full", str(_FILES / "full.onnx"),
    "--preprocess", "decode:L,resize:8x8,scale:0:255", "--postprocess", "softmax",
]  # fmt: skip
_COMPLETE = [*_CREATE, "--threshold", "0.9"]


def _run(*arguments: object, code: int = 0) -> Any:
    result = CliRunner().invoke(app, [str(argument) for argument in arguments])
    assert result.exit_code == code, result.output
    assert code != 2 or "Traceback" not in result.stderr
    return result


def _json(*arguments: object, code: int = 0) -> Any:
    return msgspec.json.decode(_run(*arguments, "-o", "json", code=code).stdout)


def test_candidates_of_a_detector_are_not_certified_without_an_event(tmp_path: Path) -> None:
    detector_bundle(tmp_path)
    promise = ("--epsilon", 0.1, "--delta", 0.1)
    result = _run("compress", tmp_path, "--data", _DIGITS / "heldout", *promise, code=2)
    assert "A contract of the task detection names an event" in result.stderr


def test_a_detector_is_cut_in_two(tmp_path: Path) -> None:
    detector_bundle(tmp_path)
    found = _json("profile", "split", tmp_path, "--data", _DIGITS / "heldout", "--limit", 3, "--at", "scored")
    (cut,) = found["cuts"]
    assert {form["disagreement"] for form in cut["forms"]} == {0.0}
    assert {form["accuracy_loss"] for form in cut["forms"]} == {None}


def test_a_detector_is_verified(tmp_path: Path) -> None:
    detector_bundle(tmp_path)
    assert _json("bundle", "verify", tmp_path)["ok"] is True


def test_bundle_is_created_and_evaluated(tmp_path: Path) -> None:
    out = tmp_path / "bundle"
    made = _json(*_CREATE, "--out", out, "--score", "margin", "--threshold", 0.5, "--bundle-version", 4)
    assert (made["bundle"]["name"], made["bundle"]["version"], made["warnings"]) == ("mine", 4, [])
    assert made["bundle"]["policy"] == {
        "score": {"kind": "margin", "temperature": 1.0, "graph": None, "learned": None},
        "threshold": 0.5,
        "value": None,
    }

    shown = _json("bundle", "get", out)
    assert shown == made["bundle"]
    assert [model["digest"] for model in shown["models"]] == [m.digest for m in open_bundle(out).manifest.models]
    assert shown["models"][0]["preprocess"] == "decode:L,resize:8x8:bilinear,scale:mean=0:std=255"

    verified = _json("bundle", "verify", out)
    assert verified["ok"] is True
    assert [check["rows_checked"] is None for check in verified["checks"]] == [True, False, False, True]
    figures = _json("evaluate", out, "--data", _DIGITS / "heldout", "--limit", 50)
    assert figures["samples"] == 50
    assert figures["variants"][0]["tiered"]["quality"]["accuracy"] > 0.9


def test_text_output_shows_the_same_figures(tmp_path: Path) -> None:
    out = tmp_path / "bundle"
    assert "mine version 1, classification, 10 labels." in _run(*_COMPLETE, "--out", out).stdout
    assert "full.onnx" in _run("bundle", "get", out).stdout
    assert _run("bundle", "verify", out).stdout.count("ok ") == 4
    text = _run("evaluate", out, "--data", _DIGITS / "heldout", "--limit", 20).stdout
    assert "20 rows of heldout" in text
    assert "without the network" in text
    assert 'edge: AUROC 1.000 of the score for "edge disagrees with full".' in text


def test_calibration_is_not_called_certified(tmp_path: Path) -> None:
    out = tmp_path / "bundle"
    arguments = [*_CREATE, "--out", out, "--calibrate", _DIGITS / "calibration", "--target-disagreement", 0.02]
    made = _json(*arguments)
    assert made["calibration"]["certified"] is False
    assert made["calibration"]["variants"][0]["disagreement"] <= 0.02
    assert made["bundle"]["policy"] == made["calibration"]["policy"]
    assert "not certified" in _run(*arguments, "--force").stdout


def test_recipe_creates_a_bundle(tmp_path: Path) -> None:
    recipe = tmp_path / "recipe.toml"
    recipe.write_text(
        'name = "mine"\nversion = 2\nlabels = "labels.txt"\npreprocess = "decode:L,resize:8x8,scale"\n'
        'postprocess = "softmax"\n[full]\nfile = "artefacts/full.onnx"\n'
    )
    arguments = ["bundle", "create", "--recipe", recipe, "--models", _DIGITS, "--out", tmp_path / "bundle"]
    assert _json(*arguments)["bundle"]["version"] == 2
    assert "drop the flag" in _run(*arguments, "--name", "other", code=2).stderr


def test_variants_can_be_named(tmp_path: Path) -> None:
    named = f"tiny={_FILES / 'edge_int8.tflite'}"
    made = _json(*_COMPLETE, "--out", tmp_path / "b", "--edge", named)
    assert [model["id"] for model in made["bundle"]["models"]] == ["edge-onnx-fp32", "tiny", "full"]


def test_warnings_go_to_stderr(tmp_path: Path) -> None:
    dark = ("--edge", _FILES / "edge_int8.tflite", "--preprocess", "decode:L,resize:8x8,scale:0:510")
    result = _run(*_COMPLETE, *dark, "--out", tmp_path / "b", "-o", "json")
    assert "Warning: edge_int8.tflite: its quantised input holds 0 to 1, but pixels become 0 to 0.5" in result.stderr
    assert len(msgspec.json.decode(result.stdout)["warnings"]) == 1


def test_outputs_that_are_no_probabilities_fail_both_commands(tmp_path: Path) -> None:
    logits = "its outputs are not probabilities: a trial run gives values from -"
    said = _run(*_COMPLETE, "--out", tmp_path / "b", "--postprocess", "", code=2).stderr
    assert f"edge.onnx: {logits}" in said and "Add softmax to its postprocessing" in said
    assert not (tmp_path / "b").exists()

    bundle = open_bundle(shutil.copytree(_DIGITS / "bundle", tmp_path / "digits"))
    assert bundle.manifest.full is not None
    manifest = replace(bundle.manifest, full=replace(bundle.manifest.full, postprocess=()))
    (bundle.path / MANIFEST_NAME).write_bytes(encode_manifest(manifest))
    outcomes = {check["what"]: check for check in _json("bundle", "verify", bundle.path, code=1)["checks"]}
    failed = outcomes.pop("model full")
    assert failed["outcome"] == "failed" and failed["detail"].startswith(logits)
    assert {check["outcome"] for check in outcomes.values()} == {"ok"}


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["evaluate"], "Missing argument 'BUNDLE'"),
        (["evaluate", "/nowhere", "--data", "/nowhere"], "/nowhere is not a bundle"),
        (["evaluate", _DIGITS / "bundle", "--data", "/nowhere"], "/nowhere does not exist"),
        (["bundle", "create", "--out", "x"], "needs --name"),
        (["bundle", "create", "--out", "x", "--name", "n"], "needs --labels"),
        ([*_CREATE, "--out", "x", "--models", "y"], "--models goes with --recipe"),
        ([*_CREATE, "--out", "x", "--calibrate", "y", "--threshold", "0.5"], "drop --threshold"),
        ([*_CREATE, "--out", "x", "--score", "luck"], "'luck' is not a score of the task classification"),
        ([*_CREATE, "--out", "x"], "The bundle has no threshold: choose one on data with --calibrate DIR, or state it"),
        (
            [*_CREATE, "--out", "x", "--threshold", "nan"],
            "The threshold nan is not valid: max_probability is fr",
        ),
        ([*_CREATE, "--out", "x", "--threshold", "7", "--score", "margin"], "margin is from 0 to 1"),
        ([*_CREATE, "--out", "x", "--temperature", "inf"], "The temperature inf is not valid"),
        (
            [*_CREATE, "--out", "x", "--preprocess", "decode:L,scale:nan:1"],
            "'scale:mean=nan:std=1' is not valid",
        ),
        ([*_CREATE, "--out", "x", "--edge", "_e=m.onnx"], "The id '_e' is not valid"),
        (
            ["bundle", "create", "--out", "x", "--recipe", "nope.toml"],
            "--recipe: nope.toml does not exist",
        ),
        (["bundle", "verify", "/nowhere"], "/nowhere is not a bundle"),
    ],
)
def test_wrong_usage_prints_one_sentence_and_exits_2(arguments: list[object], said: str) -> None:
    result = _run(*arguments, code=2)
    assert said in result.stderr
    assert result.stdout == ""


def test_verify_fails_on_changed_bytes(tmp_path: Path) -> None:
    out = tmp_path / "bundle"
    _run(*_COMPLETE, "--out", out)
    (out / "full.onnx").unlink()  # its absence is not a failure: a device does not need it
    assert {check["what"]: check["outcome"] for check in _json("bundle", "verify", out)["checks"]} == {
        "files": "ok",
        "model edge": "ok",
        "model full": "absent",
        "score": "ok",
    }
    (out / "edge.onnx").write_bytes(b"x" * (out / "edge.onnx").stat().st_size)
    found = _json("bundle", "verify", out, code=1)
    assert found["ok"] is False
    assert "sha256" in found["checks"][0]["detail"]
    assert "sha256" in _run("evaluate", out, "--data", _DIGITS / "heldout", code=1).stderr


def test_command_runs_as_a_process() -> None:
    arguments = ["evaluate", _DIGITS / "bundle", "--data", _DIGITS / "heldout", "--limit", "20", "-o", "json"]
    done = subprocess.run([sys.executable, "-m", "firstline", *arguments], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert msgspec.json.decode(done.stdout)["samples"] == 20
    wrong = subprocess.run(
        [sys.executable, "-m", "firstline", "bundle", "get", "/nowhere"], capture_output=True, text=True
    )
    assert (wrong.returncode, wrong.stdout) == (2, "")
    assert wrong.stderr.splitlines() == ["/nowhere is not a bundle: there is no such folder; check the path."]
