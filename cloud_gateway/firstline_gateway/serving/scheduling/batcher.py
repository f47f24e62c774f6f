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
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from functools import cache, partial
from types import MappingProxyType
from typing import NamedTuple

from firstline_core.clock import Clock, Timer
from firstline_core.errors import DeadlineExceededError, FirstlineError
from firstline_core.runtime.batch_times import BatchTimes, LoopTimes
from firstline_core.telemetry import tracing
from firstline_core.telemetry.logs import logger
from firstline_core.telemetry.metrics import RequestMetrics
from firstline_core.telemetry.trace import CURRENT
from firstline_core.types import Arrays, InferRequest, ModelKey
from firstline_gateway.executors.base import Outcome
from firstline_gateway.executors.dispatch.attempts import BatchRun, FutureOutcomes
from firstline_gateway.executors.dispatch.dispatcher import Dispatcher
from firstline_gateway.executors.dispatch.forecast import CompletionForecast, Lane, Times
from firstline_gateway.executors.dispatch.placement import ExecutorSnapshot, Placement
from firstline_gateway.serving.scheduling.admission import Admission, Backlog, Bounds
from firstline_gateway.serving.scheduling.queue import (
    AUDIT_LEVEL,
    NO_WEIGHTS,
    PendingQueue,
    PendingRequest,
    Weights,
    batch_for_idle,
    by_level,
    choose_batch,
    row_sum,
)

TURN_S = 0.003
"""The time that batches of quick models may take in one turn of the event loop."""
WAITING_S = 0.01
"""The work that may wait for the event loop; more requests wait for the threads."""
_UNKNOWN = BatchTimes()
_NOTHING_KNOWN = CompletionForecast([Lane(0.0, _UNKNOWN)], 1)

log = logger(__name__)


