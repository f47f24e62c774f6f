"""`firstline profile create` and `edge-agent profile create`: the place of the profile, and the output."""

import json
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from msgspec.structs import replace
from support.cli import in_one_line, json_of, run
from support.profiles import point
from support.sample_bundles import variant_bundle

from firstline.cli.profile_source import Named, bundle_named
from firstline.workbench.data.dataset import open_dataset
from firstline.workbench.evaluate import figures, measure
from firstline_core.bundle.store import open_bundle
from firstline_core.errors import ConfigError
from firstline_core.profile.files import read_profile
from firstline_core.profile.measure import Job, ProfileOptions, measure_profile
from firstline_core.profile.profile import Point
from firstline_edge.__main__ import main as edge_agent

DIGITS = Path(__file__).parents[4] / "models/digits"
OPTIONS = ("--threads", 1, "--batches", 1, "--machine", "bench")


@pytest.fixture(scope="module", autouse=True)
def _no_point_takes_time() -> Iterator[None]:
    def stated(job: Job, must_end: object) -> Point:
        return replace(point(1.0), key=job.key)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("firstline_core.profile.measure.measure_in_process", stated)
        yield


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A bundle with a complete profile."""
    folder = tmp_path_factory.mktemp("cli")
    bundle = variant_bundle(folder / "bundle", "small", name="two")
    path = folder / "profiles" / "two@bench.json"
    measure_profile(bundle, path, ProfileOptions(threads=(1,), batches=(1,)), machine="bench")
    (folder / "state" / "profiles").mkdir(parents=True)
    (folder / "state" / "profiles" / "two.json").write_bytes(path.read_bytes())
    return folder


def test_the_profile_is_printed_and_written_next_to_the_bundle(folder: Path) -> None:
    command = ("profile", "create", folder / "bundle", *OPTIONS)
    assert [point["key"]["variant"] for point in json_of(*command)["points"]] == ["small", "full"]
    text = run(*command)
    assert "small: loads in " in text.stdout and "first query" in text.stdout
    assert f"Written: {folder}/profiles/two@bench.json" in text.stdout


@pytest.mark.parametrize("more", [[], ["--on", "cam", "--gateway", "http://127.0.0.1:9"]])
def test_an_impossible_folder_name_is_refused(more: list[str]) -> None:
    assert "n" * 30 in run("profile", "create", "n" * 300, *more, code=2).output


def test_a_folder_without_a_bundle_hides_no_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "digits").mkdir()
    monkeypatch.chdir(tmp_path)
    assert bundle_named(Path("digits")) == Named("digits")
    (tmp_path / "digits" / "manifest.json").write_text("{")
    with pytest.raises(ConfigError, match=r"its manifest\.json cannot be read"):
        bundle_named(Path("digits"))


def test_a_damaged_profile_is_set_aside_and_measured_again(folder: Path, tmp_path: Path) -> None:
    shutil.copytree(folder / "bundle", tmp_path / "bundle")
    path = tmp_path / "profiles" / "two@bench.json"
    path.parent.mkdir()
    path.write_bytes(b"{half of it")
    options = ["--quick", "--variant", "small", "--threads", "1", "--batches", "8", "--machine", "bench"]
    found = run("profile", "create", tmp_path / "bundle", *options)
    assert "set aside as two@bench.json.damaged" in found.stderr
    assert [one.key.batch for one in read_profile(path).points] == [8]


@pytest.mark.parametrize("by", ["name", "folder"])
def test_the_device_stores_the_profile_in_its_state_directory(
    folder: Path, by: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    arg = "two" if by == "name" else str(folder / "bundle")
    there = ["--set", f"agent.state_dir={folder / 'state'}", "--set", f'models.directories=["{folder / "bundle"}"]']
    own_threads = ["--set", "models.threads=3"]
    monkeypatch.setattr(sys, "argv", ["edge-agent", "profile", "create", arg, *there, *own_threads, "--batches", "1"])
    assert edge_agent() == 0
    found = read_profile(folder / "state/profiles/two.json")
    assert found is not None and 3 in {point.key.threads for point in found.points}
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
    manifest = json.loads(path.read_text())
    for model, share in ((manifest["edge"][0], 0.9), (manifest["full"], 0.95)):
        model["measured"] = {"accuracy": share}
    path.write_text(json.dumps(manifest))


def test_the_front_is_marked(folder: Path, tmp_path: Path) -> None:
    own = tmp_path / "own"
    shutil.copytree(folder, own)
    _right(own)
    found = run("profile", "create", own / "bundle", *OPTIONS)
    assert "95.00 % +" in found.stdout  # nothing is as right as the full model
    assert "on the Pareto front of latency and accuracy" in found.stdout


def test_accuracy_is_counted_on_labelled_images(tmp_path: Path) -> None:
    bundle = tmp_path / "bundle"
    shutil.copytree(DIGITS / "bundle", bundle)
    manifest = json.loads((bundle / "manifest.json").read_text())
    for model in (*manifest["edge"], manifest["full"]):
        model["measured"] = {}
    (bundle / "manifest.json").write_text(json.dumps(manifest))
    counting = ("--variant", "edge-onnx", "--data", DIGITS / "heldout", "--limit", 60)
    found = run("profile", "create", bundle, *OPTIONS, *counting)
    assert "The column accuracy has accuracy on 60 rows of" in found.stderr
    evaluated = figures(measure(open_bundle(bundle), open_dataset(DIGITS / "heldout", 60), variants=["edge-onnx"]))
    assert f"{100 * evaluated.variants[0].edge.quality['accuracy']:.2f} % +" in found.stdout


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--limit", "5"], "--limit counts the rows of --data"),
        (["--joules-per-core-second", "inf"], "A core takes from 0 to 10000 joules in a second, not inf."),
    ],
)
def test_an_impossible_option_is_refused(folder: Path, options: list[str], message: str) -> None:
    assert message in in_one_line(run("profile", "create", folder / "bundle", *OPTIONS, *options, code=2).output)
