"""Decides at once whether a request is admitted; an admitted request is not removed later to make room for others.

A request that can start now is admitted. Otherwise it has to pass these checks, in this order:

1. Is there space for it to wait, for its client and its level (`Shares`)?
2. Can its model complete it in the time that it allows?
3. Does its turn come in time, before its client and its level take more than their share?
4. Do all requests that were admitted earlier and run after it stay in time?

A request that fails a check is refused immediately, with the time after which there should be room. Its caller can do
something else, and no work is spent on an answer that comes too late. Under overload this prevents the collapse of
earliest-deadline-first, in which every request runs and every one is late.

The requests that wait are kept by due time, with the sums that these checks need.

The times of batches are learned (`executors/dispatch/member.py`), and so is the error of the predictions
(`Margin`). For a model that never ran nothing can be predicted: the checks 2 to 4 are skipped, and no more requests
with a deadline may wait for it than there are slots.
"""

from __future__ import annotations

import asyncio
import math
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import NamedTuple

from msgspec import Struct

from firstline_core.clock import Timer
from firstline_core.errors import DeadlineExceededError, QueueFullError
from firstline_core.routing.quantiles import DecayedQuantiles
from firstline_core.telemetry.wording import counted, rounded
from firstline_core.types import DEFAULT_PRIORITY, LOWEST_PRIORITY, Arrays, InferRequest, ModelKey, payload_bytes
from firstline_gateway.executors.base import Outcome
from firstline_gateway.executors.dispatch.placement import BatchForecast, CompletionForecast, Times

# The retry time if nothing can be predicted.
_FIRST_RETRY_S = 1.0
# The share of what a request allows that its own batch may take; the rest is for waiting.
_BATCH_SHARE = 0.25
# Pause before a model that seems too slow is tried again on an idle machine, as a multiple of its batch time.
_PROBE_PAUSES = 10.0
# The quantile of the delays of predictions for which room is kept free, and the least and most of it.
_QUANTILE = 0.99
_LEAST_SHARE, _MOST_SHARE = 0.5, 0.75
# The part of the room that each level may fill if there are requests above it. Audits are limited without them, too: an
# audit is never urgent, and no caller waits for its answer.
_LEAVES, _AUDITS_SHARE = 0.75, 0.5

EXPECTED_S = 10.0
"""Time after a request for which the next one of its client, or level, is expected."""

AUDIT_LEVEL = LOWEST_PRIORITY + 1
"""Audits go below everything that a caller waits for."""

Weights = Mapping[ModelKey, float]
"""The part of each model's work that counts, 0 to 1; 0 for a model that is not named."""

Client = tuple[str, str]
"""The kind of request and its principal; see `PendingRequest.client`."""
Group = Client | int | None
"""A client, `AUDIT_LEVEL` for the audits of all clients, or None for all requests."""

_due_s = attrgetter("due_s")


class PendingRequest(Struct, eq=False):
    """One request that was admitted.

    Args:
        key: its model.
        request: the request.
        inputs: that the model reads, by name, or the rows prepared from them.
        rows: of the request.
        level: of priority; a lower one goes first if that makes no other request late.
        admitted_s: when it was admitted.
        due_s: its place in the order; see `order`.
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
        if not self.answered.done():
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
        self._totals: dict[tuple[ModelKey, Group], Totals] = {}
        self._uncounted: list[PendingRequest] = []  # most start before a sum is asked for
        self.rows: dict[ModelKey, int] = {}

    def __len__(self) -> int:
        return len(self._items)

    def __iter__(self) -> Iterator[PendingRequest]:
        return iter(self._items)

    def of(self, key: ModelKey, group: Group = None) -> Totals:
        """Returns the sums of one model; of a client, of audits, or of all requests."""
        for item in self._uncounted:
            self._count(item, 1)
        self._uncounted.clear()
        return self._totals.get((key, group), NOTHING)

    def size_bytes(self, group: Group = None) -> int:
        """Returns the bytes of a client, or of all requests."""
        return sum([self.of(key, group).size_bytes for key in self.rows])

    def requests(self, group: Group) -> int:
        """Returns the number of requests of a client."""
        return sum([self.of(key, group).requests for key in self.rows])

    def work_s(self, weights: Weights, group: Group = None) -> float:
        """Returns the seconds of one slot that wait, of each model the part that counts."""
        return sum([self.of(key, group).work_s * weight for key, weight in weights.items()])

    def place(self, due_s: float, level: int, weights: Weights) -> tuple[float, float]:
        """Returns the work before a new request, and the slack of the requests behind it. Audits are behind all others.

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

    def add(self, item: PendingRequest, weights: Weights) -> None:
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
        if item in self._items:
            self.take([item])

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

    def _count(self, item: PendingRequest, sign: int) -> None:
        for group in (None, item.client) if item.level != AUDIT_LEVEL else (None, item.client, AUDIT_LEVEL):
            totals = self._totals.setdefault((item.key, group), Totals())
            totals.requests += sign
            totals.work_s += sign * item.work_s
            totals.size_bytes += sign * item.size_bytes
            if not totals.requests:  # rounding errors of `work_s` go with it
                del self._totals[item.key, group]


