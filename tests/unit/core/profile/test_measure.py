"""Profiles measured by real runs of small models; the first of them in a process of its own."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace
from support.points_here import measure_here
from support.profiles import point
from support.sample_bundles import variant_bundle

from firstline_core.bundle.store import Bundle
from firstline_core.errors import ConfigError
from firstline_core.hardware.readings import Absent, Measured, Modelled, Snapshot
from firstline_core.profile import measure
from firstline_core.profile.files import profile_path, read_profile
from firstline_core.profile.measure import Need, ProfileOptions, measure_profile, need, profile_keys
from firstline_core.profile.meters import joules
from firstline_core.profile.point_process import measure_in_process
from firstline_core.profile.profile import LIMIT_BYTES, POINTS, Key, Profile, Refused
from firstline_core.profile.scenarios import steady_from
from firstline_core.profile.summary import profile_lines

ONE = ProfileOptions(threads=(1,), batches=(1,), variants=("small",), total_s=0.3, joules_per_core_s=2.0)


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    found: Bundle = variant_bundle(tmp_path_factory.mktemp("profile") / "bundle", "small", "large")
    return found


@pytest.fixture(scope="module")
def path(bundle: Bundle) -> Path:
    return profile_path(bundle.path.parent, bundle.manifest.name, "bench")


@pytest.fixture(scope="module")
def measured(bundle: Bundle, path: Path) -> Profile:
    return measure_profile(bundle, path, ONE, machine="bench")


class TestMeasuring:
    @pytest.fixture(autouse=True)
    def _further_points_are_measured_here(self, measured: Profile, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(measure, "measure_in_process", measure_here)

    def test_a_point_has_the_times_of_a_query_and_its_parts(self, measured: Profile) -> None:
        (point,) = measured.points
        assert (point.key.variant, point.key.threads, point.key.batch) == ("small", 1, 1)
        assert point.ran_on == "CPUExecutionProvider"
        assert point.query.count >= 5
        parts_ms = point.prepare.mean_ms + point.run.mean_ms
        assert point.query.mean_ms == pytest.approx(parts_ms, rel=0.01)
        assert point.offline_per_s == pytest.approx(1000 / point.query.mean_ms, rel=0.01)
        assert point.warm_up.load_ms > 0

    def test_energy_is_modelled_where_a_cost_is_stated_and_no_sensor_measures(self, measured: Profile) -> None:
        (point,) = measured.points
        if isinstance(point.energy_mj, Modelled):  # a machine with RAPL measures
            assert point.energy_mj.value == pytest.approx(2.0 * point.processor_ms, rel=0.01)
        else:
            assert isinstance(point.energy_mj, Measured)

    def test_the_profile_has_the_hardware_and_software(self, measured: Profile, path: Path) -> None:
        assert read_profile(path) == measured
        assert measured.fingerprint == measured.hardware.fingerprint

    def test_a_second_run_measures_only_missing_points(self, measured: Profile, bundle: Bundle, path: Path) -> None:
        told: list[tuple[int, int, str]] = []
        again = measure_profile(
            bundle, path, dataclasses.replace(ONE, variants=("small", "large")), machine="bench",
            progress=lambda done, total, what: told.append((done, total, what)),
        )  # fmt: skip
        assert told == [(0, 1, "large, threads 1, batch 1"), (1, 1, "")]
        assert again.points[0] == measured.points[0]
        assert [point.key.variant for point in again.points] == ["small", "large"]

    def test_points_of_another_machine_are_dropped(self, measured: Profile, bundle: Bundle, tmp_path: Path) -> None:
        path = tmp_path / "other.json"
        path.write_bytes(msgspec.json.encode(replace(measured, fingerprint="another")))
        told: list[int] = []
        measure_profile(bundle, path, ONE, progress=lambda done, total, what: told.append(total))
        assert told == [1, 1]

    def test_points_stay_until_they_are_replaced(self, measured: Profile, bundle: Bundle, tmp_path: Path) -> None:
        path, known = tmp_path / "p.json", replace(measured, points=())
        (point,) = measured.points
        both = [replace(point, key=replace(point.key, batch=batch)) for batch in (1, 2)]
        path.write_bytes(msgspec.json.encode(replace(known, points=tuple(both))))
        wanted = dataclasses.replace(ONE, batches=(1, 2), again=True)

        def ended_early(done: int, total: int, what: str) -> None:
            found = read_profile(path)
            assert {one.key.batch for one in found.points} == {1, 2}
            if done == 1:
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            measure_profile(bundle, path, wanted, progress=ended_early)
        told: list[str] = []
        found = measure_profile(
            bundle, path, dataclasses.replace(wanted, again=False), progress=lambda done, total, what: told.append(what)
        )
        assert told == ["small, threads 1, batch 2", ""]  # it continues with the points to measure again
        assert not set(both) & set(found.points) and len(found.points) == 2 and found.outdated == ()

    def test_a_point_that_may_not_be_remeasured_stays(self, measured: Profile, bundle: Bundle, tmp_path: Path) -> None:
        path = tmp_path / "p.json"
        path.write_bytes(msgspec.json.encode(measured))
        wanted = dataclasses.replace(ONE, again=True)
        found = measure_profile(bundle, path, wanted, permit=lambda needed: "It is too hot.")
        assert found.points == measured.points and found.refused[0].reason == "It is too hot."

    @pytest.mark.parametrize(
        ("changes", "left"),
        [
            ({}, False),
            ({"alone": True}, True),
            ({"total_s": 1.59}, False),  # a second goes to starting its process
            ({"total_s": 1.61}, True),
            ({"total_s": 0.0}, False),
        ],
    )
    def test_a_more_careful_request_measures_again(
        self, measured: Profile, bundle: Bundle, tmp_path: Path, changes: dict[str, Any], left: bool
    ) -> None:
        path = tmp_path / "p.json"
        path.write_bytes(msgspec.json.encode(measured))
        asked: list[str] = []

        def refuse(needed: Need) -> str:
            asked.append(needed.point)
            return "Not now."

        measure_profile(bundle, path, dataclasses.replace(ONE, **changes), permit=refuse)
        assert bool(asked) == left

    def test_points_measured_alone_satisfy_other_requests(
        self, measured: Profile, bundle: Bundle, tmp_path: Path
    ) -> None:
        path = tmp_path / "p.json"
        first = measure_profile(bundle, path, dataclasses.replace(ONE, alone=True))
        assert first.points[0].alone and not measured.points[0].alone
        assert measure_profile(bundle, path, ONE).points == first.points

    def test_another_stated_cost_recomputes_energy(self, measured: Profile, bundle: Bundle, tmp_path: Path) -> None:
        path = tmp_path / "p.json"
        path.write_bytes(msgspec.json.encode(measured))
        before = measured.points[0].energy_mj
        found = measure_profile(
            bundle, path, dataclasses.replace(ONE, joules_per_core_s=6.0), permit=lambda needed: "No."
        )
        after = found.points[0].energy_mj
        if isinstance(before, Modelled):  # a machine with RAPL measures
            assert isinstance(after, Modelled) and after.value == pytest.approx(3 * before.value, rel=1e-3)
            assert "6 J a core-second" in after.source
        else:
            assert after == before
        assert measure_profile(bundle, path, dataclasses.replace(ONE, joules_per_core_s=0.0)).points == found.points

    def test_points_of_another_process_are_kept(self, bundle: Bundle, tmp_path: Path) -> None:
        path = tmp_path / "p.json"

        def meanwhile(done: int, total: int, what: str) -> None:
            if (done, total) == (0, 1) and "batch 1" in what:
                measure_profile(bundle, path, dataclasses.replace(ONE, batches=(2,)))

        found = measure_profile(bundle, path, ONE, progress=meanwhile)
        assert {one.key.batch for one in found.points} == {1, 2} and read_profile(path) == found

    def test_the_oldest_points_are_dropped_first(
        self, measured: Profile, bundle: Bundle, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("firstline_core.profile.files.LIMIT_BYTES", 2 * LIMIT_BYTES)
        monkeypatch.setattr("firstline_core.profile.profile.LIMIT_BYTES", 2 * LIMIT_BYTES)
        point, own = measured.points[0], tmp_path / "own.json"
        before = [replace(point, key=replace(point.key, batch=batch)) for batch in range(2, POINTS + 2)]
        refused = [Refused(one.key, "onnxruntime", "It was too large.") for one in before]
        own.write_bytes(msgspec.json.encode(replace(measured, points=tuple(before), refused=tuple(refused))))
        measure_profile(bundle, own, dataclasses.replace(ONE, batches=(1, POINTS)))
        found = msgspec.json.decode(own.read_bytes(), type=Profile)
        assert [one.key.batch for one in found.points] == [*range(3, POINTS + 2), 1]

    def test_a_profile_beyond_the_limit_is_not_written(
        self, measured: Profile, bundle: Bundle, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        own = tmp_path / "own.json"
        short = msgspec.json.encode(measured)
        own.write_bytes(short)
        monkeypatch.setattr("firstline_core.profile.files.LIMIT_BYTES", len(short) + 500)
        found = measure_profile(bundle, own, dataclasses.replace(ONE, batches=(2,)))
        assert [one.key.batch for one in found.points] == [2]
        with pytest.raises(ConfigError, match="name fewer threads or batches"):
            measure_profile(bundle, own, dataclasses.replace(ONE, batches=(1, 2)))
        kept = read_profile(own)
        assert kept.points == found.points

    def test_a_model_that_does_not_run_is_refused_with_the_reason(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(measure, "measure_in_process", measure_in_process)
        bundle = variant_bundle(tmp_path / "bundle", "small")
        bundle.file(bundle.manifest.edge[0].artefact).unlink()
        found = measure_profile(bundle, tmp_path / "p.json", ONE)
        assert found.points == ()
        assert "has no" in found.refused[0].reason

    def test_the_text_names_every_point(self, measured: Profile) -> None:
        lines = "\n".join(profile_lines(measured))
        assert "small" in lines and "p99 ms" in lines


class TestKeys:
    def test_points_cover_all_models_threads_and_batches(self, bundle: Bundle) -> None:
        found = profile_keys(bundle.manifest, ProfileOptions(batches=(1, 2)), cores=2.0)
        assert {(key.threads, key.batch) for key in found} == {(1, 1), (1, 2), (2, 1), (2, 2)}
        assert len(found) == len(set(found)) == 4 * len(bundle.manifest.models)

    def test_a_model_that_runs_row_by_row_is_measured_with_one_row(self, bundle: Bundle) -> None:
        manifest = replace(bundle.manifest, edge=tuple(replace(each, batch=1) for each in bundle.manifest.edge))
        found = profile_keys(manifest, ProfileOptions(batches=(1, 4), variants=("small",)), cores=1.0)
        assert [key.batch for key in found] == [1]

    def test_an_unknown_variant_is_refused(self, bundle: Bundle) -> None:
        with pytest.raises(ConfigError, match="has no model 'other'; it has: small, large"):
            profile_keys(bundle.manifest, ProfileOptions(variants=("other",)), cores=1.0)


class TestSteady:
    def test_steady_queries_begin_when_five_are_like_later_ones(self) -> None:
        assert steady_from([9.0, 5.0, 3.0, *[1.0] * 20], 1.0) == 1  # the median of 5, 3, 1, 1, 1 is 1
        assert steady_from([1.0] * 9, 1.0) == 0
        assert steady_from([9.0] * 9, 1.0) == 9


class TestJoules:
    def test_energy_adds_packages_without_their_parts(self) -> None:
        before = Snapshot(energy_j={"package-0": Measured(1, "a"), "package-0/core": Measured(1, "b")})
        after = Snapshot(energy_j={"package-0": Measured(4, "a"), "package-0/core": Measured(2, "b")})
        assert joules(before, after) == Measured(3, "a")

    def test_energy_without_counters_is_absent(self) -> None:
        assert isinstance(joules(Snapshot(), Snapshot()), Absent)


MIB = 1 << 20


def test_needed_memory_is_three_times_the_files_or_measured(tmp_path: Path) -> None:
    model = variant_bundle(tmp_path / "bundle", "small").manifest.edge[0]
    key = Key(model.id, model.digest, "CPUExecutionProvider", 2, 4)
    asked = need(key, model, None, usable_cores=1.5)
    assert asked.memory_bytes == 3 * model.artefact.size_bytes
    assert (asked.cores, asked.heats) == (1.5, False)
    of_one_row = point(1.0, variant=model.id, digest=model.digest)
    known = Profile("b", 1, "m", "f", (replace(of_one_row, peak_memory_bytes=Measured(9e6, "/status")),))
    assert need(key, model, known, usable_cores=4.0).memory_bytes == 9e6
    hot = replace(key, condition="sustained", threads=0)
    asked = need(hot, model, known, usable_cores=4.0)
    assert (asked.cores, asked.heats) == (4.0, True)
