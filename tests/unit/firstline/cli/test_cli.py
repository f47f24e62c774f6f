import subprocess
import sys
from pathlib import Path

import msgspec
import pytest
from support.cli import in_one_line, json_of, run
from support.sample_bundles import detector_bundle

from firstline.fleet.audit_export import head_of
from firstline_core.bundle.store import open_bundle

_DIGITS = Path(__file__).parents[4] / "models/digits"
_FILES = _DIGITS / "artefacts"
_CREATE = [
    "bundle", "create", "--name", "mine", "--labels", str(_DIGITS / "labels.txt"),
    "--edge", str(_FILES / "edge.onnx"), "--full", str(_FILES / "full.onnx"),
    "--preprocess", "decode:L,resize:8x8,scale:0:255", "--postprocess", "softmax",
]  # fmt: skip
_COMPLETE = [*_CREATE, "--threshold", "0.9"]


def test_a_detector_is_cut_in_two(tmp_path: Path) -> None:
    detector_bundle(tmp_path)
    found = json_of("profile", "split", tmp_path, "--data", _DIGITS / "heldout", "--limit", 3, "--at", "scored")
    (cut,) = found["cuts"]
    assert {form["disagreement"] for form in cut["forms"]} == {0.0}
    assert {form["accuracy_loss"] for form in cut["forms"]} == {None}


def test_bundle_is_created_and_evaluated(tmp_path: Path) -> None:
    out = tmp_path / "bundle"
    created = json_of(*_CREATE, "--out", out, "--score", "margin", "--threshold", 0.5, "--bundle-version", 4)
    assert (created["bundle"]["name"], created["bundle"]["version"], created["warnings"]) == ("mine", 4, [])
    assert created["bundle"]["policy"] == {
        "score": {"kind": "margin", "temperature": 1.0, "graph": None, "learned": None},
        "threshold": 0.5,
        "value": None,
    }

    shown = json_of("bundle", "get", out)
    assert shown == created["bundle"]
    assert [model["digest"] for model in shown["models"]] == [m.digest for m in open_bundle(out).manifest.models]
    assert shown["models"][0]["preprocess"] == "decode:L,resize:8x8:bilinear,scale:mean=0:std=255"

    verified = json_of("bundle", "verify", out)
    assert verified["ok"] is True
    assert [check["rows_checked"] is None for check in verified["checks"]] == [True, False, False, True]
    evaluation = ("evaluate", out, "--data", _DIGITS / "heldout", "--limit", 50)
    figures = json_of(*evaluation)
    assert figures["samples"] == 50
    tiered = figures["variants"][0]["tiered"]
    assert tiered["quality"]["accuracy"] > 0.9

    assert "full.onnx" in run("bundle", "get", out).stdout
    assert run("bundle", "verify", out).stdout.count("ok ") == 4
    text = in_one_line(run(*evaluation).stdout)
    assert "on 50 rows of heldout." in text and "without the network" in text
    assert f'edge: AUROC {tiered["auroc"]:.3f} of the score for "edge disagrees with full".' in text


def test_calibration_is_not_called_certified(tmp_path: Path) -> None:
    out = tmp_path / "bundle"
    arguments = [*_CREATE, "--out", out, "--calibrate", _DIGITS / "calibration", "--target-disagreement", 0.02]
    created = json_of(*arguments)
    assert created["calibration"]["certified"] is False
    assert created["calibration"]["variants"][0]["disagreement"] <= 0.02
    assert created["bundle"]["policy"] == created["calibration"]["policy"]
    assert "not certified" in run(*arguments, "--force").stdout


def test_recipe_creates_a_bundle(tmp_path: Path) -> None:
    recipe = tmp_path / "recipe.toml"
    recipe.write_text(
        'name = "mine"\nversion = 2\nlabels = "labels.txt"\npreprocess = "decode:L,resize:8x8,scale"\n'
        'postprocess = "softmax"\n[full]\nfile = "artefacts/full.onnx"\n'
    )
    arguments = ["bundle", "create", "--recipe", recipe, "--models", _DIGITS, "--out", tmp_path / "bundle"]
    assert json_of(*arguments)["bundle"]["version"] == 2
    assert "drop the flag" in run(*arguments, "--name", "other", code=2).stderr


