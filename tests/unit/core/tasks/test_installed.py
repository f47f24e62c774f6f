from pathlib import Path
from typing import Any

import httpx
import msgspec
import numpy as np
import pytest
from support.either_tier import either_tier
from support.installed_tasks import install
from support.sample_bundles import NUMBERS, number_bundle

from firstline_core.bundle.loading import scorer
from firstline_core.bundle.manifest import MANIFEST_NAME, Score, encode_manifest, parse_manifest
from firstline_core.bundle.store import Bundle, open_bundle
from firstline_core.errors import ConfigError, InferenceError, IntegrityError, TaskError
from firstline_core.tasks.classification import Classification
from firstline_core.tasks.installed import BUILT_IN, package_of, read_task, task_type

FIELDS = {"kind": "triage", "labels": ["none", "minor", "grave"], "alike": 2}


def probabilities(*labels: int) -> dict[str, Any]:
    return {"probabilities": np.eye(3, dtype=np.float32)[list(labels)]}


def triage_bundle(folder: Path, package: str = "triage-task") -> Bundle:
    """A bundle whose manifest names the task."""
    bundle = number_bundle(folder, name="triage")
    fields = msgspec.to_builtins(bundle.manifest)
    fields |= {"task": FIELDS | {"labels": ["a", "b"], "alike": 1}, "task_package": package}
    (folder / MANIFEST_NAME).write_bytes(msgspec.json.encode(fields))
    return bundle


def test_a_task_of_an_installed_package_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(tmp_path, monkeypatch)
    task = read_task(FIELDS)
    assert isinstance(task, Classification)
    assert task.loss(probabilities(0, 1, 1), probabilities(1, 0, 2)).tolist() == [0, 0, 1]
    assert (package_of("triage"), package_of("classification")) == ("triage-task", "")


def test_a_manifest_keeps_the_task_and_its_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(tmp_path / "site", monkeypatch)
    triage_bundle(tmp_path)
    manifest = open_bundle(tmp_path).manifest
    assert (manifest.task.kind, manifest.task_package) == ("triage", "triage-task")
    assert parse_manifest(encode_manifest(manifest)) == manifest
    assert manifest.full_digest == "" and manifest.score_digest(manifest.policy.score) != manifest.policy.score.digest


def test_features_of_another_form_name_the_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(tmp_path / "site", monkeypatch, "flat = triage_task:Flat")
    path = triage_bundle(tmp_path).path / MANIFEST_NAME
    fields = msgspec.json.decode(path.read_bytes())
    fields["task"]["kind"] = "flat"
    fields["policy"]["score"] = {"kind": "learned", "learned": {"weights": [0.0] * 3, "bias": 0.0}}
    with pytest.raises(IntegrityError, match="features of the task 'flat' of the package 'triage-task' cannot be"):
        parse_manifest(msgspec.json.encode(fields))


@pytest.mark.parametrize(
    ("package", "sentence"),
    [
        ("triage-task", "the task 'triage' belongs to the package 'triage-task', which is not installed here: pip "),
        ("", "the task 'triage' belongs to a package that is not installed here: install the package with this entry "),
    ],
)
def test_a_bundle_without_its_package_is_refused(tmp_path: Path, package: str, sentence: str) -> None:
    triage_bundle(tmp_path, package)
    with pytest.raises(IntegrityError, match=sentence):
        open_bundle(tmp_path)


@pytest.mark.parametrize(
    ("entry", "sentence"),
    [
        ("triage = triage_task:Missing", "does not load: AttributeError"),
        ("triage = absent_module:Triage", "does not load: ModuleNotFoundError"),
        ("triage = triage_task:unfinished", "is not a subclass of firstline_core.tasks.base.ConfiguredTask"),
        ("triage = triage_task:Bare", "needs frozen=True, tag_field='kind' and tag='triage'"),
    ],
)
def test_an_unfit_task_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, entry: str, sentence: str) -> None:
    install(tmp_path, monkeypatch, entry)
    with pytest.raises(TaskError, match=f"the task 'triage' of the package 'triage-task' {sentence}"):
        task_type("triage")


