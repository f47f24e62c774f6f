"""The requests that wait, in the order in which they are due, and the choice of the next batch. Pure.

A request with a deadline is due then: earliest deadline first meets all deadlines if any order does (Jackson, 1955).
One without a deadline is due when its client's fair share of the machine would complete it, as in weighted fair
queueing (Demers, Keshav and Shenker, 1989): a client with little waiting goes before one with much.
"""

from __future__ import annotations

import asyncio
import math
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter
from types import MappingProxyType
from typing import NamedTuple

from msgspec import Struct

from firstline_core.clock import Timer
from firstline_core.types import LOWEST_PRIORITY, Arrays, InferRequest, ModelKey
from firstline_gateway.executors.base import Outcome
from firstline_gateway.executors.dispatch.forecast import Times
from firstline_gateway.executors.dispatch.placement import IdleShare

DEFAULT_LEVEL = 2
AUDIT_LEVEL = LOWEST_PRIORITY + 1
"""Audits go below everything that a caller waits for."""

Weights = Mapping[ModelKey, float]
"""The part of each model's work that counts, 0 to 1; 0 for a model that is not named."""
NO_WEIGHTS: Weights = MappingProxyType({})

Client = tuple[str, str]
"""The kind of request and its principal; see `PendingRequest.client`."""
Group = Client | int | None
"""A client, `AUDIT_LEVEL` for the audits of all clients, or None for all requests."""

_due_s = attrgetter("due_s")
_level = attrgetter("level")


class PendingRequest(Struct, eq=False):
    """One request that was admitted.

    Args:
        key: its model.
        request: the request.
        inputs: that the model reads, by name, or the rows prepared from them.
        rows: of the request.
        level: of priority; a lower one goes first if that makes no other request late.
        admitted_s: when it was admitted.
        due_s: its place in the order; see above.
        latest_s: when it must be complete.
        is_predictable: whether its completion shows how good predictions are: not of an audit, nor on the event
            loop.
        answered: its outcome.
        start_by_s: it cannot complete by its deadline if it starts later; infinite without a deadline.
        size_bytes: of its inputs; counted if it has to wait.
        work_s: seconds of one slot that it takes, as its share of a batch; on the executor that does most of its model.
        predicted_s: its predicted completion; infinite before it is admitted.
        delays_s: by how much requests behind it complete later.
        expiry: ends it at its deadline.
    """

    key: ModelKey
    request: InferRequest
    inputs: Arrays
    rows: int
    level: int
    admitted_s: float
    due_s: float
    latest_s: float
    is_predictable: bool
    answered: asyncio.Future[Arrays]
    start_by_s: float = float("inf")
    size_bytes: int = 0
    work_s: float = 0.0
    predicted_s: float = float("inf")
    delays_s: float = 0.0
    expiry: Timer | None = None

    @property
    def client(self) -> Client:
        """The client that takes the room: audits of a client take none from its other requests."""
        return "answers" if self.request.audit is None else "audits", self.request.principal

    @property
    def slack_s(self) -> float:
        """How much later it may complete and still be in time. Audits have no limit."""
        return float("inf") if self.level == AUDIT_LEVEL else self.latest_s - self.predicted_s

    def settle(self, outcome: Outcome | BaseException) -> None:
        """Answers the request, unless its caller has left."""
        if self.expiry is not None:
            self.expiry.cancel()
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
    work_s: float = 0.0
    size_bytes: int = 0


NOTHING = Totals()