@dataclass(frozen=True, slots=True)
class Bounds:
    """How much may wait.

    Args:
        requests: for one model.
        size_bytes: of tensors, all models together.
        seconds: that a request without a deadline may have to wait.
        batch_rows: the most rows of one batch.
    """

    requests: int
    size_bytes: int
    seconds: float
    batch_rows: int


class Backlog(NamedTuple):
    """The work before a new request that has to wait.

    Args:
        completion: of its model's work.
        weights: how much of what waits, by model, comes before it on its executors.
        alone_s: the least seconds of a batch of it alone; None if nothing is known of its model.
    """

    completion: CompletionForecast
    weights: Weights
    alone_s: float | None


class Admission:
    """Decides on new requests. Belongs to one event loop.

    Args:
        queue: the requests that wait; only read here.
        bounds: how much may wait; it may change.
    """

    def __init__(self, queue: PendingQueue, bounds: Bounds) -> None:
        self._queue = queue
        self.bounds = bounds
        self.shares = Shares()
        self.margin = Margin()

    def new_request(
        self, key: ModelKey, request: InferRequest, now_s: float, inputs: Arrays | None = None
    ) -> PendingRequest:
        """Returns a new request with its place in the order; one of the other methods then admits it.

        Args:
            key: its model.
            request: with its deadline on the clock of `now_s`.
            now_s: the present.
            inputs: see `PendingRequest`; None for those of the request.
        """
        is_audit, rows = request.audit is not None, request.rows
        level = AUDIT_LEVEL if is_audit else request.priority or DEFAULT_PRIORITY
        latest_s = now_s + self.bounds.seconds if request.deadline_s is None else request.deadline_s
        inputs, answered = inputs or request.arrays, asyncio.get_running_loop().create_future()
        return PendingRequest(key, request, inputs, rows, level, now_s, latest_s, latest_s, not is_audit, answered)

    def check_start(self, item: PendingRequest, now_s: float, alone_s: float, done_s: float, ended_s: float) -> None:
        """Admits a request that starts at once, or in this turn of the event loop.

        Args:
            item: the request.
            now_s: the present.
            alone_s: the seconds of a batch of it alone.
            done_s: the seconds until it is complete.
            ended_s: when a batch of its model ended last.

        Raises:
            DeadlineExceededError: the model takes longer than the request allows.
        """
        self.shares.note(item.request.principal, item.level, now_s)
        # What runs is measured: a wrong estimate must not exclude a model forever.
        item.predicted_s = now_s + done_s
        if item.request.deadline_s is not None:
            if now_s - ended_s <= _PROBE_PAUSES * alone_s:
                _check_possible(item, now_s, alone_s)
            item.start_by_s = item.request.deadline_s

    def check_wait(self, item: PendingRequest, now_s: float, backlog: Backlog) -> None:
        """Admits a request that has to wait; it may be due earlier afterwards.

        Args:
            item: the request.
            now_s: the present.
            backlog: the work that runs and waits before it.

        Raises:
            QueueFullError: there is no room; `retry_after_s` is when there should be.
            DeadlineExceededError: the model takes longer than the request allows.
        """
        self.shares.note(item.request.principal, item.level, now_s)
        item.size_bytes = payload_bytes(item.inputs.values())
        rows, times = item.rows, backlog.completion.times
        batch_rows = self._likely_batch_rows(item.key, rows, item.latest_s - now_s, times)
        batches = backlog.completion.of(batch_rows)
        self._check_space(item, backlog, batches)
        if backlog.alone_s is None:
            self._check_unmeasured(item, len(backlog.completion.lanes))
        mine_s = self._queue.work_s(backlog.weights, item.client)
        if item.request.deadline_s is None:
            # When its client's equal part of the machine would complete it.
            equally_s = batches.wait_s(self.shares.clients * (mine_s + times.seconds(rows)))
            item.due_s = now_s + min(self.bounds.seconds, equally_s)
        ahead_s, slack_s = self._queue.place(item.due_s, item.level, backlog.weights)
        done_s, speed = batches.done(ahead_s)
        item.work_s = rows * batches.seconds / batch_rows
        item.delays_s, item.predicted_s = item.work_s / speed, now_s + done_s
        if item.request.deadline_s is not None:
            item.start_by_s = item.request.deadline_s - (backlog.alone_s or 0.0)
        if backlog.alone_s is not None:
            _check_possible(item, now_s, backlog.alone_s)
            self._check_turn(item, now_s, batches, done_s, mine_s)
            self._check_others(item, slack_s, max(0.0, done_s - batches.seconds, backlog.alone_s))

    def _likely_batch_rows(self, key: ModelKey, rows: int, allowed_s: float, times: Times) -> int:
        """Returns the rows of the likely batch: worthwhile, waiting, and leaving most of the time to wait."""
        most = min(times.worthwhile_rows(self.bounds.batch_rows), self._queue.rows.get(key, 0) + rows)
        while most > rows and times.seconds(most) > _BATCH_SHARE * allowed_s:
            most //= 2
        return max(rows, most)

    # The checks, in their order.

    def _check_space(self, item: PendingRequest, backlog: Backlog, batches: BatchForecast) -> None:
        """Checks the number of requests of its model, and the bytes of all."""

        def retry_after_s() -> float:
            if backlog.alone_s is None:
                return _FIRST_RETRY_S
            return batches.wait_s(self._queue.work_s(backlog.weights))

        level_share = self.shares.of_level(item.level)
        mine, of_model = self._queue.requests(item.client), self._queue.of(item.key).requests
        if not self.shares.allows(mine + 1, of_model + 1, self.bounds.requests * level_share):
            raise _no_room(
                f"Model '{item.key.name}' has {counted(of_model, 'request')} waiting already", retry_after_s()
            )
        mine_bytes, all_bytes = self._queue.size_bytes(item.client), self._queue.size_bytes()
        # If nothing waits, a request of any permitted size is admitted.
        if all_bytes and not self.shares.allows(
            mine_bytes, all_bytes + item.size_bytes, self.bounds.size_bytes * level_share
        ):
            raise _no_room(f"{all_bytes} bytes of requests wait already", retry_after_s())

    def _check_unmeasured(self, item: PendingRequest, slots: int) -> None:
        """Checks whether a request with a deadline may wait for a model that never ran."""
        if item.request.deadline_s is not None and self._queue.of(item.key).requests >= slots:
            raise _no_room(
                f"Nothing has run on model '{item.key.name}' yet that would tell whether this request can be answered "
                "in time, and others wait already",
                _FIRST_RETRY_S,
            )

    def _check_turn(
        self, item: PendingRequest, now_s: float, batches: BatchForecast, done_s: float, mine_s: float
    ) -> None:
        """Checks whether its turn comes in time, and its client and level have a right to the room until then.

        Room is time here: the time that the request allows, less its own batch and the margin. The requests before it
        fill a part of that, and those of its client another. Running batches take some too, but belong to no share.
        """
        first_s = batches.first_s
        room_s = self.margin.usable_s(item.latest_s - now_s - batches.seconds)
        room_s = self.shares.of_level(item.level) * room_s - (first_s - batches.seconds)
        if not self.shares.allows(batches.done(mine_s)[0] - first_s, done_s - first_s, room_s):
            raise _no_room(
                f"There are {rounded(done_s - batches.seconds)} s of work before this request, which allows "
                f"{rounded(item.latest_s - now_s)} s",
                max(0.0, done_s - first_s - max(0.0, room_s / self.shares.clients)),
            )

    def _check_others(self, item: PendingRequest, slack_s: float, retry_after_s: float) -> None:
        """Checks whether a request behind it becomes late by it: each may be delayed by `slack_s`."""
        if slack_s < math.inf and self.margin.usable_s(slack_s) < item.delays_s:
            raise _no_room("Requests that were admitted before this one would be late because of it", retry_after_s)


