"""All budgets together: what an escalation costs, what it would have to be worth, and whether it is paid. Pure.

The prices of several resources add up: an escalation is bought if and only if

    value * worth >= sum over resources of markup * price * cost,

where `markup` is how much dearer a resource is at the moment (`conditions.py`). What the contract demands is judged by
its own, lower prices; everything else also pays what the resource itself is worth (a coin is worth a coin), so that
it may be too dear although no budget is short.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from firstline_core.routing.budget import Ledger, Meter


class Cost(NamedTuple):
    """An amount of each resource. Money is in whatever the user counts."""

    bytes: float = 0.0
    joules: float = 0.0
    money: float = 0.0


NO_MARKUP = Cost(1.0, 1.0, 1.0)
A_COIN_A_COIN = Cost(money=1.0)
"""Worths where nothing but money has a worth of its own."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """What the budgets say of one escalation.

    Args:
        paid: it may be made.
        price: what it had to be worth, as a value: 0 while all budgets are ample.
        short: the resource that has not enough left whatever the value, "" where there is none.
    """

    paid: bool
    price: float
    short: str = ""


class Account:
    """The budgets of one device.

    Args:
        meters: by resource, a name in `Cost`; several of one resource for an hour and a day.
        worth: of a corrected answer, in money; above 0.
        worths: of a unit of each resource, in money, budget or not.
    """

    def __init__(self, meters: Mapping[str, Meter], *, worth: float = 1.0, worths: Cost = A_COIN_A_COIN) -> None:
        self.meters = meters
        self.worth = worth
        self._worths = worths
        self._metered = [(Cost._fields.index(name.partition("/")[0]), name, meter) for name, meter in meters.items()]
        self.markup = NO_MARKUP

    def price(self, cost: Cost, now_s: float, *, demanded: bool) -> float:
        """What this would have to be worth, as a value: P(edge wrong and full right) that just pays for it."""
        markup = self.markup
        total = 0.0
        for at, _, meter in self._metered:
            total += markup[at] * meter.price(now_s, demanded=demanded) * cost[at]
        if not demanded:
            worths = self._worths
            total += markup[0] * worths[0] * cost[0] + markup[1] * worths[1] * cost[1] + markup[2] * worths[2] * cost[2]
        return total / self.worth

    def judge(self, value: float, cost: Cost, now_s: float, *, demanded: bool) -> Verdict:
        """Decides one escalation, and moves the prices. Nothing is charged: `take` does that once something is sent.

        Args:
            value: P(edge wrong and full right), 0 to 1.
            cost: as far as it is known.
            now_s: wall clock.
            demanded: the contract demands it.
        """
        price = self.price(cost, now_s, demanded=demanded)
        short = self.short(cost, now_s)
        paid = not short and value >= price
        for at, _, meter in self._metered:
            meter.offered(value * self.worth, cost[at], now_s, demanded=demanded, taken=paid)
        return Verdict(paid, price, short)

    def take(self, cost: Cost, now_s: float, *, priced: bool = True) -> bool:
        """Charges what is about to be spent; False, and nothing charged, where too little is left.

        Args:
            cost: as far as it is known; `charge` corrects it later.
            now_s: wall clock.
            priced: whether `judge` was asked about it.
        """
        if self.short(cost, now_s):
            return False
        self.charge(cost, now_s, priced=priced)
        return True

    def charge(self, cost: Cost, now_s: float, *, priced: bool = True) -> None:
        """Charges what is already spent, or gives back where it is below 0."""
        for at, _, meter in self._metered:
            meter.charge(cost[at], now_s, priced=priced)

    def short(self, cost: Cost, now_s: float) -> str:
        """The budget that cannot pay this, whatever its value; "" where all can."""
        for at, name, meter in self._metered:
            if cost[at] > meter.left(now_s):
                return name
        return ""

    def spares(self, cost: Cost, now_s: float) -> bool:
        """Whether all budgets can do without this, see `Meter.spares`."""
        return all(meter.spares(cost[at], now_s) for at, _, meter in self._metered)

    def refilled_in_s(self, now_s: float) -> float:
        """Seconds until a budget begins anew; 0 without budgets."""
        return min((meter.ends_in_s(now_s) for meter in self.meters.values()), default=0.0)

    @property
    def ledgers(self) -> dict[str, Ledger]:
        """What must outlive a restart, by budget."""
        return {name: meter.ledger for name, meter in self.meters.items()}