class PendingQueue:
    """The requests of all models that wait, by due time, with sums that would take long to count.

    Attributes:
        rows: by model; only models that requests wait for.
    """

    def __init__(self) -> None:
        self._items: list[PendingRequest] = []
        self._totals: dict[ModelKey, dict[Group, Totals]] = {}
        self._uncounted: list[PendingRequest] = []  # most start before a sum is asked for
        self.rows: dict[ModelKey, int] = {}

    def __len__(self) -> int:
        return len(self._items)

    def __iter__(self) -> Iterator[PendingRequest]:
        return iter(self._items)

    def of(self, key: ModelKey, group: Group = None) -> Totals:
        """Returns the sums of one model; of a client, of audits, or of all requests."""
        totals = self._counted().get(key)
        return NOTHING if totals is None else totals.get(group, NOTHING)

    def size_bytes(self, group: Group = None) -> int:
        """Returns the bytes of a client, or of all requests."""
        return sum([totals.get(group, NOTHING).size_bytes for totals in self._counted().values()])

    def requests(self, group: Group) -> int:
        """Returns the number of requests of a client."""
        return sum([totals.get(group, NOTHING).requests for totals in self._counted().values()])

    def work_s(self, weights: Weights, group: Group = None) -> float:
        """Returns the seconds of one slot that wait, of each model the part that counts."""
        return sum([self.of(key, group).work_s * weight for key, weight in weights.items()])

    def place(self, due_s: float, level: int, weights: Weights) -> tuple[float, float]:
        """Returns what a new request finds that is due then. Audits are behind all other requests.

        Args:
            due_s: its place.
            level: its level.
            weights: of the models' work.

        Returns:
            Seconds of work before it, and by how much those behind it may be delayed (infinite if there are none).
        """
        skipped = None if level == AUDIT_LEVEL else AUDIT_LEVEL
        behind_s = 0.0 if skipped is None else self.work_s(weights, skipped)
        slack_s = float("inf")
        for item in reversed(self._items):  # most new requests are due last
            if item.due_s <= due_s:
                break
            if item.level != skipped and (weight := weights.get(item.key, 0.0)):
                behind_s += item.work_s * weight
                slack_s = min(slack_s, item.slack_s)
        return max(0.0, self.work_s(weights) - behind_s), slack_s

    def add(self, item: PendingRequest, weights: Weights = NO_WEIGHTS) -> None:
        """Puts a request into its place; those behind it whose work counts complete later."""
        if not self._items or self._items[-1].due_s <= item.due_s:
            self._items.append(item)
        else:
            position = bisect_right(self._items, item.due_s, key=_due_s)
            for behind in self._items[position:]:
                if weights.get(behind.key, 0.0):
                    behind.predicted_s += item.delays_s
            self._items.insert(position, item)
        self._uncounted.append(item)
        self.rows[item.key] = self.rows.get(item.key, 0) + item.rows

    def remove(self, item: PendingRequest) -> None:
        """Removes a request, if it is still there."""
        for position in range(bisect_left(self._items, item.due_s, key=_due_s), len(self._items)):
            if self._items[position] is item:
                self.take([item])
                return
            if self._items[position].due_s > item.due_s:
                return

    def take(self, batch: Sequence[PendingRequest]) -> None:
        """Removes the requests of a batch of one model, all of which are there."""
        if batch == self._items:
            self._items, self._uncounted, self._totals, self.rows = [], [], {}, {}
            return
        taken = set(batch)
        for item in taken.difference(self._uncounted):
            self._count(item, -1)
        self._uncounted = [item for item in self._uncounted if item not in taken]
        self._items = [item for item in self._items if item not in taken]
        key = batch[0].key
        self.rows[key] -= sum([item.rows for item in batch])
        if not self.rows[key]:
            del self.rows[key]

    def _counted(self) -> dict[ModelKey, dict[Group, Totals]]:
        for item in self._uncounted:
            self._count(item, 1)
        self._uncounted.clear()
        return self._totals

    def _count(self, item: PendingRequest, sign: int) -> None:
        of_model = self._totals.setdefault(item.key, {})
        for group in (None, item.client) if item.level != AUDIT_LEVEL else (None, item.client, AUDIT_LEVEL):
            totals = of_model.get(group)
            if totals is None:
                totals = of_model[group] = Totals()
            totals.requests += sign
            totals.work_s += sign * item.work_s
            totals.size_bytes += sign * item.size_bytes
            if not totals.requests:  # rounding errors of `work_s` go with it
                del of_model[group]
        if not of_model:
            del self._totals[item.key]


def by_level(items: Iterable[PendingRequest]) -> list[PendingRequest]:
    """Returns requests by level, those of one level in their order."""
    return sorted(items, key=_level)


class Choice(NamedTuple):
    """The requests to take out of the queue now."""

    batch: list[PendingRequest]  # of one model, the first first
    too_late: list[PendingRequest]  # they cannot complete by their deadline, so they are not started

    def note_delays(self, waiting: Sequence[PendingRequest]) -> None:
        """Notes that requests that are due before others of the batch, and are not in it, complete later by those."""
        if self.batch == waiting[: len(self.batch)]:
            return
        batch, later_s = set(self.batch), 0.0
        for item in reversed(waiting):
            if item in batch:
                later_s += item.work_s
            else:
                item.predicted_s += later_s


