"""Dynamic batching without waiting: requests that come while all executors are busy are the next batch.

No timer holds a request back. A request that finds an executor free starts there at once. Under load batches grow,
because more requests wait when an executor becomes free.

A batch of a quick model runs on the event loop itself (`Batcher._requests_for_loop`), which costs less than a thread.
It runs at the end of the turn of the event loop in which its requests came. While requests come one at a time, each
runs at once.

A request is admitted if it is predicted to be answered by its deadline. If the prediction was wrong, it is refused at
its deadline. Audits are admitted without a prediction, because no caller waits for them.
"""

from __future__ import annotations

import asyncio
import math
from collections import defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import KW_ONLY, InitVar, dataclass, field
from functools import partial
from typing import NamedTuple

from firstline_core.clock import Clock
from firstline_core.errors import DeadlineExceededError, FirstlineError
from firstline_core.runtime.batch_times import LoopTimes
from firstline_core.telemetry import tracing
from firstline_core.telemetry.logs import logger
from firstline_core.telemetry.metrics import RequestMetrics
from firstline_core.telemetry.trace import CURRENT
from firstline_core.types import Arrays, InferRequest, ModelKey
from firstline_gateway.executors.base import Outcome
from firstline_gateway.executors.dispatch.dispatcher import Dispatcher, FutureOutcomes
from firstline_gateway.executors.dispatch.placement import Placement, PoolSnapshot
from firstline_gateway.serving.scheduling.admission import (
    AUDIT_LEVEL,
    Admission,
    Backlog,
    Bounds,
    PendingQueue,
    PendingRequest,
    Weights,
)
from firstline_gateway.serving.scheduling.order import batch_from_end, by_level, choose_batch, row_sum

TURN_S = 0.003
"""The time that batches of quick models may take in one turn of the event loop."""
WAITING_S = 0.01
"""The work that may wait for the event loop; more requests wait for the threads."""

log = logger(__name__)


class _Batch(NamedTuple):
    """A batch that runs, since `started_s`."""

    key: ModelKey
    items: Sequence[PendingRequest]
    rows: int
    started_s: float
    on_loop: bool


