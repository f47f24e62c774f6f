"""The requests that wait, in the order in which they are due.

A request with a deadline is due then: earliest deadline first meets all deadlines if any order does (Jackson, 1955).
One without a deadline is due when its client's fair share of the machine would complete it, as in weighted fair
queueing (Demers, Keshav and Shenker, 1989): a client with little waiting goes before one with much.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from firstline_core.clock import Timer
from firstline_core.types import LOWEST_PRIORITY, InferRequest, ModelKey
from firstline_gateway.executors.base import Outcome, Probabilities

DEFAULT_LEVEL = 2
AUDIT_LEVEL = LOWEST_PRIORITY + 1
"""Audits go below everything that a caller waits for."""

Parts = Mapping[ModelKey, float] | None
"""How much of each model's work counts, 0 for a model that is not named; None is all of all."""

Client = tuple[str, str]
"""The kind of request and its principal: audits of a client take no room from its other requests."""


def _future() -> asyncio.Future[Probabilities]:
    return asyncio.get_running_loop().create_future()


@dataclass(slots=True, eq=False)
class PendingRequest:
    """One request that was admitted.

    Args:
        key: its model.
        request: the request.
        came_s: when it was admitted.
        level: of priority; a lower one goes first if that makes no other request late.
        size_bytes: of its inputs.
        due_s: its place in the order; see above.
        latest_s: when it must be complete.
        work_s: seconds of one slot that it takes, as its share of a batch; on the executor that does most of its model.
        alone_s: seconds that a batch of it alone takes.
        foreseen_s: its predicted completion; infinite if there is no prediction.
        delays_s: by how much requests behind it complete later.
        held_up: whether it waited for something that is not predicted: a budget.
        expiry: ends it at its deadline.
        answered: its outcome.
    """

    key: ModelKey
    request: InferRequest
    came_s: float
    level: int = DEFAULT_LEVEL
    size_bytes: int = 0
    due_s: float = 0.0
    latest_s: float = 0.0
    work_s: float = 0.0
    alone_s: float = 0.0
    foreseen_s: float = float("inf")
    delays_s: float = 0.0
    held_up: bool = False
    expiry: Timer | None = None
    answered: asyncio.Future[Probabilities] = field(default_factory=_future)

    @property
    def spare_s(self) -> float:
        """How much later it may complete and still be in time. Audits have no limit."""
        return float("inf") if self.level == AUDIT_LEVEL else self.latest_s - self.foreseen_s

    def settle(self, outcome: Outcome | BaseException) -> None:
        """Answers the request, unless its caller has left."""
        if self.answered.done():
            return
        if isinstance(outcome, BaseException):
            self.answered.set_exception(outcome)
        else:
            self.answered.set_result(outcome)


@dataclass(slots=True)
class Totals:
    """Sums over some of the requests that wait."""

    requests: int = 0
    rows: int = 0
    work_s: float = 0.0
    size_bytes: int = 0

    def count(self, item: PendingRequest, sign: int) -> None:
        self.requests += sign
        self.rows += sign * item.request.rows
        self.work_s += sign * item.work_s
        self.size_bytes += sign * item.size_bytes


_NOTHING = Totals()


class PendingQueue:
    """The requests of all models that wait, by due time, with sums that would take long to count."""

    def __init__(self) -> None:
        self._items: list[PendingRequest] = []
        self._totals: dict[Client | int | None, Totals] = {}
        self._of_model: dict[ModelKey, Totals] = {}

    def __len__(self) -> int:
        return len(self._items)

    def __iter__(self) -> Iterator[PendingRequest]:
        return iter(self._items)

    @property
    def models(self) -> Iterable[ModelKey]:
        """The models that requests wait for."""
        return self._of_model

    def of(self, group: Client | int | None = None) -> Totals:
        """Returns the sums of a client or of a level; of all requests without an argument."""
        return self._totals.get(group, _NOTHING)

    def of_model(self, key: ModelKey) -> Totals:
        """Returns the sums of a model."""
        return self._of_model.get(key, _NOTHING)

    def work_s(self, parts: Parts = None, client: Client | None = None) -> float:
        """Returns the seconds of one slot that wait: so much of each model's, of one client or of all."""
        if parts is None:
            return self.of(client).work_s
        if client is None or self.of(client).requests == len(self._items):
            return sum(totals.work_s * parts.get(key, 0.0) for key, totals in self._of_model.items())
        return sum(item.work_s * parts.get(item.key, 0.0) for item in self._items if client_of(item.request) == client)

    def place(self, due_s: float, level: int, parts: Parts = None) -> tuple[float, float]:
        """Returns what a new request finds that is due then. Audits are behind all other requests.

        Args:
            due_s: its place.
            level: its level.
            parts: how much of each model's work counts.

        Returns:
            Seconds of work before it, and by how much those behind it may be delayed (infinite if there are none).
        """
        skipped = None if level == AUDIT_LEVEL else AUDIT_LEVEL
        if parts is None or skipped is None or not self.of(skipped).requests:
            behind_s = 0.0 if skipped is None else self.of(skipped).work_s
        else:
            behind_s = sum(item.work_s * parts.get(item.key, 0.0) for item in self._items if item.level == skipped)
        spare_s = float("inf")
        for item in reversed(self._items):  # most new requests are due last
            if item.due_s <= due_s:
                break
            if item.level != skipped and (part := 1.0 if parts is None else parts.get(item.key, 0.0)):
                behind_s += item.work_s * part
                spare_s = min(spare_s, item.spare_s)
        return max(0.0, self.work_s(parts) - behind_s), spare_s

    def add(self, item: PendingRequest, parts: Parts = None) -> None:
        """Puts a request into its place; those behind it, as far as they count, complete later."""
        position = bisect_right(self._items, item.due_s, key=_due_s)
        for behind in self._items[position:]:
            if parts is None or parts.get(behind.key, 0.0):
                behind.foreseen_s += item.delays_s
        self._items.insert(position, item)
        self._of_model.setdefault(item.key, Totals()).count(item, 1)
        for group in (None, client_of(item.request), item.level):
            self._totals.setdefault(group, Totals()).count(item, 1)

    def remove(self, item: PendingRequest) -> None:
        """Removes a request, if it is still there."""
        position = bisect_left(self._items, item.due_s, key=_due_s)
        while position < len(self._items) and self._items[position] is not item:
            if self._items[position].due_s > item.due_s:
                return
            position += 1
        if position == len(self._items):
            return
        del self._items[position]
        totals = self._of_model[item.key]
        totals.count(item, -1)
        if not totals.requests:  # rounding errors of `work_s` go with it
            del self._of_model[item.key]
        for group in (None, client_of(item.request), item.level):
            totals = self._totals[group]
            totals.count(item, -1)
            if not totals.requests:
                del self._totals[group]


def _due_s(item: PendingRequest) -> float:
    return item.due_s


def client_of(request: InferRequest) -> Client:
    """Returns the client whose room a request takes."""
    return "answers" if request.audit is None else "audits", request.principal


def level_of(request: InferRequest) -> int:
    """Returns the level of a request; 1 is the highest."""
    return AUDIT_LEVEL if request.audit is not None else request.priority or DEFAULT_LEVEL