def _no_room(problem: str, retry_after_s: float) -> QueueFullError:
    """Returns the refusal of a request, with the seconds after which there should be room."""
    return QueueFullError(f"{problem}; retry after the time given with this error.", retry_after_s=retry_after_s)


def _check_possible(item: PendingRequest, now_s: float, alone_s: float) -> None:
    """Checks whether its model could complete it in the time that it allows, if it were alone."""
    if item.request.deadline_s is not None and item.request.deadline_s - now_s < alone_s:
        raise DeadlineExceededError(
            f"The model takes some {rounded(alone_s)} s for this request, which allows "
            f"{rounded(max(0.0, item.request.deadline_s - now_s))} s; allow more time."
        )


class Margin:
    """The time that admission keeps free for errors of the predictions.

    The times of batches are learned from those that ran (`executors/dispatch/member.py`). Other delays (other work on
    the machine, the event loop, requests larger than they seem) are learned here, from the answers of all models
    together, as one number: the 99th percentile of the delay between an answer and its prediction.

    At least half of the room is kept free. Then a machine that suddenly becomes twice as slow makes few of the waiting
    requests late; and it never idles, because requests wait. At most three quarters are kept free: longer pauses cannot
    be planned for, only counted, and the machine would idle between them.
    """

    def __init__(self) -> None:
        self._late_s = DecayedQuantiles(half_life_count=200.0, half_life_s=20.0)

    def learn(self, item: PendingRequest, now_s: float) -> None:
        """Learns from the end of a request now how good its prediction was; an early one counts as in time."""
        if item.is_predictable and item.predicted_s < math.inf:
            self._late_s.add(max(0.0, now_s - item.predicted_s), now_s)

    @property
    def seconds(self) -> float:
        """The usual delay of predictions."""
        return self._late_s.quantile(_QUANTILE) or 0.0

    def usable_s(self, room_s: float) -> float:
        """Returns the seconds of a room that are left after the margin; a negative room is returned as it is."""
        least_s, most_s = _LEAST_SHARE * max(0.0, room_s), _MOST_SHARE * max(0.0, room_s)
        return room_s - min(max(self.seconds, least_s), most_s)


