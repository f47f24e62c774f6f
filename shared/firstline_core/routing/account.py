"""All budgets together: what an escalation costs, what it would have to be worth, and whether it is paid. Pure.

The prices of several resources add up: an escalation is bought if and only if

    value * worth >= sum over resources of markup * price * cost,

where `markup` is how much dearer a resource is at the moment (`conditions.py`). What the contract demands is judged by
its own, lower prices; everything else also pays what the resource itself is worth (a coin is worth a coin), so that
it may be too dear although no budget is short.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from firstline_core.routing.budget import Ledger, Meter


class Cost(NamedTuple):
    """An amount of each resource. Money is in whatever the user counts."""

    bytes: float = 0.0
    joules: float = 0.0
    money: float = 0.0


NO_MARKUP = Cost(1.0, 1.0, 1.0)
_NOTHING = Cost()
A_COIN_A_COIN = Cost(money=1.0)
"""Worths where nothing but money has a worth of its own."""


class Denial(NamedTuple):
    """Why the budgets denied an escalation.

    Args:
        value: what it would have been worth: P(edge wrong and full right).
        price: what it would have had to be worth.
        cost: what it would have taken.
        short: the budget that had not enough left for it, "" where only its price was too high.
    """

    value: float
    price: float
    cost: Cost
    short: str = ""


_TOGETHER = 32  # decisions that move the prices together, at most


class Account:
    """The budgets of one device.

    A decision takes microseconds, moving the prices takes more. So a few decisions may move them together, as in
    mini-batch descent: until one of them is paid for, or the forecasts grow old.

    Args:
        meters: by name: a resource of `Cost`, and where it has several budgets, "/" and a word of one's own.
        worth: of a corrected answer, in money; above 0.
        worths: of a unit of each resource, in money, budget or not.
    """

    def __init__(self, meters: Mapping[str, Meter], *, worth: float = 1.0, worths: Cost = A_COIN_A_COIN) -> None:
        self.meters = meters
        self.worth = worth
        self._worths = worths
        self._markup = NO_MARKUP
        self._metered = [(Cost._fields.index(name.partition("/")[0]), name, meter) for name, meter in meters.items()]
        self._prices = {True: list(_NOTHING), False: list(_NOTHING)}  # as values, by resource
        self._left = [math.inf] * len(_NOTHING)
        self._decided: list[tuple[bool, float, Cost, bool]] = []  # demanded, value, cost, paid
        self._since_s, self._until_s = math.inf, -math.inf

    @property
    def markup(self) -> Cost:
        """How much dearer each resource is at the moment."""
        return self._markup

    @markup.setter
    def markup(self, markup: Cost) -> None:
        self._markup, self._until_s = markup, -math.inf

    def price(self, cost: Cost, now_s: float, *, demanded: bool) -> float:
        """What this would have to be worth, as a value: P(edge wrong and full right) that just pays for it."""
        if not self._since_s <= now_s < self._until_s:
            self._look(now_s)
        per_byte, per_joule, per_coin = self._prices[demanded]
        return per_byte * cost[0] + per_joule * cost[1] + per_coin * cost[2]

    def judge(self, value: float, cost: Cost, now_s: float, *, demanded: bool) -> Denial | None:
        """Why one escalation is not bought; None where it is. Nothing is charged: `take` does that once it is sent.

        Args:
            value: P(edge wrong and full right), 0 to 1.
            cost: as far as it is known.
            now_s: wall clock.
            demanded: the contract demands it.
        """
        if not self._since_s <= now_s < self._until_s or len(self._decided) >= _TOGETHER:
            self._look(now_s)
        per_byte, per_joule, per_coin = self._prices[demanded]
        size, energy, money = cost
        price = per_byte * size + per_joule * energy + per_coin * money
        left = self._left
        enough = size <= left[0] and energy <= left[1] and money <= left[2]
        paid = enough and value >= price
        self._decided.append((demanded, value, cost, paid))
        return None if paid else Denial(value, price, cost, "" if enough else self.short(cost, now_s))

    def take(self, cost: Cost, now_s: float, *, priced: bool = True) -> bool:
        """Charges what is about to be spent; False, and nothing charged, where too little is left.

        Args:
            cost: as far as it is known; `settle` corrects it later.
            now_s: wall clock.
            priced: whether `judge` was asked about it; an audit is not.
        """
        if self.short(cost, now_s):
            return False
        if not priced:
            for at, _, meter in self._metered:
                meter.ledger.audited += cost[at]
        self.charge(cost, now_s, priced=priced)
        return True

    def charge(self, cost: Cost, now_s: float, *, priced: bool = True) -> None:
        """Charges what is already spent."""
        for at, _, meter in self._metered:
            meter.charge(cost[at], now_s, priced=priced)
        self._look(now_s)

    @property
    def periods(self) -> list[int]:
        """The number of each budget's hour or day, as of the last charge."""
        return [meter.ledger.period for _, _, meter in self._metered]

    def settle(self, reserved: Cost, spent: Cost, periods: Sequence[int], now_s: float) -> None:
        """Puts what was spent in the place of what `take` charged.

        Args:
            reserved: what that was.
            spent: in fact.
            periods: as they were then. What one that is over had set aside is not given back to the next.
            now_s: wall clock.
        """
        self._look(now_s)
        for (at, _, meter), period in zip(self._metered, periods, strict=True):
            difference = spent[at] - reserved[at]
            if difference > 0 or period == meter.ledger.period:
                meter.charge(difference, now_s, priced=True)
        self._look(now_s)

    def short(self, cost: Cost, now_s: float) -> str:
        """The budget that cannot pay this, whatever its value; "" where all can."""
        for at, name, meter in self._metered:
            if cost[at] > meter.left(now_s):
                return name
        return ""

    def affords(self, cost: Cost, now_s: float) -> bool:
        """Whether all budgets can pay this; quicker than `short`."""
        if not self._since_s <= now_s < self._until_s:
            self._look(now_s)
        left = self._left
        return cost[0] <= left[0] and cost[1] <= left[1] and cost[2] <= left[2]

    def spares(self, cost: Cost, now_s: float) -> bool:
        """Whether all budgets can do without this, see `Meter.spares`."""
        self._look(now_s)
        return all(meter.spares(cost[at], now_s) for at, _, meter in self._metered)

    def refilled_in_s(self, name: str, now_s: float) -> float:
        """Seconds until this budget begins anew; 0 where there is none of that name."""
        meter = self.meters.get(name)
        return 0.0 if meter is None else meter.ends_in_s(now_s)

    def ledgers(self, now_s: float) -> dict[str, Ledger]:
        """What must outlive a restart, by budget."""
        self._look(now_s)
        return {name: meter.ledger for name, meter in self.meters.items()}

    def _look(self, now_s: float) -> None:
        """Moves the prices by what was decided, and takes a fresh look at them and at what is left."""
        for demanded in (True, False):
            found = [(value, cost, paid) for was, value, cost, paid in self._decided if was is demanded]
            if found:
                value = sum(value for value, _, _ in found) * self.worth
                offered = _total(cost for _, cost, _ in found)
                taken = _total(cost for _, cost, paid in found if paid)
                for at, _, meter in self._metered:
                    meter.offered(value, offered[at], taken[at], now_s, demanded=demanded, count=len(found))
        self._decided.clear()
        self._left = [math.inf] * len(_NOTHING)
        for demanded, prices in self._prices.items():
            prices[:] = _NOTHING if demanded else self._worths
            for at, _, meter in self._metered:
                prices[at] += meter.price(now_s, demanded=demanded)
                self._left[at] = min(self._left[at], meter.left(now_s))
            prices[:] = [price * dearer / self.worth for price, dearer in zip(prices, self._markup, strict=True)]
        self._since_s = max((meter.since_s for meter in self.meters.values()), default=-math.inf)
        self._until_s = min((meter.until_s for meter in self.meters.values()), default=math.inf)


def _total(costs: Iterable[Cost]) -> Cost:
    return Cost(*map(sum, zip(_NOTHING, *costs, strict=True)))
