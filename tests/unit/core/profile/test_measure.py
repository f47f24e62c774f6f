"""Profiles measured by real runs of small models; the first of them in a process of its own."""

import dataclasses
import shutil
import time
from pathlib import Path

import msgspec
import pytest
from msgspec.structs import replace
from support.boards import say
from support.points_here import measure_here
from support.profiles import point
from support.sample_bundles import variant_bundle

from firstline_core.bundle.store import Bundle
from firstline_core.errors import ConfigError
from firstline_core.hardware.readings import Absent, Measured, Modelled, Snapshot
from firstline_core.profile import measure
from firstline_core.profile.files import profile_path, read_profile
from firstline_core.profile.measure import Gate, Need, ProfileOptions, measure_profile, need, profile_keys
from firstline_core.profile.meters import joules
from firstline_core.profile.profile import POINTS, PointKey, Profile, RefusedPoint
from firstline_core.runtime import child

ONE = ProfileOptions(threads=(1,), batches=(1,), variants=("small",), total_s=0.05, joules_per_core_s=2.0)


class Refusing(Gate):
    """Refuses every point with a reason."""

    def __init__(self, reason: str) -> None:
        self._reason = reason

    def wait(self, needed: Need) -> str:
        return self._reason


class Ending(Gate):
    """Ends a number of measurements."""

    def __init__(self, ends: int) -> None:
        self._ends = ends

    def must_end(self) -> str:
        self._ends -= 1
        return "memory became short" if self._ends >= 0 else ""


class Stopping(Gate):
    """Stops the measurement of the first point."""

    def must_end(self) -> str:
        raise KeyboardInterrupt


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    return variant_bundle(tmp_path_factory.mktemp("profile") / "bundle", "small", "large")


@pytest.fixture(scope="module")
def path(bundle: Bundle) -> Path:
    return profile_path(bundle.path.parent, bundle.manifest.name, "bench")


@pytest.fixture(scope="module")
def measured(bundle: Bundle, path: Path) -> Profile:
    return measure_profile(bundle, path, ONE, machine="bench")


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch) -> None:
    """Points are measured in this process."""
    monkeypatch.setattr(measure, "measure_in_process", measure_here)


