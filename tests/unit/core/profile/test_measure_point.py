"""One point, measured on machines where something is missing."""

from __future__ import annotations

import io
import tempfile
from pathlib import Path
from types import SimpleNamespace

import msgspec
import pytest
from msgspec.structs import replace
from support.sample_bundles import detector_bundle, variant_bundle

from firstline_core.profile import measure_point, scenarios
from firstline_core.profile.measure_point import Job
from firstline_core.profile.profile import Key


def job(bundle_path: Path) -> Job:
    model = variant_bundle(bundle_path, "small").manifest.edge[0]
    return Job(str(bundle_path), Key("small", model.digest, "CPUExecutionProvider", 1, 1), seconds=0.1)


def test_a_point_without_a_trace_has_everything_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = job(tmp_path / "bundle")
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "absent"))
    point = measure_point.measure(wanted)
    assert point.operators == () and "absent" in point.operators_absent
    assert point.query.count >= 5


def test_a_detector_has_operators(tmp_path: Path) -> None:
    model = detector_bundle(tmp_path).manifest.edge[0]
    key = Key("edge", model.digest, "CPUExecutionProvider", 1, 1)
    point = measure_point.measure(Job(str(tmp_path), key, seconds=0.1))
    assert point.operators_absent == "" and "Mul" in {one.kind for one in point.operators}


@pytest.mark.parametrize(("free_kb", "measured"), [(8_000_000, True), (1000, False)])
def test_another_model_is_interleaved_if_there_is_memory(tmp_path: Path, free_kb: int, measured: bool) -> None:
    wanted = job(tmp_path / "bundle")
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc" / "meminfo").write_text(f"MemTotal: 9000000 kB\nMemAvailable: {free_kb} kB\n")
    point = measure_point.measure(replace(wanted, mixed_with="full", root=str(tmp_path)))
    assert (point.mixed_load is not None) == measured
    assert point.mixed_load is None or point.mixed_load.own_share == 1 - measure_point.ESCALATED


def test_a_missing_bundle_is_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    wanted = job(tmp_path / "bundle")
    (tmp_path / "bundle" / "manifest.json").unlink()
    monkeypatch.setattr("sys.stdin", SimpleNamespace(buffer=io.BytesIO(msgspec.json.encode(wanted))))
    monkeypatch.setattr(measure_point, "use_lowest_priority", lambda: None)
    assert measure_point.main() == 1
    said = capsys.readouterr()
    assert "manifest.json" in said.err and len(said.err.splitlines()) == 1 and said.out == ""


@pytest.mark.parametrize("batch", [1, 2])
def test_a_light_load_is_measured_with_one_row(tmp_path: Path, batch: int) -> None:
    wanted = job(tmp_path / "bundle")
    point = measure_point.measure(replace(wanted, key=replace(wanted.key, batch=batch), seconds=1.0))
    assert (point.light_load is not None) == (batch == 1)
    if point.light_load is not None:
        assert point.light_load.rested_ms is not None and point.light_load.rested_ms > 0


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, object]]:
    """The keyword arguments of each scenario under load, in order; the scenarios still run."""
    found: list[dict[str, object]] = []
    loaded = scenarios.loaded

    def noted(*arguments: object, **named: object) -> scenarios.Loaded:
        found.append(named)
        return loaded(*arguments, **named)  # type: ignore[arg-type]

    monkeypatch.setattr(scenarios, "loaded", noted)
    return found


def test_long_queries_have_no_light_load(tmp_path: Path, asked: list[dict[str, object]]) -> None:
    point = measure_point.measure(replace(job(tmp_path / "bundle"), seconds=1e-6))
    assert point.light_load is None and point.query.count >= 5
    assert 0.1 not in [one.get("load") for one in asked]


@pytest.mark.parametrize(("variant", "other", "share"), [("small", "full", 0.8), ("full", "small", 0.2)])
def test_one_query_in_five_is_the_full_models(
    tmp_path: Path, asked: list[dict[str, object]], variant: str, other: str, share: float
) -> None:
    bundle = variant_bundle(tmp_path / "bundle", "small")
    model = next(model for model in bundle.manifest.models if model.id == variant)
    wanted = Job(
        str(bundle.path), Key(variant, model.digest, "CPUExecutionProvider", 1, 1), seconds=0.1, mixed_with=other
    )
    point = measure_point.measure(wanted)
    assert point.mixed_load.own_share == pytest.approx(share)
    assert asked[-1]["shares"] == pytest.approx((share, 1 - share))
