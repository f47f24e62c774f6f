"""The requests that wait, in the order in which they are due, and the choice of the next batch. Pure.

A request with a deadline is due then: earliest deadline first meets all deadlines if any order does (Jackson, 1955).
One without a deadline is due when its client's fair share of the machine would complete it, as in weighted fair
queueing (Demers, Keshav and Shenker, 1989): a client with little waiting goes before one with much.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from functools import cache, partial
from operator import attrgetter
from types import MappingProxyType
from typing import NamedTuple

from firstline_core.clock import Timer
from firstline_core.types import LOWEST_PRIORITY, InferRequest, ModelKey
from firstline_gateway.executors.base import Outcome, Probabilities
from firstline_gateway.executors.dispatch.placement import IdlePart, Times

DEFAULT_LEVEL = 2
AUDIT_LEVEL = LOWEST_PRIORITY + 1
"""Audits go below everything that a caller waits for."""

Weights = Mapping[ModelKey, float]
"""The part of each model's work that counts, 0 to 1; 0 for a model that is not named."""
NO_WEIGHTS: Weights = MappingProxyType({})

Client = tuple[str, str]
"""The kind of request and its principal: audits of a client take no room from its other requests."""
Group = Client | int | None
"""A client, a level, or all requests."""

_due_s = attrgetter("due_s")
_level = attrgetter("level")


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

    Attributes:
        rows: of the request.
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
    rows: int = field(init=False)

    def __post_init__(self) -> None:
        self.rows = self.request.rows

    @property
    def spare_s(self) -> float:
        """How much later it may complete and still be in time. Audits have no limit."""
        return float("inf") if self.level == AUDIT_LEVEL else self.latest_s - self.foreseen_s

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
    rows: int = 0
    work_s: float = 0.0
    size_bytes: int = 0

    def count(self, item: PendingRequest, sign: int) -> None:
        self.requests += sign
        self.rows += sign * item.rows
        self.work_s += sign * item.work_s
        self.size_bytes += sign * item.size_bytes


NOTHING = Totals()


class PendingQueue:
    """The requests of all models that wait, by due time, with sums that would take long to count."""

    def __init__(self) -> None:
        self._items: list[PendingRequest] = []
        self._totals: defaultdict[tuple[Group, ModelKey | None], Totals] = defaultdict(Totals)

    def __len__(self) -> int:
        return len(self._items)

    def __iter__(self) -> Iterator[PendingRequest]:
        return iter(self._items)

    @property
    def models(self) -> list[ModelKey]:
        """The models that requests wait for."""
        return [key for group, key in self._totals if group is None and key is not None]

    def of(self, group: Group = None, key: ModelKey | None = None) -> Totals:
        """Returns the sums of a client or a level, or of all requests; of one model, or of all models."""
        return self._totals.get((group, key), NOTHING)

    def work_s(self, weights: Weights, group: Group = None) -> float:
        """Returns the seconds of one slot that wait, of each model the part that counts."""
        return sum([self.of(group, key).work_s * weight for key, weight in weights.items()])

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
        spare_s = float("inf")
        for item in reversed(self._items):  # most new requests are due last
            if item.due_s <= due_s:
                break
            if item.level != skipped and (weight := weights.get(item.key, 0.0)):
                behind_s += item.work_s * weight
                spare_s = min(spare_s, item.spare_s)
        return max(0.0, self.work_s(weights) - behind_s), spare_s

    def add(self, item: PendingRequest, weights: Weights = NO_WEIGHTS) -> None:
        """Puts a request into its place; those behind it whose work counts complete later."""
        position = bisect_right(self._items, item.due_s, key=_due_s)
        for behind in self._items[position:]:
            if weights.get(behind.key, 0.0):
                behind.foreseen_s += item.delays_s
        self._items.insert(position, item)
        self._count(item, 1)

    def remove(self, item: PendingRequest) -> None:
        """Removes a request, if it is still there."""
        for position in range(bisect_left(self._items, item.due_s, key=_due_s), len(self._items)):
            if self._items[position] is item:
                del self._items[position]
                self._count(item, -1)
                return
            if self._items[position].due_s > item.due_s:
                return

    def _count(self, item: PendingRequest, sign: int) -> None:
        for group in (None, client_of(item.request), item.level):
            for key in (item.key, None):
                totals = self._totals[group, key]
                totals.count(item, sign)
                if not totals.requests:  # rounding errors of `work_s` go with it
                    del self._totals[group, key]


def client_of(request: InferRequest) -> Client:
    """Returns the client whose room a request takes."""
    return "answers" if request.audit is None else "audits", request.principal


def level_of(request: InferRequest) -> int:
    """Returns the level of a request; 1 is the highest."""
    return AUDIT_LEVEL if request.audit is not None else request.priority or DEFAULT_LEVEL


def by_level(items: Iterable[PendingRequest]) -> list[PendingRequest]:
    """Returns requests by level, those of one level in their order."""
    return sorted(items, key=_level)


class Choice(NamedTuple):
    """The requests to take out of the queue now."""

    batch: list[PendingRequest]  # of one model, the first first
    hopeless: list[PendingRequest]  # they cannot complete by their deadline, so they are not started
    put_off: list[tuple[PendingRequest, float]]  # passed over for the batch, and the seconds of delay


