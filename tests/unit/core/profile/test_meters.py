"""Points under sustained load, with the heat of a simulated board."""

from __future__ import annotations

import dataclasses
import time
from pathlib import Path

import pytest
from msgspec.structs import replace
from support.points_here import measure_here
from support.sample_bundles import variant_bundle

from firstline_core.errors import ConfigError
from firstline_core.hardware.readings import Absent, Measured, Reading, Snapshot
from firstline_core.profile import measure
from firstline_core.profile.measure import Need, ProfileOptions, measure_profile, profile_keys
from firstline_core.profile.meters import heat_up, settled
from firstline_core.profile.profile import Profile, encode


@pytest.fixture(autouse=True)
def _points_are_measured_here(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measure, "measure_in_process", measure_here)


def test_sustained_points_have_the_heating_time(tmp_path: Path) -> None:
    bundle = variant_bundle(tmp_path / "bundle", "small")
    wanted = ProfileOptions(
        threads=(1,), batches=(1,), variants=("small",), total_s=0.3, sustained_s=0.2, root=tmp_path
    )
    warm, hot = measure_profile(bundle, tmp_path / "p.json", wanted).points
    assert (warm.heated_s, hot.key.condition) == (0.0, "sustained")
    assert hot.heated_s >= 0.2  # nothing there measures heat: all of the time


def test_a_longer_heating_remeasures_unless_heat_had_settled(tmp_path: Path) -> None:
    bundle = variant_bundle(tmp_path / "bundle", "small")
    wanted = ProfileOptions(
        threads=(1,), batches=(1,), variants=("small",), total_s=0.3, sustained_s=0.2, root=tmp_path
    )
    path = tmp_path / "p.json"

    def again(found: Profile, sustained_s: float) -> list[str]:
        path.write_bytes(encode(found))
        asked: list[str] = []

        def may(needed: Need) -> str:
            asked.append(needed.point)
            return "Not now."

        measure_profile(
            bundle,
            path,
            dataclasses.replace(wanted, sustained_s=sustained_s),
            permit=may,
        )
        return asked

    found = measure_profile(bundle, path, wanted)
    assert found.points[1].heat_limit_s == 0.2
    assert again(found, 0.2) == []
    (hot,) = again(found, 60.0)
    assert "sustained" in hot
    settled_early = replace(found.points[1], heated_s=30.0, heat_limit_s=600.0)
    assert again(replace(found, points=(found.points[0], settled_early)), 60.0) == []
    assert again(replace(found, points=(found.points[0], settled_early)), 20.0) == [hot]


def test_sustained_points_are_single_samples_after_warm_ones(tmp_path: Path) -> None:
    bundle = variant_bundle(tmp_path / "bundle", "small")
    wanted = ProfileOptions(threads=(1,), batches=(1, 4), variants=("small",), sustained_s=60)
    found = [(key.condition, key.batch) for key in profile_keys(bundle.manifest, wanted, 1.0)]
    assert found == [("warm", 1), ("warm", 4), ("sustained", 1)]


@pytest.mark.parametrize("wrong", [{"sustained_s": 3601.0}, {"sustained_s": -1.0}])
def test_invalid_times_are_refused(tmp_path: Path, wrong: dict[str, float]) -> None:
    bundle = variant_bundle(tmp_path / "bundle", "small")
    with pytest.raises(ConfigError, match="minutes; use 0 to 60"):
        profile_keys(bundle.manifest, dataclasses.replace(ProfileOptions(), **wrong), 1.0)  # type: ignore[arg-type]


def _seen(temperatures_c: list[float], megahertz: list[float]) -> list[Snapshot]:
    return [
        Snapshot(temperature_c={"cpu": Measured(warmth, "t")}, frequency_hz={"policy0": Measured(1e6 * clock, "f")})
        for warmth, clock in zip(temperatures_c, megahertz, strict=True)
    ]


def test_settled_means_steady_temperature_and_clock() -> None:
    assert settled(_seen([70.0, 70.5, 70.2, 70.4], [1500, 1800, 1800, 1500]))
    assert not settled(_seen([70.0, 70.5, 71.0, 71.5], [1800] * 4))
    assert not settled(_seen([70.0] * 4, [1800, 1800, 1500, 1500]))
    assert not settled([Snapshot(temperature_c={"cpu": Absent("no file")})] * 4)


class _Board:
    """Gets warmer by a degree a reading, up to a limit; each reading is 29 s later."""

    def __init__(self, limit_c: float) -> None:
        self.looks, self._limit_c = 0, limit_c

    def read(self, _now_s: float) -> Snapshot:
        self.looks += 1
        warmth: Reading = Measured(min(40.0 + self.looks, self._limit_c), "t")
        return Snapshot(at_s=29.0 * self.looks, temperature_c={"cpu": warmth})


def test_heating_ends_when_settled() -> None:
    board, began_s = _Board(limit_c=41.0), time.monotonic()
    took_s = heat_up(board.read, limit_s=60.0)
    assert board.looks == 2
    assert took_s <= time.monotonic() - began_s < 30