@pytest.mark.usefixtures("measured", "here")
class TestMeasuring:
    def test_a_point_has_the_times_of_a_query_and_its_parts(self, measured: Profile) -> None:
        (point,) = measured.points
        assert (point.key.variant, point.key.threads, point.key.batch) == ("small", 1, 1)
        assert point.ran_on == "CPUExecutionProvider"
        assert point.query.count >= 5
        assert 0 < point.run_ms <= point.query.quantiles_ms[-1]
        assert point.offline_per_s == pytest.approx(1000 / point.query.mean_ms, rel=0.01)
        assert point.load_ms > 0 and point.moved.received_bytes > 0

    def test_energy_is_modelled_where_a_cost_is_stated_and_no_sensor_measures(self, measured: Profile) -> None:
        (point,) = measured.points
        if isinstance(point.energy_mj, Modelled):  # a machine with RAPL measures
            assert point.energy_mj.value == pytest.approx(2.0 * point.processor_ms, rel=0.01)
        else:
            assert isinstance(point.energy_mj, Measured)

    def test_stated_rails_measure_the_energy(self, bundle: Bundle, tmp_path: Path) -> None:
        say(tmp_path, "sys/class/hwmon/hwmon0/name", "board")
        say(tmp_path, "sys/class/hwmon/hwmon0/power1_input", "6000000")
        options = dataclasses.replace(ONE, root=str(tmp_path), power_rails=("board power1",))
        (point,) = measure_profile(bundle, tmp_path / "p.json", options).points
        assert isinstance(point.energy_mj, Measured)

    def test_the_profile_has_the_hardware_and_software(self, measured: Profile, path: Path) -> None:
        assert read_profile(path) == measured
        assert measured.fingerprint == measured.hardware.fingerprint

    def test_a_second_run_measures_only_missing_points(
        self, measured: Profile, bundle: Bundle, path: Path, tmp_path: Path
    ) -> None:
        reports: list[tuple[int, int, str]] = []
        copy = Path(shutil.copy(path, tmp_path))
        again = measure_profile(
            bundle, copy, dataclasses.replace(ONE, variants=("small", "large")), machine="bench",
            progress=lambda done, total, what: reports.append((done, total, what)),
        )  # fmt: skip
        assert reports == [(0, 1, "large, threads 1, batch 1"), (1, 1, "")]
        assert again.points[0] == measured.points[0]
        assert [point.key.variant for point in again.points] == ["small", "large"]

    def test_points_of_another_machine_are_dropped(self, measured: Profile, bundle: Bundle, tmp_path: Path) -> None:
        path = tmp_path / "other.json"
        path.write_bytes(msgspec.json.encode(replace(measured, fingerprint="another")))
        totals: list[int] = []
        measure_profile(bundle, path, ONE, progress=lambda done, total, what: totals.append(total))
        assert totals == [1, 1]

    def test_points_stay_until_they_are_replaced(self, measured: Profile, bundle: Bundle, tmp_path: Path) -> None:
        path, without_points = tmp_path / "p.json", replace(measured, points=())
        (point,) = measured.points
        both = [replace(point, key=replace(point.key, batch=batch)) for batch in (1, 2)]
        path.write_bytes(msgspec.json.encode(replace(without_points, points=tuple(both))))
        options = dataclasses.replace(ONE, batches=(1, 2), again=True)

        def present(done: int, total: int, what: str) -> None:
            assert {one.key.batch for one in read_profile(path).points} == {1, 2}

        found = measure_profile(bundle, path, options, progress=present)
        assert not set(both) & set(found.points) and len(found.points) == 2

    def test_a_point_that_may_not_be_remeasured_stays(self, measured: Profile, bundle: Bundle, tmp_path: Path) -> None:
        path = tmp_path / "p.json"
        path.write_bytes(msgspec.json.encode(measured))
        options = dataclasses.replace(ONE, again=True)
        found = measure_profile(bundle, path, options, gate=Refusing("It is too hot."))
        assert found.points == measured.points and found.refused[0].reason == "It is too hot."

    def test_points_of_another_process_are_kept(self, bundle: Bundle, tmp_path: Path) -> None:
        path = tmp_path / "p.json"

        def meanwhile(done: int, total: int, what: str) -> None:
            if (done, total) == (0, 1) and "batch 1" in what:
                measure_profile(bundle, path, dataclasses.replace(ONE, batches=(2,)))

        found = measure_profile(bundle, path, ONE, progress=meanwhile)
        assert {one.key.batch for one in found.points} == {1, 2} and read_profile(path) == found

    def test_the_oldest_points_are_dropped_first(self, measured: Profile, bundle: Bundle, tmp_path: Path) -> None:
        point, own = measured.points[0], tmp_path / "own.json"
        before = [replace(point, key=replace(point.key, batch=batch)) for batch in range(2, POINTS + 2)]
        refused = [RefusedPoint(one.key, "It was too large.") for one in before]
        own.write_bytes(msgspec.json.encode(replace(measured, points=tuple(before), refused=tuple(refused))))
        measure_profile(bundle, own, dataclasses.replace(ONE, batches=(1, POINTS)))
        found = read_profile(own)  # the largest number of points is within the limit of bytes
        assert [one.key.batch for one in found.points] == [*range(3, POINTS + 2), 1]


