"""Budgets: prices that make what may be spent in an hour or a day last to its end, and be used. Pure.

Escalating a row is worth its value (P(edge wrong and full right)) times what a corrected answer is worth, and costs
some of each resource. It is worth its price if and only if value * worth >= sum of price * cost.

A price is the dual variable of its budget. Online dual descent (Balseiro, Lu and Mirrokni 2020, "Dual Mirror Descent
for Online Allocation Problems"; Agrawal and Devanur 2014, "Fast Algorithms for Online Stochastic Convex Programming")
moves it with each escalation that is offered, by what that spends beyond its fair share, and never below 0:

    price <- max(0, price + step * cost * (taken - fair)),    taken = 1 or 0,
    fair = what is left / demand that is still to come.

Both parts of `fair` are looked at anew each time, so that an error of the past is made up for. In a quiet night the
price rests; where what is left is enough for all that will come, fair is at least 1 and the price goes to 0. How much
will come is forecast (`demand.py`) and then taken for less: of two errors, to be short for the last few requests costs
less than to leave unspent what could have corrected answers. As an underestimate spends earlier and then raises the
price step by step, it never spends all at once.

The published step is proportional to 1 / sqrt(decisions). Here decisions are those that the budget can pay, and the
factor is the usual value of a unit: both are learned from what is offered, so that no currency need be known.

What the contract demands comes first. It has a price of its own, which demanded escalations alone move, while all move
the other price, which is never lower. Spending that asks no price (audits, the device's own runs) is forecast too, and
set aside.

Periods are hours or days of UTC, and the time is passed in. Nothing is carried over: what a period leaves unspent is
gone, and none spends more than its amount.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from firstline_core.clock import EARLIEST_PLAUSIBLE_WALL_S
from firstline_core.routing.demand import Demand, Forecast

HOUR_S, DAY_S = 3600.0, 86_400.0

_STEP = 4.0  # from 2 to 8 it hardly matters; at 1 the first day is learned too slowly
_SMOOTH = 0.02  # weight of one more offer in the average value and cost: some fifty count
_FAIR_MOST = 4.0  # of an offer: a price falls no faster than this, however much is left for however little
_UNKNOWN, _KNOWN = 0.4, 0.5  # what a forecast is taken for before the first whole period, and after it
_SPARE = 0.05  # of the budget
_MOMENTS = 2000  # of a period: a forecast holds for one
_LONGEST_AHEAD = 1  # periods that a set-back clock may wait for


@dataclass(frozen=True, slots=True)
class Budget:
    """What may be spent.

    Args:
        amount: in each period; above 0.
        period_s: `HOUR_S` or `DAY_S`.
    """

    amount: float
    period_s: float


@dataclass(slots=True)
class Ledger:
    """What a budget has spent and learned: all that must outlive a restart.

    Args:
        period: number of the current one, counted from the epoch; -1 before the first.
        spent: in it.
        audited: of that, by audits.
        value: average value of an offer, in worth.
        cost: average cost of an offer; 0 before the first.
        prices: worth of a unit, for what the contract demands and for everything.
        demands: of what the contract demands, of everything, and of spending that asks no price.
    """

    period: int = -1
    spent: float = 0.0
    audited: float = 0.0
    value: float = 0.0
    cost: float = 0.0
    prices: list[float] = field(default_factory=lambda: [0.0, 0.0])
    demands: list[Demand] = field(default_factory=lambda: [Demand(), Demand(), Demand()])

    def __post_init__(self) -> None:
        if (len(self.prices), len(self.demands)) != (2, 3) or self.spent < 0:
            raise ValueError("it is not a ledger of this version")


_DEMANDED, _ALL, _UNPRICED = range(3)


class Meter:
    """One budget at work.

    Args:
        budget: what may be spent.
        ledger: where it left off; changed in place.
    """

    def __init__(self, budget: Budget, ledger: Ledger) -> None:
        self.budget = budget
        self.ledger = ledger
        self._forecasts: list[Forecast] = []
        self._passed = 0.0
        self.since_s, self.until_s = math.inf, -math.inf
        """Between when what was found out about the rest of the period holds: a clock may also go back."""

    def left(self, now_s: float) -> float:
        """What may still be spent in this period, of which `now_s` is a wall clock's time; at least 0."""
        if not self.since_s <= now_s < self.until_s:
            self._look(now_s)
        return max(0.0, self.budget.amount - self.ledger.spent)

    def ends_in_s(self, now_s: float) -> float:
        """Seconds until this period ends, and all may be spent again."""
        self.left(now_s)
        return max(0.0, (self.ledger.period + 1) * self.budget.period_s - now_s)

    def price(self, now_s: float, *, demanded: bool) -> float:
        """Worth of a unit; 0 while the budget is ample."""
        if not self.since_s <= now_s < self.until_s:
            self._look(now_s)
        least, price = self.ledger.prices
        return least if demanded else max(least, price)

    def spares(self, amount: float, now_s: float) -> bool:
        """Whether this may go to what comes after all that the contract demands, such as an audit.

        It may while there is enough for both. A small share of the budget may always: a contract that nobody checks
        while it is busy is checked at night only.
        """
        if amount > self.left(now_s):
            return False
        spare = _SPARE * self.budget.amount - self.ledger.audited
        return self.price(now_s, demanded=True) == 0 or amount <= spare

    def offered(self, value: float, cost: float, taken: float, now_s: float, *, demanded: bool, count: int = 1) -> None:
        """Moves the prices after escalations were decided: one, or a few at the same prices.

        Args:
            value: of them, in worth; at least 0.
            cost: of them; at least 0. It is not charged, see `charge`.
            taken: cost of those that will be made.
            now_s: wall clock.
            demanded: whether the contract demands them.
            count: how many.
        """
        left = self.left(now_s)
        ledger = self.ledger
        weight = 1 - (1 - _SMOOTH) ** count if ledger.cost else 1.0
        ledger.value += weight * (value / count - ledger.value)
        ledger.cost += weight * (cost / count - ledger.cost)
        if not ledger.cost:
            return
        purchases = max(self.budget.amount / ledger.cost, 1.0)
        step = _STEP / math.sqrt(purchases) * (ledger.value / ledger.cost)
        free = max(left - self._forecasts[_UNPRICED].remaining, 0.0)
        for which in (_DEMANDED, _ALL) if demanded else (_ALL,):
            ledger.demands[which].add(cost, self._passed)
            forecast = self._forecasts[which]
            forecast.seen += cost
            belief = _KNOWN if ledger.demands[which].usual else _UNKNOWN
            to_come = belief * forecast.remaining
            fair = free / to_come if free < _FAIR_MOST * to_come else _FAIR_MOST
            price = ledger.prices[which] + step * (taken - fair * cost) / ledger.cost
            ledger.prices[which] = max(0.0, price)

    def charge(self, amount: float, now_s: float, *, priced: bool) -> None:
        """Notes what was spent, or given back where it is below 0; `priced` where it had been offered."""
        self.left(now_s)
        self.ledger.spent = max(0.0, self.ledger.spent + amount)
        if not priced and amount > 0:
            self.ledger.demands[_UNPRICED].add(amount, self._passed)
            self._forecasts[_UNPRICED].seen += amount

    def _look(self, now_s: float) -> None:
        """Finds out where in which period it is, and looks ahead from there.

        A clock that went back waits in the period that it left, for ever while it says what cannot be, as after a boot
        in 1970. One that had been more than a period ahead was wrong then; so was one in 1970 that is set now. What was
        spent stays spent.
        """
        ledger, period_s = self.ledger, self.budget.period_s
        period = math.floor(now_s / period_s)
        passed = now_s / period_s - period
        if ledger.period < 0 or ledger.period * period_s < EARLIEST_PLAUSIBLE_WALL_S <= now_s:
            ledger.period = period
            ledger.demands = [Demand(since=passed) for _ in ledger.demands]
        elif period > ledger.period:
            for demand in ledger.demands:
                demand.begin()
            ledger.period, ledger.spent, ledger.audited = period, 0.0, 0.0
        elif ledger.period - period > _LONGEST_AHEAD and now_s >= EARLIEST_PLAUSIBLE_WALL_S:
            ledger.period = period
        elif ledger.period > period:
            passed = 0.0
        self._passed = passed
        self._forecasts = [demand.forecast(passed) for demand in ledger.demands]
        self.since_s, self.until_s = now_s, min(now_s + period_s / _MOMENTS, (period + 1) * period_s)