def test_variants_can_be_named(tmp_path: Path) -> None:
    named = f"tiny={_FILES / 'edge_int8.tflite'}"
    created = json_of(*_COMPLETE, "--out", tmp_path / "b", "--edge", named)
    assert [model["id"] for model in created["bundle"]["models"]] == ["edge-onnx-fp32", "tiny", "full"]


def test_warnings_go_to_stderr(tmp_path: Path) -> None:
    dark = ("--edge", _FILES / "edge_int8.tflite", "--preprocess", "decode:L,resize:8x8,scale:0:510")
    result = run(*_COMPLETE, *dark, "--out", tmp_path / "b", "-o", "json")
    assert "Warning: edge_int8.tflite: its quantised input holds 0 to 1, but pixels become 0 to 0.5" in result.stderr
    assert len(msgspec.json.decode(result.stdout)["warnings"]) == 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["bundle", "create", "--out", "x"], "needs --name"),
        (["bundle", "create", "--out", "x", "--name", "n"], "needs --labels"),
        ([*_CREATE, "--out", "x", "--models", "y"], "--models goes with --recipe"),
        ([*_CREATE, "--out", "x", "--calibrate", "y", "--threshold", "0.5"], "drop --threshold"),
        ([*_CREATE, "--out", "x"], "The bundle has no threshold: choose one on data with --calibrate DIR, or state it"),
        ([*_CREATE, "--out", "x", "--edge", "_e=m.onnx"], "The id '_e' is not valid"),
    ],
)
def test_wrong_usage_prints_one_sentence_and_exits_2(arguments: list[object], message: str) -> None:
    result = run(*arguments, code=2)
    assert message in result.stderr
    assert result.stdout == ""


@pytest.mark.parametrize(
    "arguments",
    [
        ["keys", "get", "--keys"],
        ["infer", _DIGITS / "bundle"],
        [*_COMPLETE, "--out"],
    ],
)
def test_a_path_that_the_system_refuses_is_named(arguments: list[object]) -> None:
    """As a folder that this user may not enter would be; root, who may run this test, enters any."""
    path = "a" * 300
    refusal = run(*arguments, path, code=2).stderr
    assert path in refusal and "File name too long" in refusal


def test_verify_fails_on_changed_bytes(tmp_path: Path) -> None:
    out = tmp_path / "bundle"
    run(*_COMPLETE, "--out", out)
    (out / "full.onnx").unlink()  # its absence is not a failure: a device does not need it
    assert {check["what"]: check["outcome"] for check in json_of("bundle", "verify", out)["checks"]} == {
        "files": "ok",
        "model edge": "ok",
        "model full": "absent",
        "score": "ok",
    }
    (out / "edge.onnx").write_bytes(b"x" * (out / "edge.onnx").stat().st_size)
    found = json_of("bundle", "verify", out, code=1)
    assert found["ok"] is False
    assert "sha256" in found["checks"][0]["detail"]
    assert "sha256" in run("evaluate", out, "--data", _DIGITS / "heldout", code=1).stderr


def test_command_runs_as_a_process() -> None:
    wrong = subprocess.run(
        [sys.executable, "-m", "firstline", "bundle", "get", "/nowhere"], capture_output=True, text=True
    )
    assert (wrong.returncode, wrong.stdout) == (2, "")
    assert wrong.stderr.splitlines() == ["/nowhere is not a bundle: there is no such folder; check the path."]


def test_deeply_nested_heads_and_keys_are_refused(tmp_path: Path) -> None:
    (export := tmp_path / "log.jsonl").touch()
    (nested := head_of(export)).write_text('{"x": ' + "[" * 60_000)
    assert "is not the head of an audit log" in in_one_line(run("audit", "verify", "--file", export, code=2).stderr)
    keys = ("--keys", tmp_path / "keys", "--online-key", nested)
    assert "holds no gateway's online key" in in_one_line(run("keys", "init", *keys, code=2).stderr)