@pytest.mark.parametrize(
    ("source", "sentence"),
    [
        (
            "import msgspec\nclass Unlike(msgspec.Struct, frozen=True, tag='triage'): ...",
            "is not a subclass of firstline",
        ),
        ("class Unlike(ConfiguredTask, frozen=True, tag='triage'):\n    x: int", "lacks loss, outputs of firstline"),
        (
            "class Unlike(ConfiguredTask, frozen=True, tag='triage'):\n"
            "    outputs, event_classes = (), ()\n"
            "    def loss(self, edge, full): ...",
            "lacks occurrences of firstline_core",
        ),
    ],
)
def test_a_struct_without_the_functions_of_a_task_names_them(
    source: str, sentence: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(tmp_path, monkeypatch, "triage = triage_task:Unlike")
    with (tmp_path / "triage_task.py").open("a") as file:
        file.write(f"from firstline_core.tasks.base import ConfiguredTask\n{source}\n")
    with pytest.raises(TaskError, match=sentence):
        task_type("triage")


def test_two_packages_with_a_task_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(tmp_path / "one", monkeypatch)
    install(tmp_path / "two", monkeypatch, name="another-task")
    with pytest.raises(TaskError, match="in several installed packages, another-task and triage-task: uninstall all"):
        task_type("triage")


def test_a_package_cannot_replace_a_task(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(tmp_path, monkeypatch, "classification = triage_task:Triage")
    assert task_type("classification") is Classification


@pytest.mark.parametrize("fields", [3, [], {}, {"kind": 1}, {"kind": "classification", "labels": ["a", 2]}])
def test_invalid_fields_are_named(fields: object) -> None:
    with pytest.raises(ValueError, match=r"a task is an object with a kind, such as classification|labels\[1\]"):
        read_task(fields)


def test_every_task_of_this_package_is_found_by_kind() -> None:
    assert {kind: task.kind for kind, task in BUILT_IN.items()} == {kind: kind for kind in BUILT_IN}


def test_a_function_that_fails_names_its_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(tmp_path, monkeypatch, "failing = triage_task:Failing")
    task = read_task(FIELDS | {"kind": "failing"})
    assert task == read_task(FIELDS | {"kind": "failing"}) and type(task).__name__ == "Failing"
    assert msgspec.to_builtins(task)["kind"] == "failing"
    outputs = probabilities(0)
    calls = {
        "score": lambda: task.score("margin", outputs, {}),
        "supposed_losses": lambda: task.supposed_losses(outputs, {}),
        "groups": lambda: task.groups(outputs),
        "occurrences": lambda: task.occurrences(outputs),
    }
    for name, call in calls.items():
        with pytest.raises(
            InferenceError, match=f"function '{name}' of the task 'failing' failed, which the package 'tr"
        ):
            call()
    with pytest.raises(ConfigError, match="There is no event 'missed none at all'"):
        task.events_of(["missed none at all"], outputs, outputs)  # an error of Firstline stays as it is


def test_an_infinite_score_becomes_finite(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(tmp_path, monkeypatch, "certain = triage_task:Certain")
    score = scorer(read_task(FIELDS | {"kind": "certain"}), Score("margin"))
    assert score({"probabilities": np.float32([[1, 0, 0]])}, {}).tolist() == [np.finfo(np.float32).max]


def _served(folder: Path, kind: str) -> None:
    """Writes a bundle of two tiers with an installed task."""
    folder.mkdir(parents=True)
    full = msgspec.structs.replace(number_bundle(folder, name="triage").manifest.edge[0], id="full")
    number_bundle(folder, name="triage", full=full)
    fields = msgspec.to_builtins(open_bundle(folder).manifest) | {"task": FIELDS | {"kind": kind, "labels": ["a", "b"]}}
    (folder / MANIFEST_NAME).write_bytes(msgspec.json.encode(fields))


@pytest.mark.parametrize("tier", ["agent", "gateway"])
@pytest.mark.parametrize(
    ("kind", "entry"), [("triage", "triage = triage_task:Triage"), ("failing", "failing = triage_task:Failing")]
)
async def test_both_tiers_answer_with_an_installed_task(
    tier: str, kind: str, entry: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also with one whose functions fail, which only leaves the confidence out."""
    install(tmp_path / "site", monkeypatch, entry)
    _served(tmp_path / "models" / "triage", kind)
    async with either_tier(tier, tmp_path) as (url, _), httpx.AsyncClient(base_url=url, trust_env=False) as client:
        found = await client.post("/firstline/v1/models/triage/infer", json={NUMBERS.name: [[0, 2]]})
        assert (found.status_code, found.json()["label"]) == (200, "b"), found.text
        assert kind == "triage" or found.json().get("confidence") is None
        metadata = (await client.get("/v2/models/triage")).json()
        assert metadata["task"]["kind"] == kind
