"""All budgets together: the cost of an escalation, its price, and whether it is paid. Pure functions.

The prices of several resources add up: an escalation is bought if and only if

    value * worth >= sum over resources of markup * price * cost,

where `markup` is the current price factor of a resource (`conditions.py`). Escalations that the contract demands have
their own, lower prices. All others also pay the resource's own worth (money is worth itself), so that they may be too
expensive although no budget is short.
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
"""The default worths: only money has a worth of its own."""


class Denial(NamedTuple):
    """The reason why the budgets denied an escalation.

    Args:
        value: of the escalation: P(edge wrong and full right).
        price: the value that it needed.
        cost: of the escalation.
        short: the budget without enough left; "" if only the price was too high.
    """

    value: float
    price: float
    cost: Cost
    short: str = ""


_TOGETHER = 32  # maximum number of decisions per price update


class Account:
    """The budgets of one device.

    A decision takes microseconds and a price update takes longer. So a few decisions share one update, as in mini-batch
    descent, until one of them is paid or the forecasts are outdated.

    Args:
        meters: by name: a resource of `Cost`, followed by "/" and a suffix if it has several budgets.
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
        """Returns the current price factor of each resource."""
        return self._markup

    @markup.setter
    def markup(self, markup: Cost) -> None:
        self._markup, self._until_s = markup, -math.inf

    def price(self, cost: Cost, now_s: float, *, demanded: bool) -> float:
        """Returns the price as a value: the P(edge wrong and full right) that just pays for the cost."""
        if not self._since_s <= now_s < self._until_s:
            self._look(now_s)
        per_byte, per_joule, per_coin = self._prices[demanded]
        return per_byte * cost[0] + per_joule * cost[1] + per_coin * cost[2]

    def judge(self, value: float, cost: Cost, now_s: float, *, demanded: bool) -> Denial | None:
        """Returns why an escalation is denied; None if it is bought. It charges nothing: `take` does, once it is sent.

        Args:
            value: P(edge wrong and full right), 0 to 1.
            cost: estimate.
            now_s: wall clock.
            demanded: whether the contract demands it.
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
        """Charges a cost in advance; returns False and charges nothing if too little is left.

        Args:
            cost: estimate; `settle` corrects it later.
            now_s: wall clock.
            priced: whether `judge` decided on it; audits are not priced.
        """
        if self.short(cost, now_s):
            return False
        if not priced:
            for at, _, meter in self._metered:
                meter.ledger.audited += cost[at]
        self.charge(cost, now_s, priced=priced)
        return True

    def charge(self, cost: Cost, now_s: float, *, priced: bool = True) -> None:
        """Charges a cost that was spent already."""
        for at, _, meter in self._metered:
            meter.charge(cost[at], now_s, priced=priced)
        self._look(now_s)

    @property
    def periods(self) -> list[int]:
        """Returns the number of each budget's period at the last charge."""
        return [meter.ledger.period for _, _, meter in self._metered]

    def settle(self, reserved: Cost, spent: Cost, periods: Sequence[int], now_s: float) -> None:
        """Replaces the charge of `take` with the cost that was spent.

        Args:
            reserved: the charge of `take`.
            spent: the real cost.
            periods: at the time of the charge. Reservations of an ended period are not returned to the next one.
            now_s: wall clock.
        """
        self._look(now_s)
        for (at, _, meter), period in zip(self._metered, periods, strict=True):
            difference = spent[at] - reserved[at]
            if difference > 0 or period == meter.ledger.period:
                meter.charge(difference, now_s, priced=True)
        self._look(now_s)

    def short(self, cost: Cost, now_s: float) -> str:
        """Returns the budget that cannot pay this at any value; "" if all can."""
        for at, name, meter in self._metered:
            if cost[at] > meter.left(now_s):
                return name
        return ""

    def affords(self, cost: Cost, now_s: float) -> bool:
        """Returns whether all budgets can pay this."""
        return not self.short(cost, now_s)

    def spares(self, cost: Cost, now_s: float) -> bool:
        """Returns whether all budgets can spare this, see `Meter.spares`."""
        self._look(now_s)
        return all(meter.spares(cost[at], now_s) for at, _, meter in self._metered)

    def refilled_in_s(self, name: str, now_s: float) -> float:
        """Returns the seconds until the next period of a budget; 0 for an unknown budget."""
        meter = self.meters.get(name)
        return 0.0 if meter is None else meter.ends_in_s(now_s)

    def ledgers(self, now_s: float) -> dict[str, Ledger]:
        """Returns the state to persist, by budget."""
        self._look(now_s)
        return {name: meter.ledger for name, meter in self.meters.items()}

    def _look(self, now_s: float) -> None:
        """Updates the prices with the decisions since the last update, and refreshes prices and remaining amounts."""
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
