"""Battery, heat and a metered link raise the price of resources."""

import pytest

from firstline_core.routing.account import NO_MARKUP, Conditions, markup


@pytest.mark.parametrize(
    "conditions",
    [
        Conditions(),
        Conditions(battery=0.05, charging=True),
        Conditions(battery=0.9, charging=False),
        Conditions(heat_c=-30),
    ],
)
def test_neutral_conditions_raise_no_price(conditions: Conditions) -> None:
    assert markup(conditions) == NO_MARKUP


def test_an_emptying_battery_raises_the_price_of_energy() -> None:
    found = [markup(Conditions(battery=charge, charging=False)).joules for charge in (0.6, 0.35, 0.1, 0.0)]
    assert found == pytest.approx([1, 8**0.5, 8, 8])


def test_heat_raises_the_price_of_energy_before_the_limit() -> None:
    assert [markup(Conditions(heat_c=heat)).joules for heat in (-5, 0, 9)] == pytest.approx([1, 8, 8])


def test_a_metered_link_raises_prices() -> None:
    assert markup(Conditions(metered=True), 3.0) == (3.0, 1.0, 3.0)
