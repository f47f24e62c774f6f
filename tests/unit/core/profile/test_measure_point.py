"""One point, measured on machines where something is missing."""

import io
from pathlib import Path
from types import SimpleNamespace

import msgspec
import pytest
from msgspec.structs import replace
from support.sample_bundles import variant_bundle

from firstline_core.profile import measure_point
from firstline_core.profile.measure import Job
from firstline_core.profile.profile import PointKey


def job(bundle_path: Path) -> Job:
    model = variant_bundle(bundle_path, "small").manifest.edge[0]
    return Job(str(bundle_path), PointKey("small", model.digest, "CPUExecutionProvider", 1, 1), seconds=0.1)


def test_a_missing_bundle_is_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    measurement = job(tmp_path / "bundle")
    (tmp_path / "bundle" / "manifest.json").unlink()
    monkeypatch.setattr("sys.stdin", SimpleNamespace(buffer=io.BytesIO(msgspec.json.encode(measurement))))
    monkeypatch.setattr(measure_point, "use_lowest_priority", lambda: None)
    assert measure_point.main() == 1
    captured = capsys.readouterr()
    assert "manifest.json" in captured.err and len(captured.err.splitlines()) == 1 and captured.out == ""


def test_a_point_has_queries_under_load_however_short_its_time_is(tmp_path: Path) -> None:
    point = measure_point.measure(replace(job(tmp_path / "bundle"), seconds=1e-6))
    assert point.query.count >= 5 and point.rested.count >= 5