@dataclass(eq=False)
class Batcher:
    """Admits requests, runs them in batches and answers them. Belongs to one event loop.

    Args:
        dispatcher: runs the batches.
        clock: for deadlines.
        bounds: how much may wait.
        concurrency: the most batches of one model that run at the same moment, or 0 for no limit.
        concurrency_of: the same of single models, by name.
        on_batch: called with the rows of each batch, for the metrics.
        on_late: called for each request that was admitted and not answered by its deadline, except audits.
        on_ran: called for each batch that ended: its model, rows, seconds, and the seconds that each request waited.
    """

    dispatcher: Dispatcher
    _: KW_ONLY
    clock: Clock
    bounds: InitVar[Bounds]
    concurrency: int = 0
    concurrency_of: Mapping[str, int] = field(default_factory=dict)
    on_batch: Callable[[int], None] = lambda rows: None
    on_late: Callable[[], None] = lambda: None
    on_ran: Callable[[ModelKey, int, float, Sequence[float]], None] = lambda key, rows, seconds, waits_s: None

    def __post_init__(self, bounds: Bounds) -> None:
        self._max_rows = bounds.batch_rows
        self._queue = PendingQueue()
        self._admission = Admission(self._queue, bounds)
        self._running: dict[FutureOutcomes, _Batch] = {}
        self._ended_s: dict[ModelKey, float] = {}
        self._new: list[PendingRequest] = []  # admitted in this turn of the event loop
        self._comes_alone = False  # one request came in the latest turn in which any came
        self._is_turn_ending = False
        self._may_start = False  # an executor, or what waits for one, has changed
        self._snapshot: PoolSnapshot | None = None  # of this turn, for admission
        self.dispatcher.subscribe(self._start_soon)

    def adopt(self, bounds: Bounds) -> None:
        """Admits new requests by other bounds from now on, which have the same `batch_rows`."""
        self._admission.bounds = bounds

    @property
    def depth(self) -> int:
        """Requests that wait, all models together."""
        return len(self._queue)

    @property
    def wait_s(self) -> float:
        """The predicted wait of a new request without a deadline, averaged over the models by what waits of each."""
        snapshot, waits_s, requests = self.dispatcher.snapshot(), 0.0, 0
        for key in self._queue.rows:
            waiting, batches = self._queue.of(key).requests, snapshot.completion(key, self._max_rows).of(1)
            waits_s += waiting * batches.wait_s(self._queue.work_s(self._weights(snapshot, key)))
            requests += waiting
        return waits_s / requests if requests else 0.0

    async def submit(self, key: ModelKey, request: InferRequest, inputs: Arrays | None = None) -> Arrays:
        """Waits for the request's turn, and returns the task's outputs by name, their rows in the order of the request.

        A caller that is cancelled takes its request out of the queue.

        Args:
            key: its model.
            request: with its deadline.
            inputs: that the model reads, by name, or the rows prepared from them; None for those of the request.

        Raises:
            QueueFullError: it would wait too long, or too much waits already; `retry_after_s` says when to come back.
            DeadlineExceededError: it allows less than the model takes, or its deadline passed.
            FirstlineError: the error of the executor for this request.
        """
        now_s = self.clock.monotonic_s()
        if request.deadline_s is not None and request.deadline_s <= now_s:
            raise _deadline_error()
        self._end_turn_soon()  # also if it is refused: the snapshot is of this turn
        is_alone = self._comes_alone and not self._new and not self._queue.rows
        item = self._admission.new_request(key, request, now_s, inputs)
        place, weights = self._admit(item, now_s)
        self._new.append(item)
        if isinstance(place, Placement) or (place is not None and is_alone):
            self._start([item], place, now_s)
        else:
            self._queue.add(item, weights)
            self._may_start = self._may_start or place is None
        try:
            outputs = await item.answered
        except asyncio.CancelledError:
            item.settle(asyncio.CancelledError())  # ends its timer
            self._queue.remove(item)
            raise
        if item.is_predictable:
            self._admission.margin.learn(item, self.clock.monotonic_s())
        return outputs

    def abandon(self, error: FirstlineError) -> None:
        """Answers everything that waits or runs with `error`; batches that run are not stopped."""
        running = [item for batch in self._running.values() for item in batch.items]
        for item in [*self._queue, *running]:
            self._queue.remove(item)
            item.settle(error)

    # Admission.

    def _admit(self, item: PendingRequest, now_s: float) -> tuple[Placement | LoopTimes | None, Weights]:
        """Admits a request, or raises.

        Returns:
            Where it can start at once, or in this turn of the event loop; None if it has to wait. And how much of what
            waits comes before it.
        """
        key = item.key
        if not (item.level == AUDIT_LEVEL and (self._queue.rows or self._new)):  # an audit gives way
            times, alone_s = self._loop_times(key, item.rows, now_s)
            if times is not None:
                done_s = self._loop_work_s(item, times) if self._queue.rows else alone_s
                if done_s <= WAITING_S and now_s + done_s <= item.latest_s:
                    item.is_predictable = False
                    self._admission.check_start(item, now_s, alone_s, done_s, self._ended_s.get(key, -math.inf))
                    return times, {}
        if self._snapshot is None:
            self._snapshot = self.dispatcher.snapshot()
        snapshot = self._snapshot
        if key not in self._queue.rows and not self._is_at_limit(key):
            placement = snapshot.place(key, item.rows, self._max_rows, item.rows)
            if isinstance(placement, Placement) and placement.is_free and placement.member.has_room():
                alone_s = placement.seconds(item.rows)
                self._admission.check_start(item, now_s, alone_s, alone_s, self._ended_s.get(key, -math.inf))
                return placement, {}
        weights = self._weights(snapshot, key)
        completion = snapshot.completion(key, self._max_rows)
        self._admission.check_wait(item, now_s, Backlog(completion, weights, snapshot.alone_s(key, item.rows)))
        return None, weights

    def _weights(self, snapshot: PoolSnapshot, key: ModelKey) -> Weights:
        """Returns how much of each model's work comes before a new request."""
        return {other: snapshot.part(key, other) for other in self._queue.rows}

    def _is_at_limit(self, key: ModelKey, more: int = 1) -> bool:
        """Whether `more` additional batches of a model would exceed its limit of batches that run together."""
        limit = self.concurrency_of.get(key.name, self.concurrency)
        return 0 < limit < more + sum([batch.key == key for batch in self._running.values()])

    # The event loop as an executor.

    def _loop_times(self, key: ModelKey, rows: int, now_s: float) -> tuple[LoopTimes | None, float]:
        """Returns the times of a model on the event loop if a batch of `rows` rows may run there, and its seconds."""
        times = self.dispatcher.loop_times(key)
        if times is None or (self._running and self._is_at_limit(key)):
            return None, 0.0
        seconds = times.quick_s(rows)
        if seconds is None:
            times.retry_if_due(now_s)
            return None, 0.0
        return times, seconds

    def _loop_work_s(self, item: PendingRequest, times: LoopTimes) -> float:
        """Returns the seconds of what waits for the event loop, a new request included."""
        work_s = times.seconds(self._queue.rows.get(item.key, 0) + item.rows)
        for key, rows in self._queue.rows.items():
            if key != item.key and (others := self.dispatcher.loop_times(key)) is not None:
                work_s += others.seconds(rows)
        return work_s

    def _requests_for_loop(self, now_s: float) -> tuple[list[PendingRequest], dict[ModelKey, LoopTimes]]:
        """Chooses requests of quick models that run on the event loop, up to the work that may wait for it.

        Returns:
            The requests by due time, and the times of their models.
        """
        times = {key: each for key in self._queue.rows if (each := self._loop_times(key, 1, now_s)[0]) is not None}
        if not times:
            return [], times
        is_single = len(self._queue) == 1 and len(self._new) <= 1
        found = [
            item
            for item in self._queue
            if item.key in times
            and (item.rows == 1 or times[item.key].quick_s(item.rows) is not None)
            and (item.level != AUDIT_LEVEL or is_single)
        ]
        work_s = sum([each.seconds(self._queue.rows[key]) for key, each in times.items()])
        if work_s > WAITING_S:
            found = found[: max(1, int(len(found) * WAITING_S / work_s))]
            self._may_start = True
        return found, times

    def _start_on_loop(self, waiting: list[PendingRequest], times: Mapping[ModelKey, LoopTimes]) -> None:
        """Runs the next batches of quick models, for as long as one turn may take."""
        now_s = self.clock.monotonic_s()
        end_s = now_s + TURN_S
        while waiting and now_s < end_s:
            choice = choose_batch(waiting, times, now_s=now_s, margin_s=0.0, max_rows=self._max_rows)
            for item in choice.too_late:
                self._expire(item)
            if choice.batch:
                self._queue.take(choice.batch)
                self._start(choice.batch, times[choice.batch[0].key], now_s)
            done = {*choice.too_late, *choice.batch}
            waiting = [item for item in waiting if item not in done]
            now_s = self.clock.monotonic_s()

    # Batches.

    def _start_soon(self) -> None:
        """Places what waits at the end of this turn of the event loop: an executor may have become free."""
        self._may_start, self._snapshot = True, None
        if self._queue:
            self._end_turn_soon()

    def _end_turn_soon(self) -> None:
        if not self._is_turn_ending:
            self._is_turn_ending = True
            asyncio.get_running_loop().call_soon(self._end_turn)

    def _end_turn(self) -> None:
        """Places the requests of this turn of the event loop."""
        self._is_turn_ending, self._snapshot = False, None
        try:
            if self._queue:
                self._start_waiting()
        finally:  # whatever fails, no request waits longer than it allows
            for item in self._new:
                if not item.answered.done():
                    self._expire_at_deadline(item)
            if self._new:
                self._comes_alone = len(self._new) == 1
                self._new = []

    def _start_waiting(self) -> None:
        """Starts every batch that can start now, on the executors and on the event loop."""
        loop_requests, times = self._requests_for_loop(self.clock.monotonic_s())
        if self._may_start:  # until an executor, or what waits for one, changes, nothing more can start there
            others = set(loop_requests)
            while len(self._queue) > len(others) and self._start_next(others, self.clock.monotonic_s()):
                pass
            self._may_start = False
        if loop_requests:
            self._start_on_loop(loop_requests, times)
            if not times.keys().isdisjoint(self._queue.rows):  # the turn is over, or a model has become slow
                self._start_soon()

    def _start_next(self, loop_requests: Collection[PendingRequest], now_s: float) -> bool:
        """Starts one batch on an executor; returns whether another one may start."""
        snapshot = self.dispatcher.snapshot()
        if snapshot.is_full(self._queue.rows):
            return False
        full = {key for key in self._queue.rows if self._is_at_limit(key)}
        waiting = [item for item in self._queue if item not in loop_requests and item.key not in full]
        while waiting:
            placements = self._placements(snapshot, waiting)
            waiting = [item for item in waiting if item.key in placements]
            margin_s = self._admission.margin.seconds
            choice = choose_batch(waiting, placements, now_s=now_s, margin_s=margin_s, max_rows=self._max_rows)
            for item in choice.too_late:
                self._expire(item)
            if choice.too_late or not choice.batch:  # what is left may be another batch, on another executor
                return bool(choice.too_late)
            key = choice.batch[0].key
            placement, same_model = placements[key], [item for item in waiting if item.key == key]
            batch = choice.batch if placement.is_free else []
            if placement.is_free:
                choice.note_delays(waiting)
            elif placement.idle is not None:
                placement = placement.idle
                batch = batch_from_end(same_model, placement, self._max_rows, now_s)
            if batch:
                self._queue.take(batch)
                self._start(batch, placement, now_s)
                return True
            snapshot.reserve(key, placements[key], row_sum(same_model))
            waiting = [item for item in waiting if item.key != key]
        return False

    def _placements(self, snapshot: PoolSnapshot, waiting: Sequence[PendingRequest]) -> dict[ModelKey, Placement]:
        """Returns where the next batch of each model runs, and refuses the requests of models that no executor runs.

        A batch may leave rows to another executor if no other model waits for that one.
        """
        of_model: defaultdict[ModelKey, list[PendingRequest]] = defaultdict(list)
        for item in waiting:
            of_model[item.key].append(item)
        placements = {}
        for key, items in of_model.items():
            # The first by due time, or of the highest level, is in the batch; see `choose_batch`.
            least_rows = max(items[0].rows, by_level(items)[0].rows)
            may_share_slots = len(of_model) == 1 and not self._is_at_limit(key, more=2)
            found = snapshot.place(key, row_sum(items), self._max_rows, least_rows, may_share_slots=may_share_slots)
            if isinstance(found, Placement):
                placements[key] = found
                continue
            for item in items:
                self._queue.remove(item)
                item.settle(found)
        return placements

    def _start(self, items: Sequence[PendingRequest], place: Placement | LoopTimes, now_s: float) -> None:
        """Runs a batch: on the event loop if its model is quick, otherwise on an executor, in a thread or elsewhere."""
        items = [item for item in items if not item.answered.done()]  # the callers of the others have left
        if not items:
            return
        self._snapshot = None
        key, inputs = items[0].key, [item.inputs for item in items]
        deadlines_s = [item.request.deadline_s for item in items]
        batch = _Batch(key, items, sum([item.rows for item in items]), now_s, isinstance(place, LoopTimes))
        try:
            self.on_batch(batch.rows)
            if isinstance(place, LoopTimes):
                ran = self.dispatcher.run_on_loop(key, inputs, deadlines_s)
            else:
                # A batch that is sent on has one parent in the trace, though several requests may have one.
                trace = next((item.request.trace for item in items if item.request.trace is not None), None)
                token = CURRENT.set(trace)
                try:
                    ran = self.dispatcher.run_on(place.member, key, inputs, deadlines_s)
                finally:
                    CURRENT.reset(token)
        except Exception as error:  # no other code would answer these requests
            log.exception("batch failed unexpectedly", model=key.name)
            for item in items:
                item.settle(error)
            return
        if isinstance(ran, list):
            self._answer(batch, ran, self.clock.monotonic_s())
        else:
            self._follow(batch, ran)

    def _follow(self, batch: _Batch, ran: FutureOutcomes) -> None:
        """Answers the requests of a batch when it ends."""
        self._running[ran] = batch
        for item in batch.items:
            self._expire_at_deadline(item)
        ran.add_done_callback(self._finish)

    def _finish(self, ran: FutureOutcomes) -> None:
        if self._is_at_limit(self._running[ran].key):
            self._start_soon()
        batch = self._running.pop(ran)
        error = asyncio.CancelledError() if ran.cancelled() else ran.exception()
        if error is None:
            self._answer(batch, ran.result(), self.clock.monotonic_s())
            return
        for item in batch.items:
            item.settle(error)

    def _answer(self, batch: _Batch, outcomes: Sequence[Outcome], now_s: float) -> None:
        self._ended_s[batch.key] = now_s
        for item, outcome in zip(batch.items, outcomes, strict=True):
            if item.request.deadline_s is not None and item.request.deadline_s <= now_s:
                self._expire(item)
            else:
                item.settle(outcome)
        waits_s = [max(0.0, batch.started_s - item.admitted_s) for item in batch.items]
        self.on_ran(batch.key, batch.rows, now_s - batch.started_s, waits_s)
        if tracing.active:
            self._trace(batch, now_s, waits_s)

    def _trace(self, batch: _Batch, now_s: float, waits_s: Sequence[float]) -> None:
        """Records the spans of the requests of a batch that ended. On the event loop, it is executed as a whole."""
        seconds = now_s - batch.started_s
        for item, wait_s in zip(batch.items, waits_s, strict=True):
            trace = item.request.trace
            tracing.record("queue", trace, wait_s, ago_s=seconds)
            tracing.record("batch", trace, seconds, rows=str(batch.rows))
            if batch.on_loop:
                tracing.record("execute", trace, seconds)

    def _expire_at_deadline(self, item: PendingRequest) -> None:
        if item.expiry is None and item.request.deadline_s is not None:
            item.expiry = self.clock.call_at(item.request.deadline_s, partial(self._expire, item))

    def _expire(self, item: PendingRequest) -> None:
        self._queue.remove(item)
        if not item.answered.done():
            if item.level != AUDIT_LEVEL:
                self.on_late()
            self._admission.margin.learn(item, self.clock.monotonic_s())
            item.settle(_deadline_error())


def _deadline_error() -> FirstlineError:
    return DeadlineExceededError("The request's deadline passed before it was answered; allow more time.")


def register_metrics(metrics: RequestMetrics, batcher: Batcher) -> None:
    """Registers how many requests wait, and for how long."""
    metrics.gauge("queue_depth", "Requests that wait to run.", lambda: batcher.depth)
    metrics.gauge("queue_seconds", "Seconds that a request received now would wait.", lambda: batcher.wait_s)