def choose(
    queue: Iterable[PendingRequest],
    times: Callable[[ModelKey], Times],
    *,
    now_s: float,
    margin_s: float,
    max_rows: int,
    full: AbstractSet[ModelKey] = frozenset(),
) -> Choice:
    """Returns the next batch.

    Args:
        queue: the requests that wait, by due time.
        times: returns those of a model, where its next batch is placed.
        now_s: the present.
        margin_s: the usual delay of predictions.
        max_rows: of a batch; a larger request is a batch of its own.
        full: models at their limit of batches, whose requests keep waiting.

    Returns:
        An empty batch if only hopeless requests wait, or requests of models at their limit.
    """
    candidates: list[PendingRequest] = []
    hopeless: list[PendingRequest] = []
    for item in queue:
        if item.request.deadline_s is not None and item.latest_s < now_s + item.alone_s:
            hopeless.append(item)
        elif item.key not in full:
            candidates.append(item)
    if not candidates:
        return Choice([], hopeless, [])
    first, put_off = _first(candidates, times, now_s, margin_s)
    of_first, begins_s = times(first.key), now_s + margin_s
    by_due = [item for item in candidates if item.key == first.key and item is not first]
    spare_s = {id(item): item.spare_s for item in candidates} | {id(item): item.spare_s - s for item, s in put_off}
    fill = partial(
        _filled,
        first,
        candidates=candidates,
        spare_s=spare_s,
        times=of_first,
        begins_s=begins_s,
        most_rows=of_first.worthwhile_rows(max_rows),
    )
    filled = fill(by_due)
    if (ranked := by_level(by_due)) != by_due:
        other = fill(ranked)
        # A level never delays other models.
        if len(other.passed) <= len(filled.passed):
            taken = set(other.batch)
            last = max((at for at, item in enumerate(by_due) if item in taken), default=0)
            left = [item for item in by_due[:last] if item not in taken]
            # Requests of its model that are due earlier wait for the next batch, if they can.
            if not any(0 <= spare_s[id(item)] < of_first.seconds(other.rows) + margin_s for item in left):
                filled = other
                put_off += [
                    (item, sum(each.work_s for each in other.batch if each.due_s > item.due_s)) for item in left
                ]
    put_off += [(item, filled.put_off_s) for item in filled.passed]
    return Choice(filled.batch, hopeless, put_off)


def _first(
    candidates: list[PendingRequest], times: Callable[[ModelKey], Times], now_s: float, margin_s: float
) -> tuple[PendingRequest, list[tuple[PendingRequest, float]]]:
    """Returns the first request of the batch, and those that are delayed by it.

    It is the earliest of the highest level, or the earliest of all if the former would make one before it late. One
    that its placement does not complete in time goes first only if there is no other: a better executor may become
    free.
    """
    alone_s = cache(lambda key, rows: times(key).seconds(rows))  # most requests have the rows of another one
    in_time = [item for item in candidates if now_s + alone_s(item.key, item.rows) <= item.latest_s]
    candidates = in_time or candidates
    highest = min(candidates, key=_level)
    delay_s = alone_s(highest.key, highest.rows)
    passed = candidates[: candidates.index(highest)]
    if any(item.spare_s < delay_s + margin_s for item in passed):
        return candidates[0], []
    return highest, [(item, delay_s) for item in passed]


class _Filled(NamedTuple):
    batch: list[PendingRequest]
    rows: int
    passed: list[PendingRequest]  # of other models, due before a request of the batch
    put_off_s: float  # the delay of those


def _filled(
    first: PendingRequest,
    fitting: list[PendingRequest],
    *,
    candidates: list[PendingRequest],
    spare_s: Mapping[int, float],
    times: Times,
    begins_s: float,
    most_rows: int,
) -> _Filled:
    """Returns the batch of `first`: as many rows as gain by it, while no request becomes late.

    Args:
        first: the first request, which always runs.
        fitting: of its model, in the order in which to take them.
        candidates: of all models, by due time.
        spare_s: by the identity of each, the delay that it tolerates.
        times: of its model.
        begins_s: the present, plus the usual delay of predictions.
        most_rows: that gain by being a batch.
    """
    turns = {id(item): turn for turn, item in enumerate(candidates)}
    others = [item for item in candidates if item.key != first.key]
    batch, rows, latest_s = [first], first.rows, first.latest_s
    put_off_s, least_s, passed = 0.0, float("inf"), 0
    for item in fitting:
        if rows >= most_rows:
            break
        while passed < len(others) and turns[id(others[passed])] < turns[id(item)]:
            if (left_s := spare_s[id(others[passed])]) >= 0:  # a late request does not become late by this
                least_s = min(least_s, left_s)
            passed += 1
        more_rows = rows + item.rows
        more_s = max(0.0, times.seconds(more_rows) - times.seconds(rows)) if passed else 0.0
        latest_s = min(latest_s, item.latest_s if item.level != AUDIT_LEVEL else latest_s)
        if (
            more_rows > most_rows
            or begins_s + times.seconds(more_rows) > latest_s
            or (passed and put_off_s + more_s > least_s)
        ):
            break
        batch.append(item)
        rows, put_off_s = more_rows, put_off_s + more_s
    return _Filled(batch, rows, others[:passed], put_off_s)


def part_for(items: Iterable[PendingRequest], idle: IdlePart, now_s: float) -> list[PendingRequest]:
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
        if item.spare_s >= 0 and item.latest_s < now_s + idle.times.seconds(more_rows):
            continue
        found.append(item)
        rows = more_rows
    return found
