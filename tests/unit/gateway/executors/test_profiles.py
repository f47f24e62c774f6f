"""How long an executor's batches take, by a profile of its machine."""

from pathlib import Path
from typing import Any

import msgspec
import pytest
from support.executor import ExecutorWithoutFiles

from firstline_core.bundle.store import open_bundle
from firstline_core.errors import ConfigError
from firstline_core.hardware.readings import Absent, Measured, Reading
from firstline_core.profile.profile import Point, PointKey, Profile, QueryBytes, distribution, encode
from firstline_core.runtime.select import RuntimeOptions
from firstline_core.types import ModelKey
from firstline_gateway.executors.dispatch.member import BatchAttempt, Forecast, Member
from firstline_gateway.executors.factory import open_executors
from firstline_gateway.executors.profiles import batch_seconds, read
from firstline_gateway.models.repository import Repository, ServedModel
from firstline_gateway.settings.settings import ExecutorSection, Settings

MANIFEST = open_bundle(Path(__file__).parents[4] / "models/digits/bundle").manifest
CPU = "CPUExecutionProvider"


def point(batch: int, seconds: float, peak_mb: float, energy: Reading, **key: Any) -> Point:
    key_fields = {
        "variant": "full",
        "model_digest": MANIFEST.full.digest,
        "provider": CPU,
        "threads": 1,
        "batch": batch,
    } | key
    took = distribution([seconds])
    return Point(
        key=PointKey(**key_fields),
        ran_on=CPU,
        query=took,
        rested=took,
        prepare_ms=0,
        run_ms=1000 * seconds,
        offline_per_s=batch / max(seconds, 1e-9),
        load_ms=1,
        first_ms=1,
        moved=QueryBytes(1, 1, 1),
        peak_memory_bytes=Measured(peak_mb * 1e6, "VmHWM"),
        processor_ms=1,
        energy_mj=energy,
    )


def profile(*points: Point) -> Profile:
    return Profile("m", 1, "board", "f" * 64, points)


def test_a_profile_gives_seconds_by_rows(tmp_path: Path) -> None:
    measured_profile = profile(
        point(1, 0.01, 50, Measured(20, "RAPL")),
        point(8, 0.04, 80, Measured(100, "RAPL")),
        point(1, 9.0, 50, Absent("no"), model_digest="b" * 64),
        point(1, 9.0, 50, Absent("no"), provider="CUDAExecutionProvider"),
        point(1, 9.0, 50, Absent("no"), condition="sustained"),
    )
    (tmp_path / "m.json").write_bytes(encode(measured_profile))
    seconds = batch_seconds(read((str(tmp_path / "m.json"),)), MANIFEST.full, CPU)
    assert seconds == {1: 0.01, 8: 0.04}
    forecast = Forecast(seconds)
    assert (forecast.seconds(1), forecast.seconds(8)) == (pytest.approx(0.01), pytest.approx(0.04))


def test_a_profile_counts_for_every_task(tmp_path: Path) -> None:
    """The digest that a full model is served under covers the task, that of a point does not."""
    manifest = msgspec.structs.replace(MANIFEST, task=msgspec.structs.replace(MANIFEST.task, independent=True))
    served = ServedModel(ModelKey("digits", 1), tmp_path, manifest, None, manifest.full_digest)
    (tmp_path / "m.json").write_bytes(encode(profile(point(1, 0.01, 50, Absent("no")))))
    settings = Settings(executors={"near": ExecutorSection(profiles=(str(tmp_path / "m.json"),))})
    (member,) = open_executors(settings, Repository({}), RuntimeOptions()).members
    assert member.profiled(served) == {1: 0.01}


def test_points_without_a_time_and_missing_profiles_give_no_seconds() -> None:
    points = point(1, 1e-9, 50, Absent("no")), point(2, 0.0, 50, Absent("no"))
    assert batch_seconds([profile(*points)], MANIFEST.full, "").keys() == {1}
    assert batch_seconds([], MANIFEST.full, "") == {}


def observe(forecast: Forecast, rows: int, took_s: float, now_s: float, wait_s: float = 0.0) -> None:
    """Ends a batch now that took `took_s`."""
    key, run_s = ModelKey("m", 1), forecast.seconds(rows)
    member = Member("", ExecutorWithoutFiles(), sessions=1)
    forecast.observe(BatchAttempt(member, key, rows, wait_s, run_s, forecast.pace, now_s - took_s), now_s)


@pytest.mark.parametrize(("pause_s", "pace"), [(0.2, 1.17), (10.0, 1.84)])
def test_a_slow_batch_changes_the_forecast_as_documented(pause_s: float, pace: float) -> None:
    forecast = Forecast({1: 0.1, 8: 0.4})
    observe(forecast, 1, 0.1, 100.0)
    observe(forecast, 1, 0.2, 100.0 + pause_s)
    assert forecast.pace == pytest.approx(pace, abs=0.005)
    assert forecast.seconds(1) == pytest.approx(0.107 * forecast.pace, abs=0.001)
    assert forecast.seconds(8) == pytest.approx(0.4 * forecast.pace)


def test_observed_times_outweigh_a_profile_per_size() -> None:
    """The machine of the profile gains by batches, this one does not: it takes twice as long for large ones."""
    forecast, now_s = Forecast({1: 0.01, 8: 0.04}), 0.0
    for _ in range(200):
        for rows, took_s in ((1, 0.01), (8, 0.08)):
            now_s += 0.1
            observe(forecast, rows, took_s, now_s)
    assert forecast.seconds(1) == pytest.approx(0.01, rel=0.15)
    assert forecast.seconds(8) == pytest.approx(0.08, rel=0.15)


def test_a_slow_moment_is_the_pace_and_no_other_size() -> None:
    forecast, now_s = Forecast({1: 0.01, 8: 0.04}), 0.0
    for slowness in (1.0, 3.0, 1.0):
        for _ in range(20):
            for rows, usual_s in ((1, 0.01), (8, 0.04)):
                now_s += 0.1
                observe(forecast, rows, slowness * usual_s, now_s)
        assert forecast.seconds(8) == pytest.approx(slowness * 0.04, rel=0.15)
    assert forecast.pace == pytest.approx(1.0, abs=0.2)


def test_a_first_batch_behind_another_is_not_instant() -> None:
    forecast = Forecast({})
    observe(forecast, 1, 0.3, 0.0, wait_s=0.2)
    first_s = forecast.seconds(1)
    assert first_s is not None and first_s > 0
    for turn in range(20):
        observe(forecast, 1, 0.1, 1.0 + turn)
    settled_s = forecast.seconds(1)
    assert settled_s is not None and settled_s == pytest.approx(0.1, rel=0.5)


def test_a_file_that_is_no_profile_is_named(tmp_path: Path) -> None:
    file = tmp_path / "p.json"
    with pytest.raises(ConfigError, match=r"p\.json does not exist"):
        read((str(file),))
    file.write_bytes(msgspec.json.encode({"bundle": "m"}))
    with pytest.raises(ConfigError, match=r"p\.json is not a profile"):
        read((str(file),))