def choose_batch(
    waiting: Sequence[PendingRequest],
    times: Callable[[ModelKey], Times],
    *,
    now_s: float,
    margin_s: float,
    max_rows: int,
) -> Choice:
    """Returns the next batch: earliest deadline first, and as many rows of that model as gain by it.

    A batch is filled by level if requests of its model that are due earlier can wait for the next one. It grows while
    it makes no request late, be it in the batch or of another model.

    Args:
        waiting: the requests that may run, by due time.
        times: returns those of a model, where its next batch is placed.
        now_s: the present.
        margin_s: the usual delay of predictions.
        max_rows: of a batch; a larger request is a batch of its own.

    Returns:
        An empty batch if every request is too late.
    """
    too_late = [item for item in waiting if item.start_by_s < now_s]
    if too_late:
        left = set(too_late)
        waiting = [item for item in waiting if item not in left]
    if len(waiting) < 2:
        return Choice(list(waiting), too_late)
    first = _first(waiting, times, now_s, margin_s)
    by_due = [item for item in waiting if item.key == first.key and item is not first]
    others_s = [item.slack_s for item in waiting if item.key != first.key] if len(by_due) + 1 < len(waiting) else []
    size = _Size(times(first.key), max_rows, now_s + margin_s, min((s for s in others_s if s >= 0), default=math.inf))
    if any(item.level != first.level for item in by_due) and (ranked := by_level(by_due)) != by_due:
        batch = _filled(first, ranked, size)
        last = max((at for at, item in enumerate(by_due) if item in batch), default=0)
        batch_s = size.times.seconds(row_sum(batch)) + margin_s
        if not any(0 <= item.slack_s < batch_s for item in by_due[:last] if item not in batch):
            return Choice(batch, too_late)
    return Choice(_filled(first, by_due, size), too_late)


def _first(
    waiting: Sequence[PendingRequest], times: Callable[[ModelKey], Times], now_s: float, margin_s: float
) -> PendingRequest:
    """Returns the first request of the batch.

    It is the earliest of the highest level, or the earliest of all if the former would make one before it late. One
    that its placement does not complete in time goes first only if there is no other: a better executor may become
    free.
    """
    in_time, key, rows, ends_s = [], None, 0, 0.0
    for item in waiting:
        if item.key is not key or item.rows != rows:  # most requests are of the model and the rows of the one before
            key, rows = item.key, item.rows
            ends_s = now_s + times(key).seconds(rows)
        if ends_s <= item.latest_s:
            in_time.append(item)
    in_time = in_time or list(waiting)
    highest = min(in_time, key=_level)
    delay_s = times(highest.key).seconds(highest.rows) + margin_s
    passed = in_time[: in_time.index(highest)]
    return in_time[0] if any(item.slack_s < delay_s for item in passed) else highest


class _Size(NamedTuple):
    """The bounds of a batch: its times, its rows, when it begins, and by how much it may delay other models."""

    times: Times
    max_rows: int
    begins_s: float
    others_slack_s: float


def _filled(first: PendingRequest, fitting: Sequence[PendingRequest], size: _Size) -> list[PendingRequest]:
    """Returns the largest batch of the first request and of those that follow which makes no request late."""
    times, most = size.times, size.times.worthwhile_rows(size.max_rows)
    batch, rows = [first], first.rows
    for item in fitting:
        if rows + item.rows > most:
            break
        batch.append(item)
        rows += item.rows
    least_s = times.seconds(first.rows)
    while len(batch) > 1:
        seconds = times.seconds(rows)
        latest_s = min([item.latest_s for item in batch if item is first or item.level != AUDIT_LEVEL])
        if size.begins_s + seconds <= latest_s and seconds - least_s <= size.others_slack_s:
            break
        rows -= batch.pop().rows
    return batch


def row_sum(items: Iterable[PendingRequest]) -> int:
    """Returns the rows of requests."""
    return sum([item.rows for item in items])


def batch_for_idle(items: Iterable[PendingRequest], idle: IdleShare, now_s: float) -> list[PendingRequest]:
    """Returns the requests for an idle executor: after those for the busy ones, and in time there."""
    found: list[PendingRequest] = []
    rows, skip_rows = 0, idle.skip_rows
    for item in by_level(items):
        if skip_rows > 0:
            skip_rows -= item.rows
            continue
        more_rows = rows + item.rows
        if found and more_rows > idle.times.most_rows:
            break
        if item.slack_s >= 0 and item.latest_s < now_s + idle.times.seconds(more_rows):
            continue
        found.append(item)
        rows = more_rows
    return found
