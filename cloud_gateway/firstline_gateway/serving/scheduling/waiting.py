"""What waits to run, in the order in which it is to run, and what that order foresees for each.

The order is that of due times. A request with a deadline is due then: earliest deadline first meets all deadlines
where any order does (Jackson, 1955). One without is due when its client's fair share of the machine would have it
done, as in weighted fair queueing (Demers, Keshav and Shenker, 1989): a client with little waiting goes before one with
much.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from firstline_core.clock import Timer
from firstline_core.types import LOWEST_PRIORITY, InferRequest, ModelKey
from firstline_gateway.executors.base import Probabilities

DEFAULT_LEVEL = 2
AUDIT_LEVEL = LOWEST_PRIORITY + 1
"""Audits go below everything that somebody waits for."""

Parts = Mapping[ModelKey, float] | None
"""How much of each model's work counts, 0 where it is not named; None is all of all."""

Client = tuple[str, str]
"""What it asks for, and who: its audits take no room from its other requests."""


@dataclass(slots=True, eq=False)
class Waiting:
    """One request that was let in.

    Args:
        level: of priority; lower goes first where that makes nobody late.
        due_s: its place in the order; see above.
        latest_s: when it must be done, because it was let in with that word.
        work_s: seconds of one slot that it takes, as its share of a batch; of one that does most of its model, where
            slots are not alike.
        alone_s: seconds that a batch of it alone takes.
        foreseen_s: when it would be done, as far as was known last.
        delays_s: by what those are done later who are due after it.
        came_s: when it was let in.
        held_up: whether it waited for what no prediction knows of: a budget.
    """

    key: ModelKey
    request: InferRequest
    level: int
    size_bytes: int
    due_s: float
    latest_s: float
    work_s: float
    alone_s: float
    foreseen_s: float
    answered: asyncio.Future[Probabilities]
    expiry: Timer | None = None
    delays_s: float = 0.0
    came_s: float = 0.0
    held_up: bool = False

    @property
    def spare_s(self) -> float:
        """What it can be put off by and still be in time. Audits promise nothing to anybody."""
        return float("inf") if self.level == AUDIT_LEVEL else self.latest_s - self.foreseen_s


@dataclass(slots=True)
class Tally:
    """How much of something waits."""

    requests: int = 0
    rows: int = 0
    work_s: float = 0.0
    size_bytes: int = 0

    def count(self, item: Waiting, sign: int) -> None:
        self.requests += sign
        self.rows += sign * item.request.rows
        self.work_s += sign * item.work_s
        self.size_bytes += sign * item.size_bytes


_NOTHING = Tally()


class Queue:
    """All that waits, of all models, by due time; with sums that would take long to count."""

    def __init__(self) -> None:
        self._items: list[Waiting] = []
        self._tallies: dict[Client | int | None, Tally] = {}
        self._of_model: dict[ModelKey, Tally] = {}

    def __len__(self) -> int:
        return len(self._items)

    def __iter__(self) -> Iterator[Waiting]:
        return iter(self._items)

    @property
    def models(self) -> Iterable[ModelKey]:
        """Those of which anything waits."""
        return self._of_model

    @property
    def last(self) -> Waiting:
        """Whoever is due last; something waits."""
        return self._items[-1]

    def of(self, whose: Client | int | None = None) -> Tally:
        """What waits of a client or of a level; of all together without an argument."""
        return self._tallies.get(whose, _NOTHING)

    def of_model(self, key: ModelKey) -> Tally:
        """What waits of a model."""
        return self._of_model.get(key, _NOTHING)

    def work_s(self, parts: Parts = None, client: Client | None = None) -> float:
        """Seconds of one slot that wait: of so much of each model's, and of one client's or of all."""
        if parts is None:
            return self.of(client).work_s
        if client is None or self.of(client).requests == len(self._items):
            return sum(tally.work_s * parts.get(key, 0.0) for key, tally in self._of_model.items())
        return sum(item.work_s * parts.get(item.key, 0.0) for item in self._items if client_of(item.request) == client)

    def place(self, due_s: float, level: int, parts: Parts = None) -> tuple[float, float]:
        """What a newcomer would find that is due then. Audits are before no others.

        Args:
            due_s: its place.
            level: its level.
            parts: how much of each model's work counts.

        Returns:
            Seconds of work before it, and by how much those behind it can be put off (infinite where there are none).
        """
        skipped = None if level == AUDIT_LEVEL else AUDIT_LEVEL
        if parts is None or skipped is None or not self.of(skipped).requests:
            behind_s = 0.0 if skipped is None else self.of(skipped).work_s
        else:
            behind_s = sum(item.work_s * parts.get(item.key, 0.0) for item in self._items if item.level == skipped)
        spare_s = float("inf")
        for item in reversed(self._items):  # most newcomers are due last
            if item.due_s <= due_s:
                break
            if item.level != skipped and (part := 1.0 if parts is None else parts.get(item.key, 0.0)):
                behind_s += item.work_s * part
                spare_s = min(spare_s, item.spare_s)
        return max(0.0, self.work_s(parts) - behind_s), spare_s

    def add(self, item: Waiting, parts: Parts = None) -> None:
        """Puts it into its place; those behind it, as far as they count, are done later by what it delays them."""
        position = bisect_right(self._items, item.due_s, key=_due_s)
        for behind in self._items[position:]:
            if parts is None or parts.get(behind.key, 0.0):
                behind.foreseen_s += item.delays_s
        self._items.insert(position, item)
        self._of_model.setdefault(item.key, Tally()).count(item, 1)
        for whose in (None, client_of(item.request), item.level):
            self._tallies.setdefault(whose, Tally()).count(item, 1)

    def remove(self, item: Waiting) -> bool:
        """Takes it out; False where it was out already."""
        position = bisect_left(self._items, item.due_s, key=_due_s)
        while position < len(self._items) and self._items[position] is not item:
            if self._items[position].due_s > item.due_s:
                return False
            position += 1
        if position == len(self._items):
            return False
        del self._items[position]
        tally = self._of_model[item.key]
        tally.count(item, -1)
        if not tally.requests:  # rounding errors of `work_s` go with it
            del self._of_model[item.key]
        for whose in (None, client_of(item.request), item.level):
            tally = self._tallies[whose]
            tally.count(item, -1)
            if not tally.requests:
                del self._tallies[whose]
        return True


def _due_s(item: Waiting) -> float:
    return item.due_s


def client_of(request: InferRequest) -> Client:
    """Whose room a request takes."""
    return "answers" if request.audit is None else "audits", request.principal


def level_of(request: InferRequest) -> int:
    """The level of a request: 1 is the highest."""
    return AUDIT_LEVEL if request.audit is not None else request.priority or DEFAULT_LEVEL
