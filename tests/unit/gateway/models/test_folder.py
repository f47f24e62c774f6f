import errno
import json
import os
import shutil
from pathlib import Path

import pytest
from support.gateway import DIGITS
from support.logs import captured_lines

from firstline_core.errors import ConfigError, IntegrityError, ModelLoadError, UnknownModelError
from firstline_core.runtime.batch_times import BatchTimes
from firstline_core.runtime.select import RuntimeOptions
from firstline_core.types import ModelKey
from firstline_gateway.models.folder import BUDGET_S, LARGEST_ROWS, ModelsFolder, calibrate


def put(folder: Path, **changes: object) -> Path:
    """A copy of the digits bundle, with some fields of its manifest changed."""
    shutil.copytree(DIGITS, folder, ignore=shutil.ignore_patterns("edge*"))
    manifest = json.loads((folder / "manifest.json").read_text()) | changes
    (folder / "manifest.json").write_text(json.dumps(manifest))
    return folder


def test_every_version_is_served_and_the_highest_is_current(tmp_path: Path) -> None:
    put(tmp_path / "digits" / "2", version=2)
    put(tmp_path / "digits" / "10", version=10)
    put(tmp_path / "other", name="other")
    repository = ModelsFolder(tmp_path).load(RuntimeOptions())
    assert [served.key for served in repository] == [("digits", 2), ("digits", 10), ("other", 1)]
    assert repository.versions("digits") == (2, 10)
    assert repository.resolve("digits", "").key == ModelKey("digits", 10)
    assert repository.resolve("digits", "2").key == ModelKey("digits", 2)
    assert repository.metadata("digits", "2").versions == ("2", "10")
    assert repository.metadata("digits", "").inputs[0].datatype == "BYTES"
    assert repository.metadata("digits", "").platform == "onnxruntime_onnx"


@pytest.mark.parametrize(
    ("name", "version", "message"),
    [
        ("digit", "", "no model 'digit' on this gateway; it serves: digits"),
        ("digits", "01", "no version '01'"),
        ("digits", "x", "no version 'x'"),
    ],
)
def test_an_unknown_model_is_refused_with_the_served_ones(name: str, version: str, message: str) -> None:
    with pytest.raises(UnknownModelError, match=message):
        ModelsFolder(DIGITS).load(RuntimeOptions()).resolve(name, version)


def test_a_bad_bundle_does_not_stop_the_others(tmp_path: Path) -> None:
    put(tmp_path / "good")
    put(tmp_path / "again")
    put(tmp_path / "edge-only", name="edge-only", full=None)
    (put(tmp_path / "damaged", name="damaged") / "full.onnx").write_bytes(b"no model")
    (put(tmp_path / "incomplete", name="incomplete") / "full.onnx").unlink()
    put(tmp_path / ".hidden", name="hidden")
    (tmp_path / "no-bundle").mkdir()
    (tmp_path / "a-file").touch()
    repository = ModelsFolder(tmp_path).load(RuntimeOptions())
    assert [served.key.name for served in repository] == ["digits"]
    refused = {bundle.path.name: bundle.error for bundle in repository.refused}
    assert {name: type(error) for name, error in refused.items()} == {
        "good": ConfigError,  # "again" comes first
        "edge-only": ModelLoadError,
        "damaged": IntegrityError,
        "incomplete": ModelLoadError,
    }
    assert "both version 1 of 'digits'" in refused["good"].message
    assert "no full model" in refused["edge-only"].message


def test_a_refusal_is_logged_before_models_are_loaded(tmp_path: Path) -> None:
    put(tmp_path / "good")
    put(tmp_path / "edge-only", name="edge-only", full=None)
    with captured_lines() as lines:
        ModelsFolder(tmp_path).load(RuntimeOptions())
    assert [line["event"] for line in lines] == ["bundle refused", "model loaded"]


def test_a_model_that_never_fits_is_refused(tmp_path: Path) -> None:
    put(tmp_path / "digits")
    repository = ModelsFolder(tmp_path).load(None, budget_bytes=1 << 20)
    assert list(repository) == []
    (refused,) = repository.refused
    assert "takes 3 MiB of memory, more than models.memory_budget_mb allows for all (1 MiB)" in refused.error.message
    assert [served.key.name for served in ModelsFolder(tmp_path).load(None, budget_bytes=3 << 20)] == ["digits"]


