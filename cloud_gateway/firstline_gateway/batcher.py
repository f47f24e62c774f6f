"""Dynamic batching without waiting: what queued while every session was busy is the next batch.

Nothing polls. A request that finds a free session starts at once, alone, and sets no timer; under load batches grow
by themselves, because more requests wait when a session frees. (Triton's and TorchServe's batchers hold requests
back for a configured delay instead.) One that has to wait and has a deadline is answered at that moment.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

from firstline_core.clock import Clock, Timer
from firstline_core.errors import DeadlineExceededError, FirstlineError, QueueFullError
from firstline_core.types import InferRequest
from firstline_gateway.executors.base import Executor, ModelKey, Outcome, Probabilities

# Weight of the newest batch in the running mean of seconds a row.
_SMOOTHING = 0.2
_FIRST_RETRY_S = 1.0
# Of the room to wait. An audit that is refused is lost, whatever it would have shown; an escalation has a caller.
_AUDITS_SHARE = 0.5


@dataclass(slots=True, eq=False)
class _Waiting:
    request: InferRequest
    size_bytes: int
    answered: asyncio.Future[Probabilities]
    expiry: Timer | None = None


@dataclass(slots=True)
class _Queue:
    waiting: OrderedDict[int, _Waiting] = field(default_factory=OrderedDict)
    rows: int = 0
    seconds_per_row: float | None = None


@dataclass(frozen=True, slots=True)
class Batch:
    """What runs next: whole requests for one model, in the order they came."""

    key: ModelKey
    waiting: tuple[_Waiting, ...]

    @property
    def rows(self) -> int:
        return sum(item.request.rows for item in self.waiting)


class Batcher:
    """Queues requests by model and feeds the executor. Belongs to one event loop.

    Args:
        executor: runs at most `executor.slots` batches at the same moment.
        clock: what deadlines are on.
        max_batch_rows: a batch takes requests up to this many rows; a larger request is a batch of its own.
        queue_requests: the most that wait for one model.
        queue_bytes: the most bytes of tensors that wait, all models together.
        on_batch: told each batch's rows, for the metrics.
        on_expired: told of each request that expired while it waited.
    """

    def __init__(
        self,
        executor: Executor,
        *,
        clock: Clock,
        max_batch_rows: int,
        queue_requests: int,
        queue_bytes: int,
        on_batch: Callable[[int], None] = lambda rows: None,
        on_expired: Callable[[], None] = lambda: None,
    ) -> None:
        self._executor = executor
        self._clock = clock
        self._max_batch_rows = max_batch_rows
        self._queue_requests = queue_requests
        self._queue_bytes = queue_bytes
        self._on_batch = on_batch
        self._on_expired = on_expired
        self._queues: dict[ModelKey, _Queue] = {}
        self._turn: OrderedDict[ModelKey, None] = OrderedDict()
        self._bytes = 0
        self._running: dict[asyncio.Task[list[Outcome]], Batch] = {}

    @property
    def depth(self) -> int:
        """Requests that wait, all models together."""
        return sum(len(self._queues[key].waiting) for key in self._turn)

    async def submit(self, key: ModelKey, request: InferRequest) -> Probabilities:
        """Waits for the request's turn and returns its rows, (rows, classes) in their order.

        A caller that is cancelled while it waits takes its request out of the queue.

        Raises:
            QueueFullError: too much waits already; `retry_after_s` is an estimate.
            DeadlineExceededError: the deadline passed before the request's turn.
            FirstlineError: what the executor said of this request.
        """
        self._refuse_expired(request)
        item = _Waiting(request, request.size_bytes, asyncio.get_running_loop().create_future())
        self._enqueue(key, item)
        self._start_batches()
        if request.deadline_s is not None and id(item) in self._queues[key].waiting:
            item.expiry = self._clock.call_at(request.deadline_s, partial(self._expire, key, item))
        try:
            return await item.answered
        finally:
            self._forget(key, item)

    def abandon(self, error: FirstlineError) -> None:
        """Answers everything that waits or runs with `error`; what runs goes on, for nobody."""
        for key in tuple(self._turn):
            for item in tuple(self._queues[key].waiting.values()):
                self._forget(key, item)
                _settle(item, error)
        for batch in self._running.values():
            for item in batch.waiting:
                _settle(item, error)

    def _expire(self, key: ModelKey, item: _Waiting) -> None:
        self._forget(key, item)
        self._on_expired()
        _settle(item, _expired())

    def _refuse_expired(self, request: InferRequest) -> None:
        if request.deadline_s is not None and request.deadline_s <= self._clock.monotonic_s():
            self._on_expired()
            raise _expired()

    def _enqueue(self, key: ModelKey, item: _Waiting) -> None:
        queue = self._queues.setdefault(key, _Queue())
        share = 1.0 if item.request.audit is None else _AUDITS_SHARE
        if len(queue.waiting) >= self._queue_requests * share:
            raise QueueFullError(
                f"{len(queue.waiting)} requests wait for model '{key.name}' already; come back later.",
                retry_after_s=self._drained_in_s(queue),
            )
        if self._bytes and self._bytes + item.size_bytes > self._queue_bytes * share:
            raise QueueFullError(
                f"{self._bytes} bytes of requests wait already; come back later.",
                retry_after_s=self._drained_in_s(queue),
            )
        queue.waiting[id(item)] = item
        queue.rows += item.request.rows
        self._bytes += item.size_bytes
        self._turn.setdefault(key)

    def _forget(self, key: ModelKey, item: _Waiting) -> None:
        """Takes an item out of its queue; harmless where it was out already."""
        queue = self._queues[key]
        if queue.waiting.pop(id(item), None) is None:
            return
        if item.expiry is not None:
            item.expiry.cancel()
        queue.rows -= item.request.rows
        self._bytes -= item.size_bytes
        if not queue.waiting:
            del self._turn[key]

    def _drained_in_s(self, queue: _Queue) -> float:
        if queue.seconds_per_row is None:
            return _FIRST_RETRY_S
        return queue.rows * queue.seconds_per_row / self._executor.slots

    def _next_batch(self) -> Batch | None:
        """The one place that decides what runs next: models in turn, of each the oldest requests.

        Requests that expired are answered so and passed over.
        """
        now_s = self._clock.monotonic_s()
        while self._turn:
            key = next(iter(self._turn))
            chosen: list[_Waiting] = []
            rows = 0
            waiting = self._queues[key].waiting
            while waiting:
                item = next(iter(waiting.values()))
                if item.request.deadline_s is not None and item.request.deadline_s <= now_s:
                    self._expire(key, item)
                    continue
                if chosen and rows + item.request.rows > self._max_batch_rows:
                    break
                self._forget(key, item)
                chosen.append(item)
                rows += item.request.rows
            if key in self._turn:
                self._turn.move_to_end(key)
            if chosen:
                return Batch(key, tuple(chosen))
        return None

    def _start_batches(self) -> None:
        while len(self._running) < self._executor.slots:
            batch = self._next_batch()
            if batch is None:
                return
            self._on_batch(batch.rows)
            started_s = self._clock.monotonic_s()
            inputs = [item.request.inputs[0] for item in batch.waiting]
            deadlines_s = [item.request.deadline_s for item in batch.waiting]
            task = asyncio.create_task(self._executor.run(batch.key, inputs, deadlines_s))
            self._running[task] = batch
            task.add_done_callback(partial(self._finish, batch, started_s))

    def _finish(self, batch: Batch, started_s: float, task: asyncio.Task[list[Outcome]]) -> None:
        del self._running[task]
        self._learn(batch, self._clock.monotonic_s() - started_s)
        # The session must not idle while answers are handed out.
        self._start_batches()
        if task.cancelled():
            for item in batch.waiting:
                item.answered.cancel()
            return
        error = task.exception()
        if error is not None:
            for item in batch.waiting:
                _settle(item, error)
            return
        for item, outcome in zip(batch.waiting, task.result(), strict=True):
            _settle(item, outcome)

    def _learn(self, batch: Batch, seconds: float) -> None:
        queue = self._queues[batch.key]
        newest = seconds / batch.rows
        before = queue.seconds_per_row
        queue.seconds_per_row = newest if before is None else before + _SMOOTHING * (newest - before)


def _settle(item: _Waiting, outcome: Probabilities | BaseException) -> None:
    if item.answered.done():  # its caller went away
        return
    if isinstance(outcome, BaseException):
        item.answered.set_exception(outcome)
    else:
        item.answered.set_result(outcome)


def _expired() -> FirstlineError:
    return DeadlineExceededError("The request's deadline passed before its turn to run; allow more time.")
