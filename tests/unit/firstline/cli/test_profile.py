"""`firstline profile create` and `edge-agent profile create`: the place of the profile, and the output."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

import pytest
from support.points_here import measure_here
from support.sample_bundles import variant_bundle
from typer.testing import CliRunner

from firstline.cli.app import app
from firstline.workbench.data.dataset import open_dataset
from firstline.workbench.evaluate import figures, measure
from firstline_core.bundle.store import open_bundle
from firstline_core.profile.files import read_profile
from firstline_core.profile.measure import ProfileOptions, measure_profile
from firstline_edge.__main__ import main as edge_agent

DIGITS = Path(__file__).parents[4] / "models/digits"
POINTS = ProfileOptions(threads=(1,), batches=(1,), total_s=0.3)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A bundle with a complete profile, so that the commands measure nothing."""
    folder = tmp_path_factory.mktemp("cli")
    bundle = variant_bundle(folder / "bundle", "small", name="two")
    path = folder / "profiles" / "two@bench.json"
    measure_profile(bundle, path, POINTS, machine="bench")
    (folder / "state" / "profiles").mkdir(parents=True)
    (folder / "state" / "profiles" / "two.json").write_bytes(path.read_bytes())
    return folder


@pytest.fixture(autouse=True)
def _further_points_are_measured_here(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("firstline_core.profile.measure.measure_in_process", measure_here)


def test_the_profile_is_printed_and_written_next_to_the_bundle(folder: Path) -> None:
    options = ["--threads", "1", "--batches", "1", "--machine", "bench"]
    found = CliRunner().invoke(app, ["profile", "create", str(folder / "bundle"), *options, "-o", "json"])
    assert found.exit_code == 0, found.output
    assert [point["key"]["variant"] for point in json.loads(found.stdout)["points"]] == ["small", "full"]
    text = CliRunner().invoke(app, ["profile", "create", str(folder / "bundle"), *options])
    assert "small: loads in " in text.stdout and "first query" in text.stdout
    assert f"Written: {folder}/profiles/two@bench.json" in text.stdout


def test_malformed_threads_are_refused(folder: Path) -> None:
    found = CliRunner().invoke(app, ["profile", "create", str(folder / "bundle"), "--threads", "many"])
    assert found.exit_code == 2
    assert "--threads many is not a list of numbers" in found.output


@pytest.mark.parametrize("more", [[], ["--on", "cam", "--gateway", "http://127.0.0.1:9"]])
def test_an_impossible_folder_name_is_refused(more: list[str]) -> None:
    found = CliRunner().invoke(app, ["profile", "create", "n" * 300, *more])
    assert found.exit_code == 2 and "n" * 30 in found.output


def test_a_damaged_profile_is_set_aside_and_measured_again(folder: Path, tmp_path: Path) -> None:
    shutil.copytree(folder / "bundle", tmp_path / "bundle")
    path = tmp_path / "profiles" / "two@bench.json"
    path.parent.mkdir()
    path.write_bytes(b"{half of it")
    options = ["--quick", "--variant", "small", "--threads", "1", "--batches", "8", "--machine", "bench"]
    found = CliRunner().invoke(app, ["profile", "create", str(tmp_path / "bundle"), *options])
    assert found.exit_code == 0, found.output
    assert "set aside as two@bench.json.damaged" in found.stderr
    written = read_profile(path)
    assert [one.key.batch for one in written.points] == [8]


@pytest.mark.parametrize("by", ["name", "folder"])
def test_the_device_stores_the_profile_in_its_state_directory(
    folder: Path, by: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    said = "two" if by == "name" else str(folder / "bundle")
    there = ["--set", f"agent.state_dir={folder / 'state'}", "--set", f'models.directories=["{folder / "bundle"}"]']
    monkeypatch.setattr(
        sys, "argv", ["edge-agent", "profile", "create", said, *there, "--threads", "1", "--batches", "1"]
    )
    assert edge_agent() == 0
    assert f"Written: {folder}/state/profiles/two.json" in capsys.readouterr().out


@pytest.mark.parametrize("name", ["three", "n" * 300])
def test_a_missing_model_is_named(
    folder: Path, name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    there = ["--set", f'models.directories=["{folder / "bundle"}"]']
    monkeypatch.setattr(sys, "argv", ["edge-agent", "profile", "create", name, *there])
    assert edge_agent() == 2
    assert "nor a model of models.directories; use one of two" in capsys.readouterr().err


def test_a_device_measures_only_named_variants(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    there = ["--set", f"agent.state_dir={folder / 'other'}", "--variant", "small", "--variant", "huge"]
    monkeypatch.setattr(sys, "argv", ["edge-agent", "profile", "create", str(folder / "bundle"), *there])
    assert edge_agent() == 2
    assert "has no model 'huge'; it has: small" in capsys.readouterr().err


def _right(folder: Path) -> None:
    """States the accuracy in the bundle; the models' digests do not change."""
    path = folder / "bundle" / "manifest.json"
    said = json.loads(path.read_text())
    for model, share in ((said["edge"][0], 0.9), (said["full"], 0.95)):
        model["measured"] = {"accuracy": share}
    path.write_text(json.dumps(said))


def test_the_front_is_marked(folder: Path, tmp_path: Path) -> None:
    own = tmp_path / "own"
    shutil.copytree(folder, own)
    _right(own)
    options = ["--threads", "1", "--batches", "1", "--machine", "bench"]
    found = CliRunner().invoke(app, ["profile", "create", str(own / "bundle"), *options])
    assert found.exit_code == 0, found.output
    assert "95.00 % +" in found.stdout  # nothing is as right as the full model
    assert "on the Pareto front of latency and accuracy" in found.stdout


def test_accuracy_is_counted_on_labelled_images(tmp_path: Path) -> None:
    bundle = tmp_path / "bundle"
    shutil.copytree(DIGITS / "bundle", bundle)
    said = json.loads((bundle / "manifest.json").read_text())
    for model in (*said["edge"], said["full"]):
        model["measured"] = {}
    (bundle / "manifest.json").write_text(json.dumps(said))
    options = ["--threads", "1", "--batches", "1", "--quick", "--variant", "edge-onnx", "--machine", "bench"]
    counting = ["--data", str(DIGITS / "heldout"), "--limit", "60"]
    found = CliRunner().invoke(app, ["profile", "create", str(bundle), *options, *counting])
    assert found.exit_code == 0, found.output
    assert "The column accuracy has accuracy on 60 rows of" in found.stderr
    evaluated = figures(measure(open_bundle(bundle), open_dataset(DIGITS / "heldout", 60), variants=["edge-onnx"]))
    assert f"{100 * evaluated.variants[0].edge.quality['accuracy']:.2f} % +" in found.stdout


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--limit", "5"], "--limit counts the rows of --data"),
        (["--data", "missing"], "missing does not exist"),
        (["--joules-per-core-second", "inf"], "A core takes from 0 to 10000 joules in a second, not inf."),
    ],
)
def test_an_impossible_option_is_refused(folder: Path, options: list[str], said: str) -> None:
    known = ["--threads", "1", "--batches", "1", "--machine", "bench"]
    found = CliRunner().invoke(app, ["profile", "create", str(folder / "bundle"), *known, *options])
    assert found.exit_code == 2
    assert said in " ".join(found.output.split())