class TestProcess:
    @pytest.fixture(autouse=True)
    def ends_early(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(child, "CHECK_S", 0.02)

    @pytest.mark.parametrize(("ends", "points"), [(1, ["small"]), (3, [])])
    def test_an_interrupted_point_is_repeated_or_left_out(
        self, bundle: Bundle, tmp_path: Path, ends: int, points: list[str]
    ) -> None:
        found = measure_profile(bundle, tmp_path / "p.json", ONE, gate=Ending(ends))
        assert [one.key.variant for one in found.points] == points
        reasons = [one.reason for one in found.refused]
        assert reasons == ([] if points else ["It was ended 3 times: memory became short."])

    def test_a_stopped_measurement_ends_its_process(self, bundle: Bundle, tmp_path: Path) -> None:
        with pytest.raises(KeyboardInterrupt):
            measure_profile(bundle, tmp_path / "p.json", ONE, gate=Stopping())
        assert read_profile(tmp_path / "p.json") is None

    def test_a_model_that_does_not_run_is_refused_with_the_reason(self, tmp_path: Path) -> None:
        bundle = variant_bundle(tmp_path / "bundle", "small")
        bundle.file(bundle.manifest.edge[0].artefact).unlink()
        found = measure_profile(bundle, tmp_path / "p.json", ONE)
        assert found.points == ()
        assert "has no" in found.refused[0].reason


class TestKeys:
    def test_points_cover_all_models_threads_and_batches(self, bundle: Bundle) -> None:
        found = profile_keys(bundle.manifest, ProfileOptions(batches=(1, 2)), cores=2.0)
        assert {(key.threads, key.batch) for key in found} == {(1, 1), (1, 2), (2, 1), (2, 2)}
        assert len(found) == len(set(found)) == 4 * len(bundle.manifest.models)

    def test_points_cover_the_threads_of_the_agent(self, bundle: Bundle) -> None:
        def threads(options: ProfileOptions) -> list[int]:
            return list(dict.fromkeys(key.threads for key in profile_keys(bundle.manifest, options, 4.0)))

        assert threads(ProfileOptions(own_threads=2)) == [1, 4, 2]
        assert threads(ProfileOptions(own_threads=4)) == [1, 4]
        assert threads(ProfileOptions(threads=(3,), own_threads=2)) == [3]

    def test_a_model_that_runs_row_by_row_is_measured_with_one_row(self, bundle: Bundle) -> None:
        manifest = replace(bundle.manifest, edge=tuple(replace(each, batch=1) for each in bundle.manifest.edge))
        found = profile_keys(manifest, ProfileOptions(batches=(1, 4), variants=("small",)), cores=1.0)
        assert [key.batch for key in found] == [1]


@pytest.mark.usefixtures("here")
class TestSustained:
    def test_hot_points_are_single_samples_after_warm_ones(self, bundle: Bundle) -> None:
        options = ProfileOptions(threads=(1,), batches=(4, 8), variants=("small",), sustained_s=60)
        found = [(key.condition, key.batch) for key in profile_keys(bundle.manifest, options, 1.0)]
        assert found == [("warm", 4), ("warm", 8), ("sustained", 1)]

    def test_a_hot_point_is_measured_after_full_load(self, bundle: Bundle, tmp_path: Path) -> None:
        began_s = time.monotonic()
        _, hot = measure_profile(bundle, tmp_path / "p.json", dataclasses.replace(ONE, sustained_s=0.5)).points
        assert hot.key.condition == "sustained" and time.monotonic() - began_s > 0.5

    def test_another_time_at_full_load_measures_again(self, bundle: Bundle, tmp_path: Path) -> None:
        totals: list[int] = []
        for sustained_s in (0.1, 0.1, 0.2):
            options = dataclasses.replace(ONE, sustained_s=sustained_s)
            found = measure_profile(
                bundle, tmp_path / "p.json", options, progress=lambda _, total, __: totals.append(total)
            )
            assert [point.heated_s for point in found.points] == [0.0, sustained_s]
        assert totals == [2, 2, 2, 0, 1, 1]

    def test_an_impossible_time_is_refused(self, bundle: Bundle) -> None:
        with pytest.raises(ConfigError, match="minutes; use 0 to 60"):
            profile_keys(bundle.manifest, ProfileOptions(sustained_s=3601.0), 1.0)


class TestJoules:
    def test_energy_adds_packages_without_their_parts(self) -> None:
        before = Snapshot(energy_j={"package-0": Measured(1, "a"), "package-0/core": Measured(1, "b")})
        after = Snapshot(energy_j={"package-0": Measured(4, "a"), "package-0/core": Measured(2, "b")})
        assert joules(before, after) == Measured(3, "a")

    def test_a_platform_counter_that_stands_still_does_not_count(self) -> None:
        before = Snapshot(energy_j={"psys": Measured(7, "p"), "package-0": Measured(1, "a")})
        after = Snapshot(energy_j={"psys": Measured(7, "p"), "package-0": Measured(4, "a")})
        assert joules(before, after) == Measured(3, "a")

    def test_energy_without_counters_is_absent(self) -> None:
        assert isinstance(joules(Snapshot(), Snapshot()), Absent)


def test_needed_memory_is_three_times_the_files_or_measured(tmp_path: Path) -> None:
    model = variant_bundle(tmp_path / "bundle", "small").manifest.edge[0]
    key = PointKey(model.id, model.digest, "CPUExecutionProvider", 2, 4)
    needed = need(key, model, None, usable_cores=1.5)
    assert needed.memory_bytes == 3 * model.artefact.size_bytes
    assert needed.cores == 1.5
    of_one_row = point(1.0, variant=model.id, digest=model.digest)
    measured = Profile("b", 1, "m", "f", (replace(of_one_row, peak_memory_bytes=Measured(9e6, "/status")),))
    assert need(key, model, measured, usable_cores=4.0).memory_bytes == 9e6
    assert need(replace(key, threads=0), model, measured, usable_cores=4.0).cores == 4.0