def test_the_budget_counts_each_copy_of_a_model(tmp_path: Path) -> None:
    put(tmp_path / "digits")
    put(tmp_path / "other", name="other")
    copies = {"digits": 2, "other": 1}

    def loaded(budget_mb: int) -> list[str]:
        found = ModelsFolder(tmp_path, copies_of=copies.__getitem__).load(
            RuntimeOptions(), budget_bytes=budget_mb << 20
        )
        return [served.key.name for served in found if served.loaded is not None]

    assert [loaded(budget_mb) for budget_mb in (3, 5, 8)] == [["other"], ["digits"], ["digits", "other"]]


def test_a_model_that_runs_elsewhere_alone_is_neither_loaded_nor_counted(tmp_path: Path) -> None:
    put(tmp_path / "digits")
    (tmp_path / "digits" / "full.onnx").unlink()
    (found,) = ModelsFolder(tmp_path, copies_of=lambda _: 0).load(RuntimeOptions(), budget_bytes=1)
    assert (found.key.name, found.loaded, found.memory_bytes) == ("digits", None, 0)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read every folder")
def test_a_folder_that_may_not_be_read_is_refused_alone(tmp_path: Path) -> None:
    put(tmp_path / "good")
    closed = [tmp_path / "closed", tmp_path / "versions" / "2", tmp_path / "unlisted"]
    for folder, mode in zip(closed, (0o000, 0o000, 0o100), strict=True):
        folder.mkdir(parents=True)
        folder.chmod(mode)
    try:
        _refused_alone(tmp_path, closed)
    finally:
        for folder in closed:
            folder.chmod(0o700)


def test_a_folder_that_fails_to_be_read_is_refused_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put(tmp_path / "good")
    closed = [tmp_path / "closed", tmp_path / "versions" / "2"]
    for folder in closed:
        folder.mkdir(parents=True)
    exists = Path.exists

    def fails(path: Path) -> bool:
        if path.parent in closed:
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
        return exists(path)

    monkeypatch.setattr(Path, "exists", fails)
    _refused_alone(tmp_path, closed)


def _refused_alone(root: Path, closed: list[Path]) -> None:
    repository = ModelsFolder(root).load(RuntimeOptions())
    assert [served.key.name for served in repository] == ["digits"]
    assert sorted(bundle.path for bundle in repository.refused) == sorted(closed)
    for bundle in repository.refused:
        assert str(bundle.path) in bundle.error.message


def test_absent_execution_provider_is_an_error_not_the_cpu() -> None:
    repository = ModelsFolder(DIGITS).load(RuntimeOptions(providers=("NoSuchExecutionProvider",)))
    assert not repository.models
    assert "NoSuchExecutionProvider" in repository.refused[0].error.message


def test_a_models_folder_may_be_empty(tmp_path: Path) -> None:
    assert not ModelsFolder(tmp_path).load(RuntimeOptions()).models


class Timed:
    """A model whose batches take what the test says, on a clock of its own."""

    def __init__(self, base_s: float, row_s: float, first_s: float = 0.0) -> None:
        self.now_s = 0.0
        self.runs: list[int] = []
        self._base_s, self._row_s, self._first_s = base_s, row_s, first_s

    def run(self, rows: int) -> None:
        self.now_s += self._base_s + rows * self._row_s + (0.0 if self.runs else self._first_s)
        self.runs.append(rows)

    def calibrated(self) -> dict[int, float]:
        return calibrate(self.run, lambda: self.now_s)


def test_a_model_that_gains_by_batches_is_measured_up_to_the_largest() -> None:
    found = Timed(base_s=20e-6, row_s=1e-6).calibrated()
    assert max(found) == LARGEST_ROWS
    assert found[1] == pytest.approx(21e-6)
    assert found[64] == pytest.approx(84e-6)


def test_a_model_without_batching_gain_runs_single_rows() -> None:
    found = Timed(base_s=0.0, row_s=0.013).calibrated()
    assert set(found) == {1, 2}
    times = BatchTimes()
    times.expect(found)
    assert times.worthwhile_rows(LARGEST_ROWS) == 1


def test_measuring_takes_at_most_the_budget_and_one_run() -> None:
    model = Timed(base_s=0.3, row_s=0.001)
    assert set(model.calibrated()) == {1}
    assert model.now_s == pytest.approx(2 * 0.301)
    quick = Timed(base_s=0.004, row_s=0.0)
    quick.calibrated()
    assert quick.now_s <= BUDGET_S + 0.004 * 2


def test_the_first_run_is_not_measured() -> None:
    assert Timed(base_s=20e-6, row_s=0.0, first_s=1.0).calibrated()[1] == pytest.approx(20e-6)


def test_an_image_model_is_not_measured() -> None:
    (served,) = ModelsFolder(DIGITS).load(RuntimeOptions())
    assert not served.loaded.batch_s
