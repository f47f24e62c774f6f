"""Budgets over simulated days: held within 5 %, whatever the traffic, and used for what is worth most."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import pytest
from numpy.typing import NDArray

from firstline_core.routing.account import Account, Cost, Denial
from firstline_core.routing.budget import SLOTS, Budget, Demand, Ledger, Meter
from firstline_core.units import DAY_S, HOUR_S

START_DAY = 20_500


class Day(NamedTuple):
    used: float  # of the budget, or of the demand where that is less
    captured: float  # of the value that the best choice in hindsight gets for the same budget
    lasted: float  # share of the day's demand that had come when the last escalation was paid


def arrivals(rng: np.random.Generator, mean: float, *, bursts: int = 8, shift_h: float = 0) -> NDArray[np.float64]:
    """Seconds of a day: busy from 7 to 19 h, hardly anything at night, and bursts of 5 to 30 times that for minutes."""
    at_s = np.arange(0, DAY_S, 10.0)
    rate = 0.02 + np.clip(np.sin(((at_s / 3600 + shift_h) % 24 - 7) / 12 * np.pi), 0, None) ** 1.5
    for _ in range(bursts):
        first = rng.integers(0, len(at_s) - 60)
        rate[first : first + rng.integers(6, 60)] *= rng.uniform(5, 30)
    counts = rng.poisson(mean * rate / rate.sum())
    return np.sort(np.repeat(at_s, counts) + rng.uniform(0, 10, counts.sum()))


def simulate(
    ratio: float, *, seed: int = 1, mean: float = 3000, loads: Sequence[float] = (1,) * 3, scale: float = 1.0
) -> list[Day]:
    """Days of a budget that pays `ratio` of the usual demand; each day's load is a multiple of the usual one."""
    rng, found = np.random.default_rng(seed), []
    amount = ratio * mean * 1000.0 * scale
    account = Account({"bytes/day": Meter(Budget(amount, DAY_S), Ledger())})
    for day, load in enumerate(loads):
        times = arrivals(rng, mean * load)
        values = rng.beta(0.5, 2, len(times))
        costs = rng.lognormal(-0.125, 0.5, len(times)) * 1000.0 * scale
        gained, spent, demand, last = 0.0, 0.0, 0.0, 0.0
        for at_s, value, cost in zip(times.tolist(), values.tolist(), costs.tolist(), strict=True):
            demand += cost
            now_s = (START_DAY + day) * DAY_S + at_s
            if account.decide(value, Cost(cost), now_s, demanded=True) is None and account.take(Cost(cost), now_s):
                gained, spent, last = gained + value, spent + cost, demand
        order = np.argsort(-values / costs)
        best = values[order][np.cumsum(costs[order]) <= amount].sum()
        assert spent <= amount
        found.append(Day(spent / min(amount, costs.sum()), gained / best, last / demand))
    return found


@pytest.mark.parametrize("ratio", [0.1, 0.3, 0.9])
@pytest.mark.parametrize("seed", [1, 2])
def test_a_budget_is_used_within_5_percent(ratio: float, seed: int) -> None:
    days = simulate(ratio, seed=seed)
    assert min(day.used for day in days) >= 0.95
    # A day that is known is not only used up, but used for what is worth most, to its end.
    assert np.mean([day.captured for day in days[1:]]) >= 0.75
    assert np.mean([day.lasted for day in days[1:]]) >= 0.85


def test_a_wrong_forecast_is_made_up_for() -> None:
    days = simulate(0.3, loads=(1, 4, 0.5, 2))
    assert min(day.used for day in days) >= 0.9
    assert days[-1].captured >= 0.7


def test_the_unit_of_worth_does_not_matter() -> None:
    (day,), (rescaled,) = simulate(0.3, loads=(1,)), simulate(0.3, loads=(1,), scale=1e-6)
    assert day == pytest.approx(rescaled)


def test_unspent_amounts_are_not_carried_over() -> None:
    meter = Meter(Budget(10.0, HOUR_S), Ledger())
    now_s = START_DAY * DAY_S
    meter.charge(4.0, now_s, priced=True)
    assert (meter.left(now_s), meter.ends_in_s(now_s)) == (6.0, HOUR_S)
    assert meter.left(now_s + HOUR_S) == 10.0


class TestClock:
    now_s = START_DAY * DAY_S + 7000

    def spent(self) -> Meter:
        meter = Meter(Budget(10.0, DAY_S), Ledger())
        meter.charge(9.0, self.now_s, priced=True)
        return Meter(meter.budget, meter.ledger)

    @pytest.mark.parametrize("wall_s", [0.0, now_s - DAY_S, now_s - 30 * DAY_S])
    def test_a_clock_set_back_gives_no_fresh_budget(self, wall_s: float) -> None:
        meter = self.spent()
        assert meter.left(wall_s) == 1.0
        assert meter.left(wall_s + 5) == 1.0

    def test_a_clock_that_was_years_ahead_is_corrected(self) -> None:
        meter = self.spent()
        assert meter.left(self.now_s - 30 * DAY_S) == 1.0
        assert meter.left(self.now_s - 29 * DAY_S) == 10.0

    def test_a_clock_set_back_is_noticed_at_once(self) -> None:
        meter = Meter(Budget(10.0, DAY_S), Ledger())
        account = Account({"bytes/day": meter})
        assert account.take(Cost(9.0), self.now_s + 4 * 365 * DAY_S)
        assert not account.take(Cost(9.0), self.now_s)
        assert account.decide(1.0, Cost(9.0), self.now_s, demanded=True) is not None
        assert account.decide(1.0, Cost(9.0), self.now_s + DAY_S, demanded=True) is None
        assert meter.left(self.now_s + DAY_S) == 10.0

    def test_spending_before_the_clock_is_set_counts(self) -> None:
        meter = Meter(Budget(10.0, DAY_S), Ledger())
        meter.charge(9.0, 60.0, priced=True)
        assert meter.left(self.now_s) == 1.0
        assert not any(demand.usual for demand in meter.ledger.demands)  # ten minutes of 1970 are no day
        assert meter.left(self.now_s + DAY_S) == 10.0

    def test_an_unset_clock_still_has_days(self) -> None:
        meter = Meter(Budget(10.0, DAY_S), Ledger())
        meter.charge(9.0, 60.0, priced=True)
        assert (meter.left(DAY_S - 1), meter.left(DAY_S)) == (1.0, 10.0)


