"""All budgets together: tariffs, the cost of an escalation, its price, and whether it is paid. Pure functions.

The prices of several resources add up: an escalation is bought if and only if

    value * worth >= sum over resources of markup * price * cost,

where the markup is the current price factor of a resource (see `markup`). Escalations that the contract demands have
their own, lower prices. All others also pay the resource's own worth (money is worth itself), so that they may be too
expensive although no budget is short.

Terms:
    value: of an escalation: P(edge wrong and full right), 0 to 1.
    worth: the money that a corrected answer, or a unit of a resource, is worth to the user.
    price: of a unit of a resource, in money: it rises as the resource's budget becomes short. The price of a whole
        escalation is divided by the worth of a corrected answer, so that it compares with a value.
    cost: the amount of each resource that an escalation, a run or a transfer uses.
    markup: the factor by which the device's conditions (battery, heat, metered link) raise the price of a resource.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from firstline_core.routing.budget import Ledger, Meter


class Cost(NamedTuple):
    """An amount of each resource. Money is in whatever the user counts."""

    bytes: float = 0.0
    joules: float = 0.0
    money: float = 0.0


NO_MARKUP = Cost(1.0, 1.0, 1.0)
_NOTHING = Cost()
MONEY_ONLY = Cost(money=1.0)
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


_DECISIONS_PER_UPDATE = 32  # maximum number of decisions per price update


class Account:
    """The budgets of one device.

    A decision takes microseconds and a price update takes longer. So a few decisions share one update, as in mini-batch
    descent, until one of them is paid or the forecasts are outdated.

    Args:
        meters: by name: a resource of `Cost`, followed by "/" and a suffix if it has several budgets.
        worth: of a corrected answer, in money; above 0.
        worths: of a unit of each resource, in money, budget or not.

    Attributes:
        markup: current price factor of each resource, see `set_markup`.
    """

    def __init__(self, meters: Mapping[str, Meter], *, worth: float = 1.0, worths: Cost = MONEY_ONLY) -> None:
        self.meters = meters
        self.worth = worth
        self._worths = worths
        self.markup = NO_MARKUP
        self._metered = [(Cost._fields.index(name.partition("/")[0]), name, meter) for name, meter in meters.items()]
        self._prices = {True: list(_NOTHING), False: list(_NOTHING)}  # as values, by resource
        self._left = [math.inf] * len(_NOTHING)
        self._decided: list[tuple[bool, float, Cost, bool]] = []  # demanded, value, cost, paid
        self._since_s, self._until_s = math.inf, -math.inf

    def set_markup(self, markup: Cost) -> None:
        """Sets the price factor of each resource from now on."""
        self.markup, self._until_s = markup, -math.inf

    def decide(self, value: float, cost: Cost, now_s: float, *, demanded: bool) -> Denial | None:
        """Returns why an escalation is denied; None if it is bought. It charges nothing: `take` does, once it is sent.

        Args:
            value: P(edge wrong and full right), 0 to 1.
            cost: estimate.
            now_s: wall clock.
            demanded: whether the contract demands it.
        """
        if not self._since_s <= now_s < self._until_s or len(self._decided) >= _DECISIONS_PER_UPDATE:
            self._refresh(now_s)
        per_byte, per_joule, per_money = self._prices[demanded]
        size, energy, money = cost
        price = per_byte * size + per_joule * energy + per_money * money
        left = self._left
        enough = size <= left[0] and energy <= left[1] and money <= left[2]
        paid = enough and value >= price
        self._decided.append((demanded, value, cost, paid))
        return None if paid else Denial(value, price, cost, "" if enough else self.short(cost, now_s))

    def take(self, cost: Cost, now_s: float, *, audit: bool = False) -> bool:
        """Charges a cost in advance; returns False and charges nothing if too little is left.

        Args:
            cost: estimate; `settle` corrects it later.
            now_s: wall clock.
            audit: whether it is for an audit, on which `decide` does not decide.
        """
        if self.short(cost, now_s):
            return False
        if audit:
            for at, _, meter in self._metered:
                meter.ledger.audited += cost[at]
        self.charge(cost, now_s, priced=not audit)
        return True

    def charge(self, cost: Cost, now_s: float, *, priced: bool = True) -> None:
        """Charges a cost that was spent already; `priced` if `decide` decided on it."""
        for at, _, meter in self._metered:
            meter.charge(cost[at], now_s, priced=priced)
        self._refresh(now_s)

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
        self._refresh(now_s)
        for (at, _, meter), period in zip(self._metered, periods, strict=True):
            difference = spent[at] - reserved[at]
            if difference > 0 or period == meter.ledger.period:
                meter.charge(difference, now_s, priced=True)
        self._refresh(now_s)

    def short(self, cost: Cost, now_s: float) -> str:
        """Returns the budget that cannot pay this at any value; "" if all can."""
        for at, name, meter in self._metered:
            if cost[at] > meter.left(now_s):
                return name
        return ""

    def can_spare(self, cost: Cost, now_s: float) -> bool:
        """Returns whether all budgets can spare this, see `Meter.can_spare`."""
        self._refresh(now_s)
        return all(meter.can_spare(cost[at], now_s) for at, _, meter in self._metered)

    def refilled_in_s(self, name: str, now_s: float) -> float:
        """Returns the seconds until the next period of a budget; 0 for an unknown budget."""
        meter = self.meters.get(name)
        return 0.0 if meter is None else meter.ends_in_s(now_s)

    def ledgers(self, now_s: float) -> dict[str, Ledger]:
        """Returns the state to persist, by budget."""
        self._refresh(now_s)
        return {name: meter.ledger for name, meter in self.meters.items()}

    def _refresh(self, now_s: float) -> None:
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
            prices[:] = [price * factor / self.worth for price, factor in zip(prices, self.markup, strict=True)]
        self._since_s = max((meter.since_s for meter in self.meters.values()), default=-math.inf)
        self._until_s = min((meter.until_s for meter in self.meters.values()), default=math.inf)


def _total(costs: Iterable[Cost]) -> Cost:
    return Cost(*map(sum, zip(_NOTHING, *costs, strict=True)))


_LARGEST_FACTOR = 8.0
_EMPTY, _FULL = 0.1, 0.6  # battery charge at or below which the factor is largest, and at or above which it is 1
_COOL_C = 5.0  # degrees below the limit at which the factor becomes 1


@dataclass(frozen=True, slots=True)
class Conditions:
    """The measured conditions of the device.

    Args:
        battery: charge, 0 to 1; None without a battery.
        charging: whether external power is connected.
        heat_c: temperature of the hottest part relative to its limit (degrees Celsius, negative below); None if
            unknown.
        metered: whether the link in use is metered.
    """

    battery: float | None = None
    charging: bool = True
    heat_c: float | None = None
    metered: bool = False


def markup(conditions: Conditions, metered_factor: float = 4.0) -> Cost:
    """Returns the price factor of each resource, at least 1.

    The factor of energy rises to 8 with an emptying battery, and again by up to 8 near the heat limit; bytes and money
    cost `metered_factor` times as much over a metered link. Factors are interpolated geometrically.
    """
    if conditions == Conditions():
        return NO_MARKUP
    joules = 1.0
    if conditions.battery is not None and not conditions.charging:
        joules *= _between((_FULL - conditions.battery) / (_FULL - _EMPTY))
    if conditions.heat_c is not None:
        joules *= _between((conditions.heat_c + _COOL_C) / _COOL_C)
    metered = metered_factor if conditions.metered else 1.0
    return Cost(metered, joules, metered)


def _between(share: float) -> float:
    return float(_LARGEST_FACTOR ** min(max(share, 0.0), 1.0))


@dataclass(frozen=True, slots=True)
class LinkTariff:
    """The cost of a byte over one link.

    Args:
        joules_per_byte_sent, joules_per_byte_received: energy.
        money_per_byte: 0 for an unmetered link.
        metered: whether bytes cost money.
    """

    joules_per_byte_sent: float = 0.0
    joules_per_byte_received: float = 0.0
    money_per_byte: float = 0.0
    metered: bool = False

    def cost(self, sent: float, received: float, money: float = 0.0) -> Cost:
        """Returns the cost of a transfer, plus `money`."""
        energy = sent * self.joules_per_byte_sent + received * self.joules_per_byte_received
        return Cost(sent + received, energy, (sent + received) * self.money_per_byte + money)


_UNSTATED = LinkTariff()


@dataclass(frozen=True, slots=True)
class Tariff:
    """All configured costs.

    Args:
        links: by name; unknown links only cost bytes.
        money_per_request: cost of an answer of the gateway.
        joules_per_run: of the edge model, on one row.
        joules_per_core_s: energy of a busy core per second, above the idle device.
        idle_w: power of the idle device (watts).
    """

    links: Mapping[str, LinkTariff] = field(default_factory=dict)
    money_per_request: float = 0.0
    joules_per_run: float = 0.0
    joules_per_core_s: float = 0.0
    idle_w: float = 0.0

    def of_link(self, link: str) -> LinkTariff:
        """Returns the tariff of a link."""
        return self.links.get(link, _UNSTATED)

    def runs(self, rows: int) -> Cost:
        """Returns the cost of running the edge model on a number of rows."""
        return Cost(joules=rows * self.joules_per_run)
