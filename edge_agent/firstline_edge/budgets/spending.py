"""The device's spending, limited by its budgets and stored across restarts.

The cascade calls `denial` to decide whether the value of a row justifies its price. The links call `paid` when they
send a request, so that live escalations, hedges, redeliveries and audits draw on the same budgets. `paid` reserves an
estimated cost, refuses a request that would exceed a budget, and settles with the bytes that the links counted.

The agent stores the spending every few seconds, not for each request: a killed process loses at most the last
`SAVE_EVERY_S` of spending. The file is one line of JSON and its checksum, replaced as a whole or not at all.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import KW_ONLY, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from firstline_core.clock import Clock
from firstline_core.errors import BudgetExceededError, IntegrityError
from firstline_core.routing.account import Account, Conditions, Cost, Denial, LinkTariff, Tariff, markup
from firstline_core.routing.budget import Ledger
from firstline_core.runtime.threads import REFUSED
from firstline_core.storage.structs import read_struct
from firstline_core.telemetry.metrics import RequestMetrics
from firstline_core.types import InferRequest
from firstline_edge.state import StateFile
from firstline_edge.telemetry.link_traffic import Traffic, counting_traffic

AROUND_BYTES = 2048.0


class StoredSpending(msgspec.Struct, frozen=True):
    """The state that survives a restart.

    Args:
        ledgers: by the name of their budget.
        around_bytes: estimated bytes that cross the link in addition to a payload: headers and answer.
    """

    ledgers: dict[str, Ledger] = msgspec.field(default_factory=dict)
    around_bytes: float = AROUND_BYTES


class SpendingFile(StateFile):
    """The file of the spending.

    Args:
        path: the file.
    """

    def __init__(self, path: Path) -> None:
        super().__init__(path, "spending", "A restart would forget the spending.")

    def read(self) -> StoredSpending:
        """Returns the spending that was written last; none if the file is missing or lost, which is logged."""
        try:
            return read_struct(self.path, StoredSpending)
        except FileNotFoundError:
            return StoredSpending()
        except (IntegrityError, OSError) as error:
            self.lost(f"The earlier spending cannot be read ({error}), so the budgets start again.")
        return StoredSpending()


SAVE_EVERY_S = 5.0

_ROW_BYTES = 256  # of the answer, for each row after the first
_DECAY = 0.05  # share by which the estimate of `around_bytes` moves towards a smaller call


@dataclass(eq=False)
class Spending:
    """The budgets of this device. Not thread-safe.

    Args:
        account: budgets and their prices.
        tariff: prices of traffic and runs.
        clock: its wall clock ends the hours and days of the budgets.
        file: stores the spending; None to store nothing.
        around_bytes: estimated bytes that cross the link in addition to a payload.
        links: returns the names of the links that a request would try now, in order.
        sense: returns battery and heat without blocking.
        metered_factor: factor by which a metered link raises prices.
    """

    account: Account
    tariff: Tariff
    clock: Clock
    _: KW_ONLY
    file: SpendingFile | None = None
    around_bytes: float = AROUND_BYTES
    links: Callable[[], Sequence[str]] = tuple
    sense: Callable[[], Conditions] = Conditions
    metered_factor: float = 4.0
    conditions: Conditions = field(default_factory=Conditions, init=False)
    _changed: bool = field(default=False, init=False)

    def adopt(self, account: Account, tariff: Tariff, metered_factor: float) -> None:
        """Replaces budgets and prices.

        Calls in progress are settled with the account that paid them. A budget of both accounts has one ledger.
        """
        self.account, self.tariff, self.metered_factor = account, tariff, metered_factor
        self._set_conditions(self.conditions)
        self._changed = True

    def denial(self, size_bytes: float, value: float, *, demanded: bool = True) -> Denial | None:
        """Returns why an escalation is not worth its price now; None if it is. Charges nothing.

        Args:
            size_bytes: of its payload.
            value: P(edge wrong and full right).
            demanded: whether the contract demands it.
        """
        now_s = self.clock.wall_s()
        tariff, cost = self._link_and_cost(size_bytes, now_s)
        if tariff.metered is not self.conditions.metered:
            self._set_conditions(replace(self.conditions, metered=tariff.metered))
        return self.account.decide(value, cost, now_s, demanded=demanded)

    @property
    def reachable(self) -> bool:
        """Whether any link would try a request now."""
        return bool(self.links())

    @property
    def ample(self) -> bool:
        """Whether no budget has a price now, so that the agent may send a request that it may not need."""
        now_s = self.clock.wall_s()
        return all(meter.price(now_s, demanded=False) == 0 for meter in self.account.meters.values())

    @contextmanager
    def paid(self, request: InferRequest, link: str) -> Iterator[None]:
        """Pays for one attempt over one link.

        Args:
            request: as the link sends it.
            link: its name.

        Raises:
            BudgetExceededError: too little is left; for an audit, too little beyond the needs of the contract.
        """
        now_s, account, audit = self.clock.wall_s(), self.account, request.audit is not None
        size_bytes = request.size_bytes
        around_rows_bytes = _ROW_BYTES * (request.rows - 1)
        asked_bytes = size_bytes + around_rows_bytes
        reserved = self._estimate(asked_bytes, self.tariff.of_link(link))
        if (audit and not account.can_spare(reserved, now_s)) or not account.take(reserved, now_s, audit=audit):
            short = account.short(reserved, now_s)
            raise BudgetExceededError(
                f"Too little is left of this device's budget for {short or 'audits'}; [budget] in its configuration "
                "says what it may send.",
                retry_after_s=account.refilled_in_s(short, now_s) or None,
            )
        self._changed = True
        answered, periods = False, account.periods
        with counting_traffic() as traffic:
            try:
                yield
                answered = True
            finally:
                if not answered or traffic.crossed:  # if a link counts nothing, the estimate stays
                    spent = self._spent(traffic, asked_bytes, answered=answered)
                    account.settle(reserved, spent, periods, self.clock.wall_s())
                    self._changed = True

    def charge_runs(self, rows: int) -> None:
        """Charges the energy of running the edge model on a number of rows."""
        if self.tariff.joules_per_run:
            self.account.charge(self.tariff.runs(rows), self.clock.wall_s(), priced=False)
            self._changed = True

    def _link_and_cost(self, size_bytes: float, now_s: float) -> tuple[LinkTariff, Cost]:
        """Returns tariff and cost of the first affordable link, or of the first link if none is."""
        links, of_link = self.links(), self.tariff.of_link
        first = of_link(links[0] if links else "")
        cost = self._estimate(size_bytes, first)
        if len(links) > 1 and self.account.short(cost, now_s):
            for other in map(of_link, links[1:]):
                others = self._estimate(size_bytes, other)
                if not self.account.short(others, now_s):
                    return other, others
        return first, cost

    def _estimate(self, size_bytes: float, link: LinkTariff) -> Cost:
        return link.cost(size_bytes, self.around_bytes, self.tariff.money_per_request)

    def _spent(self, traffic: Traffic, size_bytes: int, *, answered: bool) -> Cost:
        """Returns the cost of a call by the links' counts, and updates the estimate of `around_bytes`."""
        spent = [self.tariff.of_link(link).cost(sent, received) for link, sent, received in traffic.crossed]
        requests = Cost(money=self.tariff.money_per_request if answered else 0.0)
        if answered:
            # Only the last try counts: a link rarely sends a request twice (over a connection that was closed).
            around_bytes = traffic.last_bytes - size_bytes
            self.around_bytes = max(around_bytes, self.around_bytes + _DECAY * (around_bytes - self.around_bytes))
        return Cost(*(sum(parts) for parts in zip(requests, *spent, strict=True)))

    def _set_conditions(self, conditions: Conditions) -> None:
        self.conditions = conditions
        self.account.set_markup(markup(conditions, self.metered_factor))

    async def keep(self) -> None:
        """Reads battery and heat, and stores the spending, every few seconds until it is cancelled."""
        while True:
            self._set_conditions(replace(self.sense(), metered=self.conditions.metered))
            await self.clock.sleep(SAVE_EVERY_S)
            if self.file is not None and self.account.meters and (self._changed or self.file.refusal):
                self._changed = False
                try:
                    await asyncio.to_thread(self.file.write, self._encoded())
                except REFUSED as error:  # no thread or no memory; battery and heat are still read
                    self.file.refused(str(error) or type(error).__name__)

    def save(self) -> None:
        """Stores the spending if there are a file and budgets."""
        if self.file is not None and self.account.meters:
            self.file.write(self._encoded())

    def _encoded(self) -> bytes:
        """Returns the content of the file; encoded on the caller's thread, because the ledgers change meanwhile."""
        return msgspec.json.encode(StoredSpending(self.account.ledgers(self.clock.wall_s()), self.around_bytes))

    @property
    def problem(self) -> str:
        """The problem with the file, in sentences; "" if there is none or nothing is stored."""
        return self.file.problem if self.file is not None else ""

    def status(self) -> list[dict[str, Any]]:
        """Returns spent and remaining amounts and the current price of each budget."""
        now_s = self.clock.wall_s()
        return [
            {
                "budget": name,
                "amount": meter.budget.amount,
                "left": round(meter.left(now_s), 6),
                "spent": round(meter.ledger.spent, 6),
                "price": meter.price(now_s, demanded=False),
                "contract_price": meter.price(now_s, demanded=True),
                "ends_in_s": round(meter.ends_in_s(now_s), 1),
            }
            for name, meter in self.account.meters.items()
        ]


def register_metrics(metrics: RequestMetrics, spending: Spending) -> None:
    """Registers spent and remaining amounts and prices by budget."""
    for name, description, key in (
        ("budget_spent", "Spent in this hour or day.", "spent"),
        ("budget_left", "Left to spend in it.", "left"),
        ("budget_price", "Current price of a unit; 0 while the budget is ample.", "price"),
    ):
        metrics.readings(name, description, ("budget",), partial(_by_budget, spending, key))


def _by_budget(spending: Spending, key: str) -> dict[tuple[str, ...], float]:
    return {(budget["budget"],): budget[key] for budget in spending.status()}
