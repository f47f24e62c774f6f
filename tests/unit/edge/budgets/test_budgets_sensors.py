"""Battery and heat, as prices look at them."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.boards import say

from firstline_core.hardware.kernel_files import Tree
from firstline_core.hardware.sensors import Sensors
from firstline_core.routing.account import Conditions
from firstline_edge.budgets.sensors import conditions_of


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path


def found(root: Path) -> Conditions:
    return conditions_of(Sensors(Tree(root)).read(1.0), heat_limit_c=80.0)


def supply(root: Path, name: str, **properties: str) -> None:
    for key, text in properties.items():
        say(root, f"sys/class/power_supply/{name}/{key}", text)


def zone(root: Path, name: str, milli_c: str) -> None:
    say(root, f"sys/class/thermal/{name}/temp", milli_c)


def test_a_machine_that_tells_nothing_is_in_no_special_condition(root: Path) -> None:
    assert found(root) == Conditions()


def test_a_battery_that_runs_down(root: Path) -> None:
    supply(root, "AC", type="Mains", online="0")
    supply(root, "BAT0", type="Battery", capacity="42", status="Discharging")
    assert (found(root).battery, found(root).charging) == (0.42, False)


@pytest.mark.parametrize(("online", "status"), [("1", "Full"), ("1", "Unknown"), ("0", "Charging"), ("0", "Full")])
def test_a_battery_with_power(root: Path, online: str, status: str) -> None:
    supply(root, "AC", type="Mains", online=online)
    supply(root, "BAT0", type="Battery", capacity="42", status=status)
    assert found(root).charging


def test_a_battery_that_drains_beside_a_weak_charger_has_no_power(root: Path) -> None:
    supply(root, "AC", type="Mains", online="1")
    supply(root, "BAT0", type="Battery", capacity="42", status="Discharging")
    assert not found(root).charging


def test_a_battery_of_which_nobody_says_whether_it_drains_does(root: Path) -> None:
    supply(root, "BAT0", type="Battery", capacity="42", status="Unknown")
    assert not found(root).charging


def test_a_mouses_battery_is_not_the_devices(root: Path) -> None:
    supply(root, "hid-mouse", type="Battery", capacity="3", status="Discharging", scope="Device")
    assert found(root) == Conditions()


def test_an_empty_slot_is_no_empty_battery(root: Path) -> None:
    supply(root, "BAT0", type="Battery", capacity="0", status="Unknown", present="0")
    assert found(root).battery is None


@pytest.mark.parametrize("nonsense", ["unknown", "", "nan", "inf"])
def test_a_driver_that_says_nonsense_is_passed_over(root: Path, nonsense: str) -> None:
    supply(root, "BAT0", type="Battery", capacity=nonsense, status="Unknown")
    zone(root, "thermal_zone0", nonsense)
    assert found(root) == Conditions()


def test_the_hottest_plausible_zone_counts(root: Path) -> None:
    for name, milli_c in (("thermal_zone0", "51000"), ("thermal_zone1", "78500"), ("thermal_zone2", "-274000")):
        zone(root, name, milli_c)
    assert found(root).heat_c == pytest.approx(-1.5)
