"""Battery and heat, read from where Linux tells them."""

from __future__ import annotations

from pathlib import Path

import pytest

from firstline_core.routing.conditions import Conditions
from firstline_edge.budgets.sensors import Sensors


@pytest.fixture
def sensors(tmp_path: Path) -> Sensors:
    return Sensors(80.0, tmp_path / "power_supply", tmp_path / "thermal")


def supply(root: Path, name: str, **properties: str) -> None:
    folder = root / "power_supply" / name
    folder.mkdir(parents=True)
    for key, text in properties.items():
        (folder / key).write_text(text + "\n")


def zone(root: Path, name: str, milli_c: str) -> None:
    folder = root / "thermal" / name
    folder.mkdir(parents=True)
    (folder / "temp").write_text(milli_c + "\n")


def test_a_machine_that_tells_nothing_is_in_no_special_condition(sensors: Sensors) -> None:
    assert sensors.read() == Conditions()


def test_a_battery_that_runs_down(sensors: Sensors, tmp_path: Path) -> None:
    supply(tmp_path, "AC", type="Mains", online="0")
    supply(tmp_path, "BAT0", type="Battery", capacity="42", status="Discharging")
    found = sensors.read()
    assert (found.battery, found.charging) == (0.42, False)


@pytest.mark.parametrize(("online", "status"), [("1", "Discharging"), ("0", "Charging"), ("0", "Full")])
def test_a_battery_with_power(sensors: Sensors, tmp_path: Path, online: str, status: str) -> None:
    supply(tmp_path, "AC", type="Mains", online=online)
    supply(tmp_path, "BAT0", type="Battery", capacity="42", status=status)
    assert sensors.read().charging


def test_a_mouses_battery_is_not_the_devices(sensors: Sensors, tmp_path: Path) -> None:
    supply(tmp_path, "hid-mouse", type="Battery", capacity="3", status="Discharging", scope="Device")
    assert sensors.read().battery is None


def test_an_empty_slot_is_no_empty_battery(sensors: Sensors, tmp_path: Path) -> None:
    supply(tmp_path, "BAT0", type="Battery", capacity="0", status="Unknown", present="0")
    assert sensors.read().battery is None


@pytest.mark.parametrize("nonsense", ["unknown", "", "nan", "inf"])
def test_a_driver_that_says_nonsense_is_passed_over(sensors: Sensors, tmp_path: Path, nonsense: str) -> None:
    supply(tmp_path, "BAT0", type="Battery", capacity=nonsense, status="Unknown")
    zone(tmp_path, "thermal_zone0", nonsense)
    assert sensors.read() == Conditions()


def test_what_is_no_text_is_passed_over(sensors: Sensors, tmp_path: Path) -> None:
    supply(tmp_path, "BAT0", type="Battery", status="Discharging")
    (tmp_path / "power_supply" / "BAT0" / "capacity").write_bytes(b"\xff\xfe\x00")
    assert sensors.read() == Conditions()


def test_the_hottest_plausible_zone_counts(sensors: Sensors, tmp_path: Path) -> None:
    for name, milli_c in (("thermal_zone0", "51000"), ("thermal_zone1", "78500"), ("thermal_zone2", "-274000")):
        zone(tmp_path, name, milli_c)
    assert sensors.read().heat_c == pytest.approx(-1.5)
