"""The budgets that the settings ask for, and that a restart goes on with."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.budgets import spent
from support.edge import UNSURE, request

from firstline_core.clock import SimulatedClock
from firstline_core.routing.account import Cost
from firstline_core.routing.budget import DAY_S, HOUR_S, Budget
from firstline_edge.budgets.from_settings import budgets_of, open_spending, tariff_of
from firstline_edge.settings.settings import BudgetSection, CostsSection, EdgeSettings, LinkSection
from firstline_edge.telemetry.link_traffic import count


def test_budgets_go_by_resource_and_period() -> None:
    section = BudgetSection(bytes_per_hour=10, joules_per_day=2.5)
    assert budgets_of(section) == {"bytes/hour": Budget(10.0, HOUR_S), "joules/day": Budget(2.5, DAY_S)}


def test_a_link_costs_what_its_section_says() -> None:
    settings = EdgeSettings(
        links=(
            LinkSection(kind="http", joules_per_mib_sent=1048576.0),
            LinkSection(kind="mqtt", metered=True, joules_per_mib_received=2097152.0),
        ),
        costs=CostsSection(money_per_mib=1048576.0, money_per_request=3.0, joules_per_run=0.5),
    )
    tariff = tariff_of(settings, ["http", "mqtt"])
    assert tariff.of_link("http").cost(10, 20, tariff.money_per_request) == Cost(30, 10.0, 3.0)
    assert tariff.of_link("mqtt").cost(10, 20) == Cost(30, 40.0, 30.0)
    assert tariff.runs(4) == Cost(joules=2.0)


@pytest.fixture
def opened(tmp_path: Path) -> Path:
    return tmp_path / "spending.json"


def test_without_limits_and_prices_nobody_counts(opened: Path) -> None:
    assert open_spending(EdgeSettings(), opened, SimulatedClock(), link_names=[], links=list) is None


def test_a_purse_goes_on_where_it_was_left(opened: Path) -> None:
    settings = EdgeSettings(budget=BudgetSection(bytes_per_day=5000))
    for expected in (400, 800):
        spending = open_spending(settings, opened, SimulatedClock(), link_names=[], links=list)
        assert spending is not None
        with spending.paid(request(UNSURE)):
            count("http", sent=400)
        spending.save()
        assert spent(spending) == expected
