"""What this device spends, held against its budgets, and kept across restarts.

Whether a row is worth its price is asked once, where the cascade decides (`allows`). Money is spent where something
leaves: `paid` stands at the gate of the links, so that live escalations, hedges, redeliveries and audits draw on the same
budgets. It sets an estimate aside, refuses what would overspend, and settles with the bytes that the links counted.

What is spent is written down every few seconds, atomically: a process that is killed forgets at most the last
`SAVE_EVERY_S` of spending.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import msgspec

from firstline_core.clock import Clock
from firstline_core.errors import BudgetExceededError
from firstline_core.routing.account import Account, Cost
from firstline_core.routing.budget import DAY_S, HOUR_S, Budget, Ledger, Meter
from firstline_core.routing.conditions import Conditions, markup
from firstline_core.routing.tariff import LinkTariff, Tariff, MIB
from firstline_core.telemetry.logs import logger
from firstline_core.types import InferRequest
from firstline_edge.links.traffic import Traffic, counted
from firstline_edge.settings import EdgeSettings

log = logger(__name__)

SAVE_EVERY_S = 5.0

_AROUND_BYTES = 700.0  # headers, the answer: until the first call tells
_FORGET = 0.02  # how fast a call that was larger than usual is forgotten


@dataclass(frozen=True, slots=True)
class Denial:
    """Why the budgets denied an escalation, for `explain`.

    Args:
        value: what it would have been worth: P(edge wrong and full right).
        price: what it would have had to be worth.
        cost: what it would have taken.
        short: the budget that had not enough left for it, "" where only its price was too high.
    """

    value: float
    price: float
    cost: Cost
    short: str

    def told(self) -> dict[str, Any]:
        """For the decision log."""
        return {"value": self.value, "price": self.price, "cost": self.cost._asdict(), "short": self.short}


class Spending:
    """The device's one purse. For one thread.

    Args:
        account: its budgets.
        tariff: what things cost.
        clock: budgets are of hours and days by the wall.
        path: where ledgers are kept; None to forget them.
        link: name of the link that a request would take now, "" for none.
        sense: finds out battery and heat; may take milliseconds.
        metered_factor: how much dearer a metered link is.
    """

    def __init__(
        self,
        account: Account,
        tariff: Tariff,
        clock: Clock,
        *,
        path: Path | None = None,
        link: Callable[[], str] = lambda: "",
        sense: Callable[[], Conditions] = Conditions,
        metered_factor: float = 4.0,
    ) -> None:
        self.account = account
        self.conditions = Conditions()
        self._tariff = tariff
        self._clock = clock
        self._path = path
        self._link = link
        self._sense = sense
        self._metered_factor = metered_factor
        self._around_bytes = _AROUND_BYTES
        self._changed = False
        self.problem = ""

    def allows(self, size_bytes: float, value: float, *, demanded: bool = True) -> Denial | None:
        """Whether an escalation is worth its price now; None where it is. Nothing is charged yet.

        Args:
            size_bytes: of its payload.
            value: P(edge wrong and full right).
            demanded: the contract demands it.
        """
        cost = self._estimate(size_bytes)
        verdict = self.account.judge(value, cost, self._clock.wall_s(), demanded=demanded)
        return None if verdict.paid else Denial(value, verdict.price, cost, verdict.short)

    @contextmanager
    def paid(self, request: InferRequest) -> Iterator[None]:
        """Pays for one call over the links.

        Raises:
            BudgetExceededError: too little is left; for an audit, too little beside what the contract demands.
        """
        now_s, account, audit = self._clock.wall_s(), self.account, request.audit is not None
        size_bytes = request.size_bytes
        reserved = self._estimate(size_bytes)
        if (audit and not account.spares(reserved, now_s)) or not account.take(reserved, now_s, priced=not audit):
            raise BudgetExceededError(
                f"This device's budget for {account.short(reserved, now_s) or 'audits'} is spent; [budget] in its "
                "configuration says what it may send.",
                retry_after_s=account.refilled_in_s(now_s),
            )
        self._changed = True
        answered = False
        with counted() as traffic:
            try:
                yield
                answered = True
            finally:
                self._settle(reserved, traffic, size_bytes, answered=answered)

    def ran(self, rows: int) -> None:
        """The edge model ran on so many rows."""
        if self._tariff.joules_per_run:
            self.account.charge(self._tariff.runs(rows), self._clock.wall_s(), priced=False)
            self._changed = True

    def _estimate(self, size_bytes: float) -> Cost:
        link = self._link()
        metered = self._tariff.of_link(link).metered
        if metered is not self.conditions.metered:
            self._take_up(replace(self.conditions, metered=metered))
        return self._tariff.traffic(link, size_bytes, self._around_bytes)

    def _settle(self, reserved: Cost, traffic: Traffic, size_bytes: int, *, answered: bool) -> None:
        """Puts what was really spent in the place of the estimate; a link that counts nothing is taken at that."""
        if answered and not traffic.crossed:
            return
        spent = [self._tariff.traffic(*crossed, requests=0) for crossed in traffic.crossed]
        requests = Cost(money=self._tariff.money_per_request if answered else 0.0)
        total = Cost(*(sum(parts) for parts in zip(requests, *spent, strict=True)))
        if answered:
            around_bytes = total.bytes - size_bytes
            self._around_bytes = max(around_bytes, self._around_bytes + _FORGET * (around_bytes - self._around_bytes))
        difference = Cost(*(real - estimate for real, estimate in zip(total, reserved, strict=True)))
        self.account.charge(difference, self._clock.wall_s())

    def _take_up(self, conditions: Conditions) -> None:
        self.conditions = conditions
        self.account.markup = markup(conditions, self._metered_factor)

    async def keep(self) -> None:
        """Looks at battery and heat, and writes down what was spent, every few seconds until it is cancelled."""
        while True:
            sensed = await asyncio.to_thread(self._sense)
            self._take_up(replace(sensed, metered=self.conditions.metered))
            await self._clock.sleep(SAVE_EVERY_S)
            if self._changed:
                self._changed = False
                await asyncio.to_thread(self._write, self._ledgers())

    def save(self) -> None:
        """Writes down what was spent; a disk that refuses is told once."""
        self._write(self._ledgers())

    def status(self) -> list[dict[str, Any]]:
        """Each budget: what is spent and left of it, and what a unit is worth now."""
        now_s = self._clock.wall_s()
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

    def _ledgers(self) -> bytes:
        return msgspec.json.encode({name: asdict(ledger) for name, ledger in self.account.ledgers.items()})

    def _write(self, ledgers: bytes) -> None:
        if self._path is None or not self.account.meters:
            return
        fresh = self._path.with_name(self._path.name + ".new")
        try:
            with open(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as stream:
                stream.write(ledgers)
                stream.flush()
                os.fsync(stream.fileno())
            fresh.replace(self._path)
        except OSError as error:
            if not self.problem:
                log.error("cannot write down what is spent", path=str(self._path), error=str(error))
            self.problem = f"What is spent cannot be written down ({error.strerror}); a restart would forget it."
        else:
            self.problem = ""


def open_spending(
    settings: EdgeSettings,
    path: Path,
    clock: Clock,
    *,
    link: Callable[[], str],
    links: Mapping[str, LinkTariff],
    sense: Callable[[], Conditions],
) -> Spending | None:
    """The purse that the settings ask for, with what it had spent before; None where nothing is limited or has a price.

    Args:
        settings: budgets and costs.
        path: where ledgers are kept.
        clock: see `Spending`.
        link, sense: see `Spending`.
        links: tariffs by the links' names.
    """
    budgets = {
        f"{resource}/{name}": Budget(amount, period_s)
        for resource in Cost._fields
        for name, period_s in (("hour", HOUR_S), ("day", DAY_S))
        if (amount := float(getattr(settings.budget, f"{resource}_per_{name}")))
    }
    costs = settings.costs
    if not budgets and settings.policy.kind != "value":
        return None
    known = _read(path) if budgets else {}
    account = Account(
        {name: Meter(budget, known.get(name) or Ledger()) for name, budget in budgets.items()},
        worth=costs.worth,
        worths=Cost(joules=costs.money_per_joule, money=1.0),
    )
    tariff = Tariff(links, costs.money_per_request, costs.joules_per_run)
    return Spending(account, tariff, clock, path=path, link=link, sense=sense, metered_factor=costs.metered_factor)


def tariffs_of(settings: EdgeSettings, names: list[str]) -> dict[str, LinkTariff]:
    """What each link's bytes take, by its name, in the order of the settings."""
    return {
        name: LinkTariff(
            section.joules_per_mib_sent / MIB,
            section.joules_per_mib_received / MIB,
            settings.costs.money_per_mib / MIB if section.metered else 0.0,
            section.metered,
        )
        for name, section in zip(names, settings.links, strict=True)
    }


def _read(path: Path) -> dict[str, Ledger]:
    """The ledgers as they were written; none from a file that says nothing sensible, which is told."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=dict[str, Ledger])
    except FileNotFoundError:
        return {}
    except (OSError, msgspec.MsgspecError) as error:
        log.warning("what was spent before is not known", path=str(path), error=str(error))
        return {}