class TestForecast:
    def after_an_even_day(self) -> Demand:
        demand = Demand()
        for slot in range(SLOTS):
            demand.add(1.0, slot / SLOTS)
        demand.begin()
        return demand

    def test_a_first_day_goes_on_as_it_began(self) -> None:
        demand = Demand()
        for slot in range(12):
            demand.add(5.0, slot / SLOTS)
        assert demand.forecast(0.5).remaining == pytest.approx(60.0, rel=0.1)

    def test_a_day_is_like_those_before(self) -> None:
        demand = Demand()
        demand.add(100.0, 0.9)
        demand.begin()
        assert demand.forecast(0.5).remaining == pytest.approx(100.0)
        demand.add(100.0, 0.9)
        assert demand.forecast(0.95).remaining < 15

    def test_a_day_without_requests_changes_no_forecast(self) -> None:
        demand = Demand()
        demand.begin()
        demand.add(5.0, 0.5)
        assert demand.forecast(0.5).remaining == pytest.approx(5.0, rel=0.1)

    def test_a_busier_start_raises_the_forecast(self) -> None:
        demand = self.after_an_even_day()
        usual = demand.forecast(0.25).remaining
        demand.add(12.0, 0.1)
        assert 1.4 * usual < demand.forecast(0.25).remaining < 3 * SLOTS

    def test_one_odd_day_is_not_a_habit(self) -> None:
        demand = self.after_an_even_day()
        demand.add(100.0, 0.8)
        demand.begin()
        assert max(demand.usual) < 2

    def test_unobserved_slots_count_as_average(self) -> None:
        demand = Demand(since=0.5)
        demand.add(12.0, 0.6)
        demand.begin()
        assert demand.usual[:12] == [1.0] * 12


class TestAccount:
    now_s = START_DAY * DAY_S

    def test_demanded_escalations_ignore_the_worth_of_money(self) -> None:
        account = Account({}, worth=1.0)
        cost = Cost(money=0.5)
        assert account.decide(0.1, cost, self.now_s, demanded=True) is None
        assert account.decide(0.1, cost, self.now_s, demanded=False) is not None
        assert account.decide(0.6, cost, self.now_s, demanded=False) is None

    def test_worth_scales_all_prices(self) -> None:
        assert self._price(Account({}, worth=10.0), Cost(money=0.5)) == pytest.approx(0.05)

    def test_a_markup_raises_prices(self) -> None:
        account = Account({}, worths=Cost(0.0, 0.1, 1.0))
        before = self._price(account, Cost(joules=1.0))
        account.set_markup(Cost(1.0, 8.0, 1.0))
        assert self._price(account, Cost(joules=1.0)) == pytest.approx(8 * before)

    def _price(self, account: Account, cost: Cost) -> float:
        denial = account.decide(0.0, cost, self.now_s, demanded=False)
        return denial.price

    def test_a_price_above_the_value_denies_an_escalation(self) -> None:
        account = Account({"bytes/day": Meter(Budget(100.0, DAY_S), Ledger(prices=[9.0, 9.0]))})
        assert account.decide(1.0, Cost(60.0), self.now_s, demanded=True) == Denial(1.0, 540.0, Cost(60.0))
        denial = account.decide(1.0, Cost(160.0), self.now_s, demanded=True)
        assert denial.short == "bytes/day"
        assert account.take(Cost(60.0), self.now_s) and not account.take(Cost(60.0), self.now_s)

    def test_a_free_resource_is_never_short(self) -> None:
        account = Account({"money/day": Meter(Budget(1.0, DAY_S), Ledger())})
        account.charge(Cost(money=3.0), self.now_s)  # more than was set aside
        assert account.meters["money/day"].left(self.now_s) == 0.0
        assert account.decide(0.0, Cost(bytes=1e9), self.now_s, demanded=True) is None
        assert account.take(Cost(bytes=1e9), self.now_s)
        assert not account.take(Cost(money=1e-9), self.now_s)

    def test_refunded_amounts_can_be_spent(self) -> None:
        account = Account({"bytes/hour": Meter(Budget(100.0, HOUR_S), Ledger())})
        assert account.take(Cost(80.0), self.now_s)
        assert not account.take(Cost(80.0), self.now_s)
        account.settle(Cost(80.0), Cost(), account.periods, self.now_s)
        assert account.take(Cost(80.0), self.now_s)
        assert account.refilled_in_s("bytes/hour", self.now_s) == HOUR_S
