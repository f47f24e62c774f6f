"""Budgets from the settings; they continue after a restart."""

from pathlib import Path

import pytest
from support.boards import say
from support.budgets import spent
from support.edge import UNSURE, request

from firstline_core.clock import SimulatedClock
from firstline_core.hardware.kernel_files import Tree
from firstline_core.hardware.sensors import Sensors
from firstline_core.routing.account import Conditions, Cost
from firstline_core.routing.budget import Budget
from firstline_core.units import DAY_S, HOUR_S
from firstline_edge.budgets.from_settings import budgets_of, conditions_of, open_spending, tariff_of
from firstline_edge.hardware.sampler import Sampler
from firstline_edge.settings.settings import BudgetSection, CostsSection, EdgeSettings, LinkSection
from firstline_edge.telemetry.link_traffic import count_traffic

SAMPLER = Sampler(Sensors(Tree(Path("never"))), 1.0, SimulatedClock())


def test_budgets_go_by_resource_and_period() -> None:
    section = BudgetSection(bytes_per_hour=10, joules_per_day=2.5)
    assert budgets_of(section) == {"bytes/hour": Budget(10.0, HOUR_S), "joules/day": Budget(2.5, DAY_S)}


def test_a_link_has_the_configured_cost() -> None:
    settings = EdgeSettings(
        links=(
            LinkSection(kind="http", joules_per_mib_sent=1048576.0),
            LinkSection(kind="mqtt", metered=True, joules_per_mib_received=2097152.0),
        ),
        costs=CostsSection(money_per_mib=1048576.0, money_per_request=3.0, joules_per_run=0.5),
    )
    tariff = tariff_of(settings)
    assert tariff.of_link("http").cost(10, 20, tariff.money_per_request) == Cost(30, 10.0, 3.0)
    assert tariff.of_link("mqtt").cost(10, 20) == Cost(30, 40.0, 30.0)
    assert tariff.runs(4) == Cost(joules=2.0)


@pytest.fixture
def opened(tmp_path: Path) -> Path:
    return tmp_path / "spending.json"


def test_without_limits_and_prices_nothing_is_counted(opened: Path) -> None:
    spending = open_spending(EdgeSettings(), opened, SimulatedClock(), links=list, sampler=SAMPLER)
    assert spending.ample and spending.denial(1e12, 0.0, demanded=False) is None
    with spending.paid(request(UNSURE), "http"):
        count_traffic("http", sent=400)
    spending.save()
    assert spending.status() == [] and not opened.exists()


def test_spending_continues_after_a_restart(opened: Path) -> None:
    settings = EdgeSettings(budget=BudgetSection(bytes_per_day=5000))
    for expected in (400, 800):
        spending = open_spending(settings, opened, SimulatedClock(), links=list, sampler=SAMPLER)
        with spending.paid(request(UNSURE), "http"):
            count_traffic("http", sent=400)
        spending.save()
        assert spent(spending) == expected


def found(root: Path) -> Conditions:
    return conditions_of(Sensors(Tree(root)).read(1.0), heat_limit_c=80.0)


def supply(root: Path, name: str, **properties: str) -> None:
    for key, text in properties.items():
        say(root, f"sys/class/power_supply/{name}/{key}", text)


def zone(root: Path, name: str, milli_c: str) -> None:
    say(root, f"sys/class/thermal/{name}/temp", milli_c)


def test_without_sensors_conditions_are_neutral(tmp_path: Path) -> None:
    assert found(tmp_path) == Conditions()


@pytest.mark.parametrize(
    ("online", "status", "charging"),
    [
        ("0", "Discharging", False),
        ("1", "Full", True),
        ("1", "Unknown", True),
        ("0", "Charging", True),
        ("0", "Full", True),
        ("1", "Discharging", False),  # the charger is too weak
        (None, "Unknown", False),
    ],
)
def test_a_battery_charges_unless_it_drains(tmp_path: Path, online: str | None, status: str, charging: bool) -> None:
    if online is not None:
        supply(tmp_path, "AC", type="Mains", online=online)
    supply(tmp_path, "BAT0", type="Battery", capacity="42", status=status)
    assert (found(tmp_path).battery, found(tmp_path).charging) == (0.42, charging)


def test_a_mouses_battery_is_not_the_devices(tmp_path: Path) -> None:
    supply(tmp_path, "hid-mouse", type="Battery", capacity="3", status="Discharging", scope="Device")
    assert found(tmp_path) == Conditions()


def test_an_empty_slot_is_no_empty_battery(tmp_path: Path) -> None:
    supply(tmp_path, "BAT0", type="Battery", capacity="0", status="Unknown", present="0")
    assert found(tmp_path).battery is None


@pytest.mark.parametrize("nonsense", ["unknown", "", "nan", "inf"])
def test_implausible_readings_are_ignored(tmp_path: Path, nonsense: str) -> None:
    supply(tmp_path, "BAT0", type="Battery", capacity=nonsense, status="Unknown")
    zone(tmp_path, "thermal_zone0", nonsense)
    assert found(tmp_path) == Conditions()


def test_the_hottest_plausible_zone_counts(tmp_path: Path) -> None:
    for name, milli_c in (("thermal_zone0", "51000"), ("thermal_zone1", "78500"), ("thermal_zone2", "-274000")):
        zone(tmp_path, name, milli_c)
    assert found(tmp_path).heat_c == pytest.approx(-1.5)
