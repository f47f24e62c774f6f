"""Dynamic batching without waiting: what queued while every session was busy is the next batch.

Nothing polls. A request that finds a free session starts at once, alone (with several executors: where one is worth
it, see `late.py`); under load batches grow by themselves,
because more requests wait when a session frees. (Triton's and TorchServe's batchers hold requests back for a configured
delay instead.) Here are the queue's comings and goings; `admission.py` decides who comes in, `batches.py` what runs
next.

What is promised: a request that was let in is answered by its deadline, or told at that moment that it is not. The
first is as good as the predictions are; the second holds always. Audits alone are let in without a promise: nobody
waits for them, and they give way to everything else.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from firstline_core.clock import Clock
from firstline_core.errors import FirstlineError
from firstline_core.telemetry.statistics import Apart
from firstline_core.telemetry.trace import CURRENT
from firstline_core.types import InferRequest
from firstline_gateway.executors.base import (
    Executor,
    HasSeats,
    InProcess,
    ModelKey,
    Offer,
    Outcome,
    Probabilities,
    Seat,
    TakesAhead,
)
from firstline_gateway.scheduling.admission import Admission, Before, Bounds
from firstline_gateway.scheduling.ahead import Ahead
from firstline_gateway.scheduling.batches import Choice, choose
from firstline_gateway.scheduling.inline import INLINE_S, Answered, Inline, expired, settle
from firstline_gateway.scheduling.late import Late
from firstline_gateway.scheduling.waiting import AUDIT_LEVEL, Queue, Waiting


@dataclass(frozen=True, slots=True)
class _Running:
    batch: list[Waiting]
    started_s: float
    seconds: float  # expected

    @property
    def rows(self) -> int:
        return sum(item.request.rows for item in self.batch)

    def left_s(self, now_s: float) -> float:
        """What it will still take. One that takes longer than expected is expected to take as much longer again."""
        return abs(self.started_s + self.seconds - now_s)


class Batcher:
    """Lets requests in, queues them and feeds the executor. Belongs to one event loop.

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
        self._bounds = bounds
        self._concurrency = concurrency
        self._running_of: Counter[ModelKey] = Counter()
        self._on_batch = on_batch
        self._on_late = on_late
        self._on_ran = on_ran
        self._queue = Queue()
        self._admission = Admission(self._queue, bounds)
        self._running: dict[asyncio.Future[list[Outcome]], _Running] = {}
        self._measured: Callable[[ModelKey], Mapping[int, float]] = (
            executor.measured if isinstance(executor, InProcess) else lambda key: {}
        )
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

        self._ahead = (
            Ahead(
                executor,
                self._queue,
                lambda key: self._admission.times[key],
                clock=clock,
                max_rows=bounds.batch_rows,
                is_bound=lambda key: 0 < concurrency(key) < executor.slots,
            )
            if isinstance(executor, TakesAhead)
            else None
        )
        self._late = (
            Late(
                executor,
                self._queue,
                self._admission,
                clock=clock,
                max_rows=bounds.batch_rows,
                full=self._full,
                begin=self._begin,
                refuse=self._refuse,
            )
            if isinstance(executor, HasSeats)
            else None
        )

    @property
    def depth(self) -> int:
        """Requests that wait, all models together."""
        return len(self._queue) + (len(self._inline) if self._inline is not None else 0)

    @property
    def wait_s(self) -> float:
        """How long a request without a deadline that came now would wait, as far as is known."""
        aside_s = self._late.aside_s if self._late is not None else 0.0
        waiting_s = max(0.0, self._queue.work_s() - aside_s)
        return (self._busy_s(self._clock.monotonic_s()) + waiting_s) / self._executor.slots

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
        self._expect(key)
        idle, before = self._before(key, request.rows, now_s)
        item = self._admission.let_in(key, request, now_s, before, idle=idle)
        item.came_s = now_s
        self._queue.add(item, item.work_s / before.slots, before.parts)
        self._start_batches()
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
        if self._inline is None or (self._running and self._is_full(key)):
            return False
        return self._inline.enter(key, request, now_s, answered)

    def abandon(self, error: FirstlineError) -> None:
        """Answers everything that waits or runs with `error`; what runs goes on, for nobody."""
        if self._inline is not None:
            self._inline.abandon(error)
        self._refuse(tuple(self._queue), error)
        for running in self._running.values():
            for item in running.batch:
                settle(item.answered, error)

    def _expect(self, key: ModelKey) -> None:
        """A large model is known from its loading on; what a small one takes in threads says more of Python's lock."""
        times = self._admission.times[key]
        if not times.known and (measured := self._measured(key)).get(1, 0.0) > INLINE_S:
            times.expect(measured)

    def _remove(self, item: Waiting) -> None:
        self._queue.remove(item)
        if self._ahead is not None:
            self._ahead.withdraw(item)
        if self._late is not None:
            self._late.withdraw(item)

    def _expire(self, item: Waiting) -> None:
        self._remove(item)
        if not item.answered.done():
            if item.level != AUDIT_LEVEL:
                self._on_late()
            self._admission.learn(item, self._clock.monotonic_s())
            settle(item.answered, expired())

    def _busy_s(self, now_s: float) -> float:
        return sum(running.left_s(now_s) for running in self._running.values())

    def _before(self, key: ModelKey, rows: int, now_s: float) -> tuple[bool, Before]:
        """Whether a request that comes now begins at once, and what is before it."""
        if self._late is not None:
            running = [(each.batch[0].key, each.left_s(now_s)) for each in self._running.values()]
            return self._late.before(key, rows, running)
        slots = self._executor.slots
        idle = not self._queue and not self._is_full(key) and len(self._running) < slots
        return idle, Before(slots, self._busy_s(now_s))

    def _start_batches(self) -> None:
        if self._late is not None:
            self._late.fill()
            return
        ahead, slots = self._ahead, self._executor.slots
        if ahead is None:
            self._fill()
            return
        if len(self._running) < slots:
            self._adopt(ahead.begun())
        if len(self._running) < slots:
            self._adopt(ahead.take_back())
            self._fill()
        if len(self._running) >= slots:
            ahead.look(self._busy_s(self._clock.monotonic_s()), slots)

    def _adopt(self, begun: list[tuple[Waiting, Offer]]) -> None:
        """Counts among the running what threads have begun by themselves."""
        for item, offer in begun:
            self._queue.remove(item)
            started_s = self._clock.monotonic_s() if offer.begun_s is None else offer.begun_s
            self._follow([item], asyncio.wrap_future(offer.ran), started_s)

    def _fill(self) -> None:
        while self._queue and len(self._running) < self._executor.slots:
            now_s = self._clock.monotonic_s()
            choice = choose(
                self._queue,
                self._admission.times,
                now_s=now_s,
                margin_s=self._admission.margin.seconds,
                max_rows=self._bounds.batch_rows,
                full=self._full(),
            )
            if not choice.batch and not choice.hopeless:  # all that waits is for models that run as often as they may
                return
            self._begin(choice, now_s)

    def _begin(self, choice: Choice, now_s: float, seat: Seat | None = None) -> None:
        """Begins a batch, where there are several executors on the one where it has a seat."""
        for item in choice.hopeless:
            self._expire(item)
        for item, seconds in choice.put_off:
            item.foreseen_s += seconds
        for item in choice.batch:
            self._queue.remove(item)
        if choice.batch:
            self._start(choice.batch, now_s, seat)

    def _refuse(self, items: Sequence[Waiting], error: FirstlineError) -> None:
        for item in items:
            self._remove(item)
            settle(item.answered, error)

    def _full(self) -> set[ModelKey]:
        return {key for key in self._running_of if self._is_full(key)}

    def _is_full(self, key: ModelKey) -> bool:
        most = self._concurrency(key)
        return 0 < most <= self._running_of[key]

    def _start(self, batch: list[Waiting], now_s: float, seat: Seat | None) -> None:
        inputs = [item.request.inputs[0] for item in batch]
        deadlines_s = [item.request.deadline_s for item in batch]
        trace = None
        for item in batch:  # of several, one has to do: what is sent on has one parent
            if item.request.trace is not None:
                trace = CURRENT.set(item.request.trace)
                break
        if seat is not None:
            running = asyncio.ensure_future(seat.run(inputs, deadlines_s))
        else:
            running = asyncio.ensure_future(self._executor.run(batch[0].key, inputs, deadlines_s))
        if trace is not None:
            CURRENT.reset(trace)
        self._follow(batch, running, now_s)

    def _follow(self, batch: list[Waiting], running: asyncio.Future[list[Outcome]], now_s: float) -> None:
        """Sees to what comes of a batch that runs since `now_s`."""
        key = batch[0].key
        rows = sum(item.request.rows for item in batch)
        self._on_batch(rows)
        self._running_of[key] += 1
        self._running[running] = _Running(batch, now_s, self._admission.times[key].seconds(rows))
        running.add_done_callback(self._finish)

    def _finish(self, ran: asyncio.Future[list[Outcome]]) -> None:
        ended = self._running.pop(ran)
        self._running_of[ended.batch[0].key] -= 1
        now_s = self._clock.monotonic_s()
        if not ran.cancelled() and ran.exception() is None:  # to fail is no measure of the work
            self._admission.times[ended.batch[0].key].observe(ended.rows, now_s - ended.started_s, now_s)
        # The session must not idle while answers are handed out.
        self._start_batches()
        if ran.cancelled():
            for item in ended.batch:
                item.answered.cancel()
            return
        error = ran.exception()
        if error is not None:
            for item in ended.batch:
                settle(item.answered, error)
            return
        waits_s = [max(0.0, ended.started_s - item.came_s) for item in ended.batch]
        self._on_ran(ended.batch[0].key, ended.rows, now_s - ended.started_s, waits_s)
        for item, outcome in zip(ended.batch, ran.result(), strict=True):
            settle(item.answered, outcome)
