"""The device's spending, limited by its budgets and stored across restarts.

The cascade decides by `denial` whether a row is worth its price. The links pay by `paid` when something is sent, so
that live escalations, hedges, redeliveries and audits draw on the same
budgets. It sets an estimate aside, refuses what would overspend, and settles with the bytes that the links counted.

The spending is stored every few seconds, not for each request: a process that is killed forgets at most the
last `SAVE_EVERY_S` of spending. The file is one line of JSON and its checksum, replaced as a whole or not at all.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from firstline_core.clock import Clock
from firstline_core.errors import BudgetExceededError, IntegrityError
from firstline_core.routing.account import Account, Conditions, Cost, Denial, LinkTariff, Tariff, markup
from firstline_core.routing.budget import Ledger
from firstline_core.runtime.threads import REFUSED
from firstline_core.storage.files import set_aside, with_checksum, write_whole
from firstline_core.storage.structs import read_struct
from firstline_core.telemetry.logs import logger
from firstline_core.telemetry.metrics import RequestMetrics
from firstline_core.types import InferRequest
from firstline_edge.telemetry.link_traffic import Traffic, counted

log = logger(__name__)


AROUND_BYTES = 2048.0


class Books(msgspec.Struct, frozen=True):
    """All that outlives a restart.

    Args:
        ledgers: by the name of their budget.
        around_bytes: bytes that cross the link in addition to a payload, headers and answer: as many as the first call
            may take.
    """

    ledgers: dict[str, Ledger] = msgspec.field(default_factory=dict)
    around_bytes: float = AROUND_BYTES


class LedgerFile:
    """Keeps the books. May be written from any thread.

    Args:
        path: the file; its directory exists.

    Attributes:
        refusal: why they are not kept at the moment, in a sentence, or "".
        loss: that earlier ones were lost, in a sentence, or "".
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._writing = threading.Lock()
        self.refusal = ""
        self.loss = ""

    @property
    def problem(self) -> str:
        """The problem with the file, in sentences; "" if there is none."""
        return " ".join(filter(None, (self.loss, self.refusal)))

    def read(self) -> Books:
        """Returns the books as they were written last; empty if there are none or they are damaged, which is logged."""
        try:
            return read_struct(self._path, Books)
        except FileNotFoundError:
            return Books()
        except (IntegrityError, OSError) as error:
            self.loss = f"What was spent before could not be read ({error}), so that budgets start again."
            log.warning("what was spent before is not known", path=str(self._path), error=str(error))
        try:
            set_aside(self._path)
        except OSError as error:
            log.warning("cannot set a file aside", path=str(self._path), error=str(error))
        return Books()

    def write(self, text: bytes) -> None:
        """Replaces the file with encoded `Books`; a disk error is logged once, and the next call tries again."""
        try:
            with self._writing:
                write_whole(self._path, with_checksum(text))
        except OSError as error:
            self.refused(str(error.strerror))
        else:
            self.refusal = ""

    def refused(self, why: str) -> None:
        """Notes that the system or the disk did not allow a write."""
        if not self.refusal:
            log.error("cannot write down what is spent", path=str(self._path), error=why)
        self.refusal = f"What is spent cannot be written down ({why}); a restart would forget it."


SAVE_EVERY_S = 5.0

_ROW_BYTES = 256  # what an answer says of each further row
_FORGET = 0.05  # how fast a call that was larger than usual is forgotten


