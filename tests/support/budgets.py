"""Spending with one limited budget, or with none."""

from firstline_core.clock import Clock, SimulatedClock
from firstline_core.routing.account import Account, Cost, Tariff
from firstline_core.routing.budget import Budget, Ledger, Meter
from firstline_core.units import DAY_S
from firstline_edge.budgets.spending import AROUND_BYTES, Spending, SpendingFile

COST_BYTES = 4 + AROUND_BYTES  # one row


def limited_spending(
    amount: float = 10_000.0,
    *,
    resource: str = "bytes/day",
    tariff: Tariff = Tariff(),  # noqa: B008 (frozen)
    prices: tuple[float, float] = (0.0, 0.0),
    file: SpendingFile | None = None,
    clock: SimulatedClock | None = None,
    link: str = "http",
) -> Spending:
    meter = Meter(Budget(amount, DAY_S), Ledger(prices=list(prices)))
    account = Account({resource: meter})
    return Spending(account, tariff, clock or SimulatedClock(), file=file, links=lambda: [link])


def unpriced_spending(clock: Clock) -> Spending:
    """As of a device without budgets and costs."""
    return Spending(Account({}, worths=Cost()), Tariff(), clock, links=lambda: ["http"])


def spent(spending: Spending) -> float:
    (budget,) = spending.status()
    return float(budget["spent"])