class Shares:
    """The share of the room to wait that one client, and one level of priority, may take. All models share the machine.

    Clients: dynamic thresholds (Choudhury and Hahne, 1998). The waiting work of a client may take as much room as is
    left free, or its equal part of all room if that is more. So there is room for the next client, however greedy one
    is, and greedy clients end up with equal parts. Requests are served by due time, so equal room is an equal share of
    the machine. There is nothing to configure, and no history: a client that returns has no debt and no savings.

    Levels: each leaves a quarter of the room to those above it.

    Room is reserved only for clients and levels that sent requests within the last seconds. A client that is alone may
    use all of it.
    """

    def __init__(self) -> None:
        self._clients: OrderedDict[str, float] = OrderedDict()  # when each sent a request, the latest last
        self._levels: dict[int, float] = {}
        self._latest_s = -math.inf

    def note(self, principal: str, level: int, now_s: float) -> None:
        """Records a request, whether or not it is admitted."""
        self._latest_s = now_s
        self._levels[level] = self._clients[principal] = now_s
        self._clients.move_to_end(principal)
        while now_s - next(iter(self._clients.values())) > EXPECTED_S:
            self._clients.popitem(last=False)

    @property
    def clients(self) -> int:
        """The number of clients that share the machine at the moment, at least 1."""
        return max(1, len(self._clients))

    def of_level(self, level: int) -> float:
        """Returns the share of the room that a level may fill."""
        expected_s = self._latest_s - EXPECTED_S
        share = math.prod(_LEAVES for above in range(1, level) if self._levels.get(above, -math.inf) >= expected_s)
        return min(share, _AUDITS_SHARE) if level == AUDIT_LEVEL else share

    def allows(self, mine: float, taken: float, limit: float) -> bool:
        """Returns whether a client may take room.

        Args:
            mine: the room of this client.
            taken: the room of all clients together.
            limit: all room, in the same unit.
        """
        if self.clients == 1:
            return taken <= limit
        return taken <= limit and mine <= max(limit - taken, limit / self.clients)
