"""Dynamic batching without waiting: what queued while every session was busy is the next batch.

Nothing polls. A request that finds a free session starts at once, alone (with several executors: where one is worth
it, see `late.py`); under load batches grow by themselves, because more requests wait when a session frees. (Triton's
and TorchServe's batchers hold requests back for a configured delay instead.) Here are the queue's comings and goings;
`admission.py` decides who comes in, `batches.py` what runs next, `feeding.py` or `late.py` when.

What is promised: a request that was let in is answered by its deadline, or told at that moment that it is not. The
first is as good as the predictions are; the second holds always. Audits alone are let in without a promise: nobody
waits for them, and they give way to everything else.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from functools import partial

from firstline_core.clock import Clock
from firstline_core.errors import FirstlineError
from firstline_core.telemetry.statistics import Apart
from firstline_core.telemetry.trace import CURRENT
from firstline_core.types import InferRequest, ModelKey
from firstline_gateway.executors.base import Executor, InProcess, Probabilities
from firstline_gateway.executors.seating import HasSeats, Seat
from firstline_gateway.serving.scheduling.admission import Admission, Bounds
from firstline_gateway.serving.scheduling.batches import Choice
from firstline_gateway.serving.scheduling.feeding import Feeder, Feeding, Line
from firstline_gateway.serving.scheduling.inline import Answered, Inline, expired, settle
from firstline_gateway.serving.scheduling.late import Late
from firstline_gateway.serving.scheduling.running import Batch, Ran, Running
from firstline_gateway.serving.scheduling.waiting import AUDIT_LEVEL, Queue, Waiting


class Batcher:
    """Lets requests in, queues them and hands out their answers. Belongs to one event loop.

    Args:
        executor: runs at most `executor.slots` batches at the same moment.
        clock: what deadlines are on.
        bounds: how much may wait.
        concurrency: of a model's batches, the most that run at the same moment; 0 is `executor.slots`.
        on_batch: told each batch's rows, for the metrics.
        on_late: told of each request that was let in and not answered by its deadline, but for audits.
        on_ran: told of each batch that ended: its model, rows, seconds, and how long each of its requests had waited.
    """

    def __init__(
        self,
        executor: Executor,
        *,
        clock: Clock,
        bounds: Bounds,
        concurrency: Callable[[ModelKey], int] = lambda key: 0,
        on_batch: Callable[[int], None] = lambda rows: None,
        on_late: Callable[[], None] = lambda: None,
        on_ran: Callable[[ModelKey, int, float, Sequence[float]], None] = lambda key, rows, seconds, waits_s: None,
    ) -> None:
        self._executor = executor
        self._clock = clock
        self._on_batch = on_batch
        self._on_late = on_late
        self._on_ran = on_ran
        self._queue = Queue()
        self._admission = Admission(self._queue, bounds)
        self._running = Running(concurrency)
        line = Line(self._queue, self._running, self._admission.margin, clock, bounds.batch_rows, gate=self)
        self._feeder: Feeder = Late(executor, line) if isinstance(executor, HasSeats) else Feeding(executor, line)
        self._inline = (
            Inline(
                executor,
                clock=clock,
                batch_rows=bounds.batch_rows,
                on_batch=on_batch,
                on_late=on_late,
                on_ran=on_ran,
            )
            if isinstance(executor, InProcess)
            else None
        )

    @property
    def depth(self) -> int:
        """Requests that wait, all models together."""
        return len(self._queue) + (len(self._inline) if self._inline is not None else 0)

    @property
    def wait_s(self) -> float:
        """How long a request without a deadline that came now would wait, as far as is known."""
        return self._feeder.wait_s

    @property
    def apart(self) -> Mapping[ModelKey, Apart]:
        """What of the runs' time the engine measured apart, by model."""
        return self._executor.report().apart

    def trouble(self, key: ModelKey) -> str:
        """Why a model cannot run at the moment, as a sentence; "" where it can."""
        return self._executor.trouble(key)

    async def submit(self, key: ModelKey, request: InferRequest) -> Probabilities:
        """Waits for the request's turn and returns its rows, (rows, classes) in their order.

        A caller that is cancelled while it waits takes its request out of the queue.

        Raises:
            QueueFullError: it would wait too long, or too much waits already; `retry_after_s` says when to come back.
            DeadlineExceededError: it allows less than the model takes, or its deadline passed.
            FirstlineError: what the executor said of this request.
        """
        now_s = self._clock.monotonic_s()
        if request.deadline_s is not None and request.deadline_s <= now_s:
            raise expired()
        answered: asyncio.Future[Probabilities] = asyncio.get_running_loop().create_future()
        if self.enter(key, request, now_s, answered):
            return await answered
        idle, before = self._feeder.before(key, request.rows, now_s)
        item = self._admission.let_in(key, request, now_s, before, idle=idle)
        item.came_s = now_s
        self._queue.add(item, before.parts)
        self._feeder.came(item)
        if request.deadline_s is not None:
            item.expiry = self._clock.call_at(request.deadline_s, partial(self._expire, item))
        try:
            found = await item.answered
            self._admission.learn(item, self._clock.monotonic_s())
            return found
        finally:
            if item.expiry is not None:
                item.expiry.cancel()
            self._remove(item)

    def enter(self, key: ModelKey, request: InferRequest, now_s: float, answered: Answered) -> bool:
        """Runs a request of a small model by the end of this turn of the loop, and tells `answered`.

        Returns:
            False where it has to queue: nothing has happened then.
        """
        if self._inline is None or (self._running.batches and self._running.is_full(key)):
            return False
        return self._inline.enter(key, request, now_s, answered)

    def abandon(self, error: FirstlineError) -> None:
        """Answers everything that waits or runs with `error`; what runs goes on, for nobody."""
        if self._inline is not None:
            self._inline.abandon(error)
        self.refuse(tuple(self._queue), error)
        for running in self._running.batches.values():
            for item in running.items:
                settle(item.answered, error)

    def _remove(self, item: Waiting) -> None:
        self._queue.remove(item)
        self._feeder.withdraw(item)

    def _expire(self, item: Waiting) -> None:
        self._remove(item)
        if not item.answered.done():
            if item.level != AUDIT_LEVEL:
                self._on_late()
            self._admission.learn(item, self._clock.monotonic_s())
            settle(item.answered, expired())

    # Requests leave the queue: see `feeding.Gate`.

    def begin(self, choice: Choice, now_s: float, seat: Seat | None = None) -> None:
        """Begins a batch, where there are several executors on the one where it has a seat."""
        for item in choice.hopeless:
            self._expire(item)
        for item, seconds in choice.put_off:
            item.foreseen_s += seconds
        for item in choice.batch:
            self._queue.remove(item)
        if choice.batch:
            self._start(choice.batch, now_s, seat)

    def refuse(self, items: Sequence[Waiting], error: FirstlineError) -> None:
        """Takes requests out of the queue and tells them an error."""
        for item in items:
            self._remove(item)
            settle(item.answered, error)

    def _start(self, items: list[Waiting], now_s: float, seat: Seat | None) -> None:
        inputs = [item.request.inputs[0] for item in items]
        deadlines_s = [item.request.deadline_s for item in items]
        trace = None
        for item in items:  # of several, one has to do: what is sent on has one parent
            if item.request.trace is not None:
                trace = CURRENT.set(item.request.trace)
                break
        if seat is not None:
            ran = asyncio.ensure_future(seat.run(inputs, deadlines_s))
        else:
            ran = asyncio.ensure_future(self._executor.run(items[0].key, inputs, deadlines_s))
        if trace is not None:
            CURRENT.reset(trace)
        self.follow(items, ran, now_s)

    def follow(self, items: list[Waiting], ran: Ran, started_s: float) -> None:
        """Sees to what comes of a batch that runs since then."""
        rows = sum(item.request.rows for item in items)
        self._on_batch(rows)
        self._running.add(ran, Batch(items[0].key, items, rows, started_s))
        ran.add_done_callback(self._finish)

    def _finish(self, ran: Ran) -> None:
        ended = self._running.pop(ran)
        now_s = self._clock.monotonic_s()
        seconds = now_s - ended.started_s
        if not ran.cancelled() and ran.exception() is None:  # to fail is no measure of the work
            self._feeder.ended(ended.key, ended.rows, seconds, now_s)
        # The session must not idle while answers are handed out.
        self._feeder.fill()
        if ran.cancelled():
            for item in ended.items:
                item.answered.cancel()
            return
        error = ran.exception()
        if error is not None:
            for item in ended.items:
                settle(item.answered, error)
            return
        waits_s = [max(0.0, ended.started_s - item.came_s) for item in ended.items]
        self._on_ran(ended.key, ended.rows, seconds, waits_s)
        for item, outcome in zip(ended.items, ran.result(), strict=True):
            settle(item.answered, outcome)