class Spending:
    """The device's one purse. For one thread.

    Args:
        account: its budgets.
        tariff: prices of traffic and runs.
        clock: budgets are of hours and days by the wall.
        file: keeps the books; None to forget them.
        around_bytes: estimated bytes that cross the link in addition to a payload.
        links: names of those that a request would try now, in that order.
        sense: tells battery and heat, at once.
        metered_factor: factor by which a metered link raises prices.
    """

    def __init__(
        self,
        account: Account,
        tariff: Tariff,
        clock: Clock,
        *,
        file: LedgerFile | None = None,
        around_bytes: float = AROUND_BYTES,
        links: Callable[[], Sequence[str]] = tuple,
        sense: Callable[[], Conditions] = Conditions,
        metered_factor: float = 4.0,
    ) -> None:
        self.account = account
        self.conditions = Conditions()
        self._tariff = tariff
        self._clock = clock
        self._file = file
        self._links = links
        self._sense = sense
        self._metered_factor = metered_factor
        self._around_bytes = around_bytes
        self._changed = False

    def adopt(self, account: Account, tariff: Tariff, metered_factor: float) -> None:
        """Exchanges budgets and prices.

        Calls in progress are settled with the account that paid them: a budget that both accounts have is one ledger.
        """
        self.account, self._tariff, self._metered_factor = account, tariff, metered_factor
        self._take_up(self.conditions)
        self._changed = True

    def denial(self, size_bytes: float, value: float, *, demanded: bool = True) -> Denial | None:
        """Returns why an escalation is not worth its price now; None if it is. Nothing is charged yet.

        Args:
            size_bytes: of its payload.
            value: P(edge wrong and full right).
            demanded: the contract demands it.
        """
        now_s = self._clock.wall_s()
        tariff, cost = self._link_and_cost(size_bytes, now_s)
        if tariff.metered is not self.conditions.metered:
            self._take_up(replace(self.conditions, metered=tariff.metered))
        return self.account.judge(value, cost, now_s, demanded=demanded)

    @property
    def linked(self) -> bool:
        """Whether a request would be tried now, by any link."""
        return bool(self._links())

    @property
    def ample(self) -> bool:
        """Whether no budget has a price now: then something may be sent that will perhaps not be needed."""
        now_s = self._clock.wall_s()
        return all(meter.price(now_s, demanded=False) == 0 for meter in self.account.meters.values())

    @contextmanager
    def paid(self, request: InferRequest, link: str | None = None) -> Iterator[None]:
        """Pays for one try over one link.

        Args:
            request: as it is sent.
            link: its name; None for the one that would be taken first.

        Raises:
            BudgetExceededError: too little is left; for an audit, too little in addition to what the contract demands.
        """
        now_s, account, audit = self._clock.wall_s(), self.account, request.audit is not None
        size_bytes = request.size_bytes
        around_rows_bytes = _ROW_BYTES * (request.rows - 1)
        asked_bytes = size_bytes + around_rows_bytes
        if link is None:
            _, reserved = self._link_and_cost(asked_bytes, now_s)
        else:
            reserved = self._estimate(asked_bytes, self._tariff.of_link(link))
        if (audit and not account.spares(reserved, now_s)) or not account.take(reserved, now_s, priced=not audit):
            short = account.short(reserved, now_s)
            raise BudgetExceededError(
                f"Too little is left of this device's budget for {short or 'audits'}; [budget] in its configuration "
                "says what it may send.",
                retry_after_s=account.refilled_in_s(short, now_s) or None,
            )
        self._changed = True
        answered, periods = False, account.periods
        with counted() as traffic:
            try:
                yield
                answered = True
            finally:
                if not answered or traffic.crossed:  # a link that counts nothing is taken at the estimate
                    spent = self._spent(traffic, asked_bytes, answered=answered)
                    account.settle(reserved, spent, periods, self._clock.wall_s())
                    self._changed = True

    def charge_runs(self, rows: int) -> None:
        """The edge model ran on so many rows."""
        if self._tariff.joules_per_run:
            self.account.charge(self._tariff.runs(rows), self._clock.wall_s(), priced=False)
            self._changed = True

    def _link_and_cost(self, size_bytes: float, now_s: float) -> tuple[LinkTariff, Cost]:
        """Of the first link that can be afforded, as the chain has it; else of the first of all, if there is one."""
        links, of_link = self._links(), self._tariff.of_link
        first = of_link(links[0] if links else "")
        cost = self._estimate(size_bytes, first)
        if len(links) > 1 and not self.account.affords(cost, now_s):
            for other in map(of_link, links[1:]):
                others = self._estimate(size_bytes, other)
                if self.account.affords(others, now_s):
                    return other, others
        return first, cost

    def _estimate(self, size_bytes: float, link: LinkTariff) -> Cost:
        return link.cost(size_bytes, self._around_bytes, self._tariff.money_per_request)

    def _spent(self, traffic: Traffic, size_bytes: int, *, answered: bool) -> Cost:
        """Returns the cost of a call by the links' counts; the next estimate learns from it."""
        spent = [self._tariff.of_link(link).cost(sent, received) for link, sent, received in traffic.crossed]
        requests = Cost(money=self._tariff.money_per_request if answered else 0.0)
        if answered:
            # A link may have sent it twice (over a connection that turned out to be closed), which it rarely does.
            around_bytes = traffic.last_bytes - size_bytes
            self._around_bytes = max(around_bytes, self._around_bytes + _FORGET * (around_bytes - self._around_bytes))
        return Cost(*(sum(parts) for parts in zip(requests, *spent, strict=True)))

    def _take_up(self, conditions: Conditions) -> None:
        self.conditions = conditions
        self.account.markup = markup(conditions, self._metered_factor)

    async def keep(self) -> None:
        """Looks at battery and heat, and writes down what was spent, every few seconds until it is cancelled."""
        while True:
            self._take_up(replace(self._sense(), metered=self.conditions.metered))
            await self._clock.sleep(SAVE_EVERY_S)
            if self._file is not None and self.account.meters and (self._changed or self._file.refusal):
                self._changed = False
                try:
                    await asyncio.to_thread(self._file.write, self._books())
                except REFUSED as error:  # no thread, no memory; battery and heat are looked at all the same
                    self._file.refused(str(error) or type(error).__name__)

    def save(self) -> None:
        """Writes down what was spent, if anything can be."""
        if self._file is not None and self.account.meters:
            self._file.write(self._books())

    def _books(self) -> bytes:
        """Encoded here, for what is written in a thread must not change meanwhile."""
        return msgspec.json.encode(Books(self.account.ledgers(self._clock.wall_s()), self._around_bytes))

    @property
    def problem(self) -> str:
        """Why what is spent is not written down, though it should be; or ""."""
        return self._file.problem if self._file is not None else ""

    def status(self) -> list[dict[str, Any]]:
        """Returns spent and remaining amounts and the current price of each budget."""
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


def register_metrics(metrics: RequestMetrics, spending: Spending | None) -> None:
    """Registers spent and remaining amounts and prices by budget."""
    for name, description, key in (
        ("budget_spent", "What was spent in this hour or day.", "spent"),
        ("budget_left", "What may still be spent in it.", "left"),
        ("budget_price", "What a unit is worth at the moment, 0 while the budget is ample.", "price"),
    ):
        metrics.readings(name, description, ("budget",), partial(_by_budget, spending, key))


def _by_budget(spending: Spending | None, key: str) -> dict[tuple[str, ...], float]:
    return {(budget["budget"],): budget[key] for budget in spending.status()} if spending is not None else {}
