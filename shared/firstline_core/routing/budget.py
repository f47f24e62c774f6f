"""Budgets: prices that spread the amount of an hour or a day over the whole period, and use it up. Pure functions.

The worth of an escalation is its value (P(edge wrong and full right)) times the worth of a corrected answer. It costs
an amount of each resource, and is bought if and only if value * worth >= sum of price * cost.

A price is the dual variable of its budget. Online dual descent (Balseiro, Lu and Mirrokni 2020, "Dual Mirror Descent
for Online Allocation Problems"; Agrawal and Devanur 2014, "Fast Algorithms for Online Stochastic Convex Programming")
updates it with each offered escalation, by the amount spent above the fair share, and keeps it non-negative:

    price <- max(0, price + step * cost * (taken - fair)),    taken = 1 or 0, fair = remaining amount / remaining
    demand.

Both parts of `fair` are computed each time, so that past errors are corrected. Without requests the price does not
change. If the remaining amount is enough for all remaining demand, fair is at least 1 and the price goes to 0. The
demand is forecast and then reduced, because a shortage for the last few requests costs less than unspent
budget that could have corrected answers. An underestimate spends earlier and then raises the price step by step, so
that it never spends everything at once.

The published step is proportional to 1 / sqrt(decisions). Here the decisions are those that the budget can pay, and the
factor is the usual value of a unit. Both are learned from the offers, so that the unit of worth does not matter.

Escalations that the contract demands come first. They have their own price, which only they change; all escalations
change the other price, which is never lower. Unpriced spending (audits, the device's own runs) is forecast and
reserved.

The forecast scales the usual remaining demand by the ratio of today's demand to the usual one. Before the end of the
first period, demand is assumed to be even.

Periods are hours or days of UTC, and the time is passed in. Unspent amounts are not carried over, and no period spends
more than its amount.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from firstline_core.clock import EARLIEST_PLAUSIBLE_WALL_S

SLOTS = 24
"""Number of parts of a period; the demand is stored per part."""

_RECENT = 0.3  # weight of the last period against all earlier ones: one unusual day must not dominate
_SURPRISE = 0.1  # of a period's demand: a slot's demand above its usual one counts up to this
_DOUBT = 0.1  # share of a period's demand that is needed as evidence that today is different


@dataclass(slots=True)
class Demand:
    """Observed demand in units of one resource.

    Args:
        today: demand per slot of this period.
        usual: weighted mean per slot of earlier periods; empty before the end of the first.
        since: share of this period that had passed when observation began.
    """

    today: list[float] = field(default_factory=lambda: [0.0] * SLOTS)
    usual: list[float] = field(default_factory=list)
    since: float = 0.0

    def __post_init__(self) -> None:
        if len(self.today) != SLOTS or len(self.usual) not in (0, SLOTS) or not 0 <= self.since < 1:
            raise ValueError(f"demand is remembered for {SLOTS} parts of a period")

    def add(self, amount: float, passed: float) -> None:
        """Adds demand.

        Args:
            amount: at least 0.
            passed: share of the period that has passed, below 1.
        """
        self.today[int(passed * SLOTS)] += amount

    def begin(self) -> None:
        """Ends the period and learns its demand; slots before the start of observation use its average."""
        today = self.today
        if not self.usual:
            unseen = int(self.since * SLOTS)
            average = sum(today[unseen:]) / (SLOTS - unseen)
            self.usual = [average] * unseen + today[unseen:]
        else:
            most = _SURPRISE * sum(self.usual)
            self.usual = [
                old + _RECENT * (min(new, old + most) - old) for old, new in zip(self.usual, today, strict=True)
            ]
        self.today, self.since = [0.0] * SLOTS, 0.0

    def forecast(self, passed: float) -> Forecast:
        """Returns the forecast for the rest of the period, after this share of it has passed."""
        seen, whole = sum(self.today), sum(self.usual)
        if not whole:
            watched = max(passed - self.since, 0.0) + 1 / SLOTS  # one more slot: a single request is not a rate
            return Forecast(seen, to_come=1 - passed, expected=watched, doubt=0.0)
        slot = int(passed * SLOTS)
        to_come = sum(self.usual[slot + 1 :]) + self.usual[slot] * (slot + 1 - passed * SLOTS)
        doubt = _DOUBT * whole
        return Forecast(seen, to_come, whole - to_come + doubt, doubt)


@dataclass(slots=True)
class Forecast:
    """The usual remaining demand, scaled by the demand so far; valid for a short time.

    Args:
        seen: demand of this period so far; the caller adds new demand.
        to_come: usual remaining demand.
        expected: usual demand so far, plus `doubt`.
        doubt: added to both, so that the first few requests have limited influence.
    """

    seen: float
    to_come: float
    expected: float
    doubt: float

    @property
    def remaining(self) -> float:
        """Returns the demand from now to the end of the period."""
        return self.to_come * (self.seen + self.doubt) / self.expected


_STEP = 4.0  # 2 to 8 make little difference; with 1 the first day is learned too slowly
_SMOOTH = 0.02  # weight of one more offer in the average value and cost, which covers some fifty offers
_FAIR_MOST = 4.0  # of an offer: bounds how fast a price falls with much budget and little demand
_UNKNOWN, _KNOWN = 0.4, 0.5  # factors on the forecast before the end of the first period, and after it
_SPARE = 0.05  # of the budget
_FORECASTS_PER_PERIOD = 2000  # of a period: validity of a forecast
_LONGEST_AHEAD = 1  # periods; a clock that is set back by at most this many keeps the period that it left


@dataclass(frozen=True, slots=True)
class Budget:
    """An amount per period.

    Args:
        amount: in each period; above 0.
        period_s: `HOUR_S` or `DAY_S`.
    """

    amount: float
    period_s: float


@dataclass(slots=True)
class Ledger:
    """The persistent state of a budget: its spending and learned demand.

    Args:
        period: number of the current one, counted from the epoch; -1 before the first.
        spent: in the current period.
        audited: amount of `spent` that audits took.
        value: average value of an offer.
        cost: average cost of an offer; 0 before the first.
        prices: worth of a unit, for what the contract demands and for everything.
        demands: of the contract's escalations, of all escalations, and of unpriced spending.
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
    """One budget in use.

    Args:
        budget: the amount per period.
        ledger: the persistent state; changed in place.
    """

    def __init__(self, budget: Budget, ledger: Ledger) -> None:
        self.budget = budget
        self.ledger = ledger
        self._forecasts: list[Forecast] = []
        self._passed = 0.0
        self.since_s, self.until_s = math.inf, -math.inf
        """Interval in which the forecast is valid: the clock may also go back."""

    def left(self, now_s: float) -> float:
        """Returns the remaining amount of this period, at least 0; `now_s` is wall time."""
        if not self.since_s <= now_s < self.until_s:
            self._refresh(now_s)
        return max(0.0, self.budget.amount - self.ledger.spent)

    def ends_in_s(self, now_s: float) -> float:
        """Returns the seconds until the next period."""
        self.left(now_s)
        return max(0.0, (self.ledger.period + 1) * self.budget.period_s - now_s)

    def price(self, now_s: float, *, demanded: bool) -> float:
        """Returns the worth of a unit; 0 while the budget is ample."""
        if not self.since_s <= now_s < self.until_s:
            self._refresh(now_s)
        least, price = self.ledger.prices
        return least if demanded else max(least, price)

    def can_spare(self, amount: float, now_s: float) -> bool:
        """Returns whether an amount may be spent on something less important, such as an audit.

        It may while there is enough for both. A small share of the budget may always be used, because otherwise a busy
        device would be audited at night only.
        """
        if amount > self.left(now_s):
            return False
        spare = _SPARE * self.budget.amount - self.ledger.audited
        return self.price(now_s, demanded=True) == 0 or amount <= spare

    def offered(self, value: float, cost: float, taken: float, now_s: float, *, demanded: bool, count: int = 1) -> None:
        """Updates the prices after the decisions on one or a few escalations at the same prices.

        Args:
            value: of the escalations, at least 0.
            cost: of the escalations, at least 0. It is not charged here, see `charge`.
            taken: cost of the escalations that were bought.
            now_s: wall clock.
            demanded: whether the contract demands them.
            count: number of escalations.
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
        """Records spending, or a refund if negative; `priced` if it was offered before."""
        self.left(now_s)
        self.ledger.spent = max(0.0, self.ledger.spent + amount)
        if not priced and amount > 0:
            self.ledger.demands[_UNPRICED].add(amount, self._passed)
            self._forecasts[_UNPRICED].seen += amount

    def _refresh(self, now_s: float) -> None:
        """Determines the current period and position, and updates the forecast.

        After a clock went back, the period that it left stays current, without a time limit while the clock shows an
        implausible time (such as 1970 after a boot). A clock that was ahead by more than a period was wrong before, as
        was one that is set now from 1970. Recorded spending stays.
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
        self.since_s, self.until_s = now_s, min(now_s + period_s / _FORECASTS_PER_PERIOD, (period + 1) * period_s)