class _Batch(NamedTuple):
    """A batch that runs, since `started_s`."""

    key: ModelKey
    items: Sequence[PendingRequest]
    rows: int
    started_s: float
    run: BatchRun | None = None


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

    def __init__(
        self,
        dispatcher: Dispatcher,
        *,
        clock: Clock,
        bounds: Bounds,
        concurrency: int = 0,
        concurrency_of: Mapping[str, int] = MappingProxyType({}),
        on_batch: Callable[[int], None] = lambda rows: None,
        on_late: Callable[[], None] = lambda: None,
        on_ran: Callable[[ModelKey, int, float, Sequence[float]], None] = lambda key, rows, seconds, waits_s: None,
    ) -> None:
        self._dispatcher = dispatcher
        self._clock = clock
        self._max_rows = bounds.batch_rows
        self._concurrency = concurrency
        self._concurrency_of = concurrency_of
        self._on_batch = on_batch
        self._on_late = on_late
        self._on_ran = on_ran
        self._queue = PendingQueue()
        self._admission = Admission(self._queue, bounds)
        self._running: dict[FutureOutcomes, _Batch] = {}
        self._running_of: Counter[ModelKey] = Counter()
        self._ended_s: dict[ModelKey, float] = {}
        self._ahead: list[_Batch] = []  # queued for a thread behind other batches
        self._retry_timer: Timer | None = None
        self._new: list[PendingRequest] = []  # admitted in this turn of the event loop
        self._comes_alone = False  # one request came in the latest turn in which any came
        self._is_turn_ending = False
        self._may_start = False  # an executor, or what waits for one, has changed
        self._snapshot: ExecutorSnapshot | None = None  # of this turn, for admission
        self._turn_times: dict[tuple[ModelKey, int], tuple[LoopTimes | None, float]] = {}  # on the event loop, likewise
        dispatcher.subscribe(self._start_soon)

    def adopt(self, bounds: Bounds) -> None:
        """Admits new requests by other bounds from now on, which have the same `batch_rows`."""
        self._admission.adopt(bounds)

    @property
    def depth(self) -> int:
        """Requests that wait, all models together."""
        ahead = [batch.items for batch in self._ahead if batch.run is not None and batch.run.is_waiting]
        return len(self._queue) + sum(map(len, ahead))

    @property
    def wait_s(self) -> float:
        """The predicted wait of a new request without a deadline, averaged over the models by what waits of each."""
        snapshot, waits_s, requests = self._dispatcher.snapshot(), 0.0, 0
        for key in self._queue.rows:
            waiting = self._queue.of(key).requests
            if waiting and (completion := snapshot.completion(key, self._max_rows)) is not None:
                wait_s = completion.of(1).wait_s(self._queue.work_s(self._weights(snapshot, key)))
                waits_s, requests = waits_s + waiting * wait_s, requests + waiting
        return waits_s / requests if requests else 0.0

    async def submit(self, key: ModelKey, request: InferRequest, inputs: Arrays | None = None) -> Arrays:
        """Waits for the request's turn and returns its rows, (rows, classes) in their order.

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
        now_s = self._clock.monotonic_s()
        if request.deadline_s is not None and request.deadline_s <= now_s:
            raise _deadline_error()
        if not self._is_turn_ending:  # also if it is refused: the snapshot is of this turn
            self._end_turn_soon()
        is_alone = self._comes_alone and not self._new and not self._queue.rows
        item, place = self._admit(key, request, now_s, inputs, may_start=is_alone)
        if place is not None:
            self._start([item], place, now_s)
        try:
            outputs = await item.answered
        except asyncio.CancelledError:
            item.settle(asyncio.CancelledError())  # ends its timer
            self._queue.remove(item)
            self._take_back()
            raise
        if item.is_predictable:
            self._admission.learn(item, self._clock.monotonic_s())
        return outputs

    def abandon(self, error: FirstlineError) -> None:
        """Answers everything that waits or runs with `error`; batches that run are not stopped."""
        self._take_back()
        running = [item for batch in self._running.values() for item in batch.items]
        for item in [*self._queue, *running]:
            self._queue.remove(item)
            item.settle(error)

    # Admission.

    def _admit(
        self, key: ModelKey, request: InferRequest, now_s: float, inputs: Arrays | None, *, may_start: bool
    ) -> tuple[PendingRequest, Placement | LoopTimes | None]:
        """Admits a request.

        Returns:
            The request, and where to start it at once; None if it is in the queue.
        """
        item, weights = self._admission.new_request(key, request, now_s, inputs), NO_WEIGHTS
        place, alone_s, done_s = self._place_now(item, now_s)
        if place is not None:
            self._admission.check_start(item, now_s, alone_s, done_s, self._ended_s.get(key, -math.inf))
        else:
            snapshot = self._snapshot_now()
            weights = self._weights(snapshot, key)
            completion = snapshot.completion(key, self._max_rows) or _NOTHING_KNOWN
            alone_s = snapshot.alone_s(key, item.rows)
            self._admission.check_wait(item, now_s, Backlog(completion, weights, alone_s, snapshot.is_known(key)))
        if self._ahead and any(
            item.level < each.level or item.due_s < each.due_s for batch in self._ahead for each in batch.items
        ):
            self._take_back()
        self._new.append(item)
        if place is not None and may_start:
            return item, place
        self._queue.add(item, weights)
        if isinstance(place, Placement):  # the next request of this turn must not find free what this one takes
            self._start_on_executors(set(self._requests_for_loop(now_s)[0]))
        self._may_start = self._may_start or not isinstance(place, LoopTimes)
        return item, None

    def _place_now(self, item: PendingRequest, now_s: float) -> tuple[Placement | LoopTimes | None, float, float]:
        """Returns where a new request can start at once, or in this turn of the event loop; None if it has to wait.

        An executor has to be free, and no other request may wait for its model.

        Returns:
            The place, and the seconds of a batch of the request alone and until it is complete there.
        """
        if not (item.level == AUDIT_LEVEL and (self._queue.rows or self._new)):  # an audit gives way
            times, alone_s = self._loop_times(item.key, item.rows, now_s)
            if times is not None:
                done_s = self._loop_work_s(item, times) if self._queue.rows else alone_s
                if done_s <= WAITING_S and now_s + done_s <= item.latest_s:
                    item.is_predictable = False
                    return times, alone_s, done_s
        snapshot, key = self._snapshot_now(), item.key
        if key in self._queue.rows or self._is_at_limit(key):
            return None, 0.0, 0.0
        placement = snapshot.place(key, item.rows, self._max_rows, item.rows)
        if isinstance(placement, FirstlineError) or placement.is_ahead or not placement.is_free:
            return None, 0.0, 0.0
        alone_s = placement.times.seconds(item.rows)
        return placement, alone_s, alone_s

    def _snapshot_now(self) -> ExecutorSnapshot:
        """Returns the executors as they are in this turn of the event loop."""
        if self._snapshot is None:
            self._snapshot = self._dispatcher.snapshot()
        return self._snapshot

    def _weights(self, snapshot: ExecutorSnapshot, key: ModelKey) -> Weights:
        """Returns how much of each model's work comes before a new request."""
        return {other: snapshot.part(key, other) for other in self._queue.rows}

    def _is_at_limit(self, key: ModelKey, more: int = 1) -> bool:
        """Whether a model may not run so many more batches."""
        return 0 < self._concurrency_of.get(key.name, self._concurrency) < self._running_of[key] + more

    # The event loop as an executor.

    def _loop_times(self, key: ModelKey, rows: int, now_s: float) -> tuple[LoopTimes | None, float]:
        """Returns the times of a model on the event loop if a batch of so many rows may run there, and its seconds."""
        found = self._turn_times.get((key, rows))
        if found is None:
            times = self._dispatcher.loop_times(key)
            seconds = None if times is None else times.quick_s(rows)
            if times is not None and seconds is None:
                times.retry_if_due(now_s)
            found = self._turn_times[key, rows] = (None, 0.0) if seconds is None else (times, seconds)
        return (None, 0.0) if self._running and self._is_at_limit(key) else found

    def _loop_work_s(self, item: PendingRequest, times: LoopTimes) -> float:
        """Returns the seconds of what waits for the event loop, a new request included."""
        work_s = times.seconds(self._queue.rows.get(item.key, 0) + item.rows)
        for key, rows in self._queue.rows.items():
            if key != item.key and (others := self._dispatcher.loop_times(key)) is not None:
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
        found, key, model_times = [], None, None
        for item in self._queue:
            if item.key is not key:
                key, model_times = item.key, times.get(item.key)
            if model_times is None or (item.rows > 1 and model_times.quick_s(item.rows) is None):
                continue
            if item.level != AUDIT_LEVEL or is_single:
                found.append(item)
        work_s = sum([each.seconds(self._queue.rows[key]) for key, each in times.items()])
        if work_s > WAITING_S:
            found = found[: max(1, int(len(found) * WAITING_S / work_s))]
            self._may_start = True
        return found, times

    def _start_on_loop(self, waiting: list[PendingRequest], times: Mapping[ModelKey, LoopTimes]) -> None:
        """Runs the next batches of quick models, for as long as one turn may take."""
        now_s = self._clock.monotonic_s()
        end_s = now_s + TURN_S
        while waiting and now_s < end_s:
            choice = choose_batch(waiting, times.__getitem__, now_s=now_s, margin_s=0.0, max_rows=self._max_rows)
            for item in choice.too_late:
                self._expire(item)
            if choice.batch:
                self._queue.take(choice.batch)
                self._start(choice.batch, times[choice.batch[0].key], now_s)
            if len(choice.batch) == len(waiting):
                return
            done = {*choice.too_late, *choice.batch}
            waiting = [item for item in waiting if item not in done]
            now_s = self._clock.monotonic_s()

    # Batches.

    def _start_soon(self) -> None:
        """Places what waits at the end of this turn of the event loop: an executor may have become free."""
        self._may_start, self._snapshot = True, None
        if self._queue and not self._is_turn_ending:
            self._end_turn_soon()

    def _end_turn_soon(self) -> None:
        self._is_turn_ending = True
        asyncio.get_running_loop().call_soon(self._end_turn)

    def _end_turn(self) -> None:
        """Places the requests of this turn of the event loop."""
        self._is_turn_ending, self._snapshot = False, None
        self._turn_times.clear()
        try:
            if self._queue:
                self._start_waiting()
        finally:  # whatever fails, no request waits longer than it allows
            for item in self._new:
                if item.request.deadline_s is not None and not item.answered.done():
                    self._expire_at_deadline(item)
            if self._new:
                self._comes_alone = len(self._new) == 1
                self._new = []
            self._turn_times.clear()

    def _start_waiting(self) -> None:
        """Starts every batch that can start now, on the executors and on the event loop."""
        loop_requests, times = self._requests_for_loop(self._clock.monotonic_s())
        if self._may_start and len(self._queue) > len(loop_requests):
            self._start_on_executors(set(loop_requests))
        if loop_requests:
            self._start_on_loop(loop_requests, times)
            if not times.keys().isdisjoint(self._queue.rows):  # the turn is over, or a model has become slow
                self._start_soon()

    def _start_on_executors(self, loop_requests: AbstractSet[PendingRequest]) -> None:
        """Starts what can start there. Until an executor, or what waits for one, changes, nothing more can."""
        if self._retry_timer is not None:
            self._retry_timer.cancel()
            self._retry_timer = None
        retry_s: float | None = None
        while retry_s is None and len(self._queue) > len(loop_requests):
            retry_s = self._start_next(loop_requests, self._clock.monotonic_s())
        self._may_start = False
        if retry_s is not None and retry_s < math.inf:
            self._retry_timer = self._clock.call_at(self._clock.monotonic_s() + retry_s, self._start_soon)

    def _start_next(self, loop_requests: AbstractSet[PendingRequest], now_s: float) -> float | None:
        """Starts one batch on an executor and returns None; else returns the seconds after which to look again."""
        snapshot = self._dispatcher.snapshot()
        if snapshot.is_full(self._queue.rows):
            return math.inf
        full = {key for key in self._running_of if self._is_at_limit(key)}
        retry_s = math.inf
        waiting = [item for item in self._queue if item not in loop_requests and item.key not in full]
        while waiting:
            place_next = cache(partial(self._next_placement, snapshot, waiting=waiting))

            def times(key: ModelKey, place: Callable[[ModelKey], Placement | FirstlineError] = place_next) -> Times:
                return _UNKNOWN if isinstance(found := place(key), FirstlineError) else found.times

            margin_s = self._admission.margin.seconds
            choice = choose_batch(waiting, times, now_s=now_s, margin_s=margin_s, max_rows=self._max_rows)
            for item in choice.too_late:
                self._expire(item)
            if choice.too_late:  # what is left may be another batch, on another executor
                return None
            key = choice.batch[0].key
            same_model = [item for item in waiting if item.key == key]
            placement = place_next(key)
            if isinstance(placement, FirstlineError):
                for item in same_model:
                    self._queue.remove(item)
                    item.settle(placement)
                waiting = [item for item in waiting if item.key != key]
                continue
            if placement.is_free:
                choice.note_delays(waiting)
                self._queue.take(choice.batch)
                self._start(choice.batch, placement, now_s)
                return None
            if placement.idle is not None and (part := batch_for_idle(same_model, placement.idle, now_s)):
                self._queue.take(part)
                self._start(part, Placement(placement.idle.times), now_s)
                return None
            retry_s = min(retry_s, placement.retry_s)
            snapshot.reserve(key, placement, row_sum(same_model))
            waiting = [item for item in waiting if item.key != key]
        return retry_s

    def _next_placement(
        self, snapshot: ExecutorSnapshot, key: ModelKey, waiting: Sequence[PendingRequest]
    ) -> Placement | FirstlineError:
        """Returns where the next batch of a model runs.

        It may leave rows to another executor if no other model waits for that one.
        """
        same_model = [item for item in waiting if item.key == key]
        # The first by due time, or of the highest level, is in the batch; see `choose_batch`.
        least_rows = max(same_model[0].rows, by_level(same_model)[0].rows)
        may_share_slots = len(same_model) == len(waiting) and not self._is_at_limit(key, more=2)
        return snapshot.place(key, row_sum(same_model), self._max_rows, least_rows, may_share_slots=may_share_slots)

    def _start(self, items: Sequence[PendingRequest], place: Placement | LoopTimes, now_s: float) -> None:
        """Runs a batch: on the event loop if its model is quick, otherwise on an executor, in a thread or elsewhere."""
        items = [item for item in items if not item.answered.done()]  # the callers of the others have left
        if not items:
            return
        self._snapshot = None
        try:
            self._hand_over(items, place, now_s)
        except Exception as error:  # no other code would answer these requests
            log.exception("batch failed unexpectedly", model=items[0].key.name)
            for item in items:
                item.settle(error)

    def _hand_over(self, items: Sequence[PendingRequest], place: Placement | LoopTimes, now_s: float) -> None:
        key, rows = items[0].key, 0
        inputs, deadlines_s = [], []
        for item in items:
            inputs.append(item.inputs)
            deadlines_s.append(item.request.deadline_s)
            rows += item.rows
        self._on_batch(rows)
        if isinstance(place, LoopTimes):
            outcomes, batch = self._dispatcher.run_on_loop(key, inputs, deadlines_s), _Batch(key, items, rows, now_s)
            if isinstance(outcomes, list):
                self._answer(batch, outcomes, self._clock.monotonic_s())
            else:
                self._follow(batch, asyncio.ensure_future(outcomes))
            return
        # A batch that is sent on has one parent in the trace, though several requests may have one.
        trace = next((item.request.trace for item in items if item.request.trace is not None), None)
        token = CURRENT.set(trace) if trace is not None else None
        run = self._dispatcher.run_on(place.member, key, inputs, deadlines_s)
        if token is not None:
            CURRENT.reset(token)
        batch = _Batch(key, items, rows, now_s, run)
        if place.is_ahead:
            self._ahead = [*(each for each in self._ahead if each.run is not None and each.run.is_waiting), batch]
        self._follow(batch, run.ended)

    def _take_back(self) -> None:
        """Puts batches back into the queue that no thread has begun, so that the order is decided again."""
        ahead, self._ahead = self._ahead, []
        for batch in reversed(ahead):  # the last first, or a thread begins it meanwhile
            if batch.run is None or not batch.run.withdraw():
                continue
            del self._running[batch.run.ended]
            self._running_of[batch.key] -= 1
            for item in batch.items:
                if not item.answered.done():
                    self._queue.add(item)
        self._start_soon()

    def _follow(self, batch: _Batch, ran: FutureOutcomes) -> None:
        """Answers the requests of a batch when it ends."""
        self._running[ran] = batch
        self._running_of[batch.key] += 1
        for item in batch.items:
            self._expire_at_deadline(item)
        ran.add_done_callback(self._finish)

    def _finish(self, ran: FutureOutcomes) -> None:
        batch = self._running.pop(ran, None)
        if batch is None:  # taken back
            return
        was_at_limit = self._is_at_limit(batch.key)
        self._running_of[batch.key] -= 1
        if was_at_limit:
            self._start_soon()
        error = asyncio.CancelledError() if ran.cancelled() else ran.exception()
        if error is None:
            self._answer(batch, ran.result(), self._clock.monotonic_s())
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
        self._on_ran(batch.key, batch.rows, now_s - batch.started_s, waits_s)
        if tracing.active:
            self._trace(batch, now_s, waits_s)

    def _trace(self, batch: _Batch, now_s: float, waits_s: Sequence[float]) -> None:
        """Records the spans of the requests of a batch that ended. On the event loop, it is executed as a whole."""
        seconds = now_s - batch.started_s
        for item, wait_s in zip(batch.items, waits_s, strict=True):
            trace = item.request.trace
            tracing.record("queue", trace, wait_s, ago_s=seconds)
            tracing.record("batch", trace, seconds, rows=str(batch.rows))
            if batch.run is None:
                tracing.record("execute", trace, seconds)

    def _expire_at_deadline(self, item: PendingRequest) -> None:
        if item.expiry is None and item.request.deadline_s is not None:
            item.expiry = self._clock.call_at(item.request.deadline_s, partial(self._expire, item))

    def _expire(self, item: PendingRequest) -> None:
        self._queue.remove(item)
        if not item.answered.done():
            if item.level != AUDIT_LEVEL:
                self._on_late()
            self._admission.learn(item, self._clock.monotonic_s())
            item.settle(_deadline_error())


def _deadline_error() -> FirstlineError:
    return DeadlineExceededError("The request's deadline passed before it was answered; allow more time.")


def register_metrics(metrics: RequestMetrics, batcher: Batcher) -> None:
    """Registers how many requests wait, and for how long."""
    metrics.gauge("queue_depth", "Requests that wait to run.", lambda: batcher.depth)
    metrics.gauge("queue_seconds", "Seconds that a request received now would wait.", lambda: batcher.wait_s)
