"""Small models run on the event loop: what came in one turn of it is the batch that runs at the turn's end.

A hop to a thread and back takes some hundred microseconds, and a place in the queue some dozens; a model that takes
less is done before. While requests come one at a time each runs at once; under load batches grow by themselves, as
in the queue.

What keeps one small model from holding up all else: only models whose batches take less than `INLINE_S` run here, in
one turn no more than `TURN_S` of them, and no more is let in than `WAITING_S`. The rest takes its place in the queue,
and so do audits where anything waits here: they give way. What fails here and runs on another executor (`dispatch`)
holds nobody up, and is answered by its deadline as in the queue.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple, Protocol

from firstline_core.clock import Clock, Timer
from firstline_core.errors import DeadlineExceededError, FirstlineError
from firstline_core.runtime.batch_times import BatchTimes
from firstline_core.telemetry.logs import logger
from firstline_core.types import InferRequest, ModelKey
from firstline_gateway.executors.base import InProcess, Outcome, Probabilities

INLINE_S = 0.001
TURN_S = 0.003
WAITING_S = 0.01
# A model that became too slow is tried again after so long, if it was not when it was loaded.
_DOUBT_S = 10.0
# No hiccup of the machine takes so long: what a batch took is what the model takes.
_SLOW_S = 0.1

log = logger(__name__)


class Answered(Protocol):
    """Who waits for a request's outcome; a future is one, and so is what answers without one (`fast_exchange.py`)."""

    def done(self) -> bool:
        """Whether nobody waits any more."""
        ...

    def set_result(self, result: Probabilities, /) -> None: ...
    def set_exception(self, exception: BaseException, /) -> None: ...


class Passenger(NamedTuple):
    """One request that waits for the end of this turn, and who is told what becomes of it."""

    request: InferRequest
    answered: Answered
    came_s: float


@dataclass(slots=True)
class _Coach:
    """What waits of one model."""

    passengers: list[Passenger] = field(default_factory=list)
    rows: int = 0
    work_s: float = 0.0  # expected, as one batch


class _Ran(NamedTuple):
    """A batch that ended: who was asked, and when, on the clock."""

    key: ModelKey
    asked: list[Passenger]
    started_s: float
    ended_s: float


class Inline:
    """Belongs to one event loop.

    Args:
        executor: runs batches here and now.
        clock: what deadlines are on.
        batch_rows: the most that one batch takes.
        on_batch: told each batch's rows.
        on_late: told of each request that was let in and not answered by its deadline.
        on_ran: told of each batch that ended: its model, rows, seconds, and how long each of its requests had waited.
    """

    def __init__(
        self,
        executor: InProcess,
        *,
        clock: Clock,
        batch_rows: int,
        on_batch: Callable[[int], None],
        on_late: Callable[[], None],
        on_ran: Callable[[ModelKey, int, float, Sequence[float]], None],
    ) -> None:
        self._executor = executor
        # Its own: of batches in threads the time tells more of the interpreter's lock than of a small model.
        self._times: dict[ModelKey, BatchTimes] = {}
        self._measured: dict[ModelKey, Mapping[int, float]] = {}  # what they began with: another model, other times
        self._forget_s: dict[ModelKey, float] = {}
        self._clock = clock
        self._batch_rows = batch_rows
        self._on_batch = on_batch
        self._on_late = on_late
        self._on_ran = on_ran
        self._coaches: dict[ModelKey, _Coach] = {}
        self._elsewhere: dict[asyncio.Future[list[Outcome]], Sequence[Passenger]] = {}  # what failed here
        self._work_s = 0.0
        self._due = False
        self._came = 0  # in this turn
        self._ran: list[_Ran] = []  # and not learned from
        self._alone = False  # whoever came in the last turn: the next is not kept waiting for others

    def __len__(self) -> int:
        return sum(len(coach.passengers) for coach in self._coaches.values())

    def enter(self, key: ModelKey, request: InferRequest, now_s: float, answered: Answered) -> bool:
        """Takes a request along, where its model is small enough and there is room; False where it has to queue."""
        measured = self._executor.measured(key)
        if not measured:
            return False
        if measured is not self._measured.get(key):
            self._expect(key, measured, now_s)
        times = self._times[key]
        rows = request.rows
        if request.audit is not None and (self._coaches or self._came):
            return False
        coach = self._coaches.get(key)
        if (coach is None or rows > 1) and times.seconds(rows) > INLINE_S:
            self._doubt(key, now_s)
            return False
        waiting, waiting_s = (coach.rows, coach.work_s) if coach is not None else (0, 0.0)
        work_s = times.seconds(waiting + rows)
        ends_s = now_s + self._work_s + work_s - waiting_s
        if ends_s - now_s > WAITING_S or (request.deadline_s is not None and request.deadline_s < ends_s):
            return False
        self._came += 1
        if not self._due:
            self._due = True
            asyncio.get_running_loop().call_soon(self._run)
        if self._alone and self._came == 1 and not self._coaches:
            self._run_safely(key, [Passenger(request, answered, now_s)])
            return True
        if coach is None:
            coach = self._coaches[key] = _Coach()
        coach.passengers.append(Passenger(request, answered, now_s))
        coach.rows += rows
        coach.work_s = work_s
        self._work_s = ends_s - now_s
        return True

    def abandon(self, error: FirstlineError) -> None:
        """Answers everything that waits with `error`."""
        coaches, self._coaches, self._work_s = self._coaches, {}, 0.0
        for passengers in [*(coach.passengers for coach in coaches.values()), *self._elsewhere.values()]:
            for passenger in passengers:
                settle(passenger.answered, error)

    def _expect(self, key: ModelKey, measured: Mapping[int, float], now_s: float) -> None:
        """Has a model's batches take what they were measured to take."""
        self._measured[key] = measured
        self._forget_s[key] = now_s + _DOUBT_S
        times = self._times[key] = BatchTimes()
        times.expect(measured)

    def _doubt(self, key: ModelKey, now_s: float) -> None:
        """Its batches take too long here, or did while this machine was busy: later, what was measured first holds."""
        if now_s >= self._forget_s[key]:
            del self._measured[key]

    def _run(self) -> None:
        """Runs what waits, for as long as one turn may take; what is left goes first in the next."""
        self._due = False
        self._alone, self._came = self._came <= 1, 0
        end_s = self._clock.monotonic_s() + TURN_S if self._coaches else 0.0
        while self._coaches:
            key = next(iter(self._coaches))
            coach = self._coaches.pop(key)
            self._run_safely(key, self._taken(key, coach))
            if self._coaches and self._clock.monotonic_s() >= end_s:
                self._due = True
                asyncio.get_running_loop().call_soon(self._run)
                break
        self._learn()

    def _run_safely(self, key: ModelKey, batch: Sequence[Passenger]) -> None:
        try:
            self._run_batch(key, batch)
        except Exception as error:  # the outermost loop of what runs here
            log.exception("a batch failed unexpectedly", model=key.name)
            for passenger in batch:
                settle(passenger.answered, error)

    def _taken(self, key: ModelKey, coach: _Coach) -> list[Passenger]:
        """One batch; what does not fit goes behind the other models'."""
        self._work_s = max(0.0, self._work_s - coach.work_s) if self._coaches else 0.0
        most = self._times[key].worthwhile_rows(self._batch_rows)
        if coach.rows <= most:
            return coach.passengers
        rows = taken = 0
        for passenger in coach.passengers:
            rows += passenger.request.rows
            if taken and rows > most:
                break
            taken += 1
        left = coach.passengers[taken:]
        if left:
            left_rows = sum(passenger.request.rows for passenger in left)
            self._coaches[key] = _Coach(left, left_rows, self._times[key].seconds(left_rows))
            self._work_s += self._coaches[key].work_s
        return coach.passengers[:taken]

    def _run_batch(self, key: ModelKey, batch: Sequence[Passenger]) -> None:
        asked = [passenger for passenger in batch if not passenger.answered.done()]  # whose callers are still there
        if not asked:
            return
        requests = [passenger.request for passenger in asked]
        started_s = self._clock.monotonic_s()
        outcomes = self._executor.run_now(
            key, [request.inputs[0] for request in requests], [request.deadline_s for request in requests]
        )
        now_s = self._clock.monotonic_s()
        if not isinstance(outcomes, list):
            self._follow(_Ran(key, asked, started_s, math.inf), outcomes)
            return
        for passenger, outcome in zip(asked, outcomes, strict=True):
            deadline_s = passenger.request.deadline_s
            if deadline_s is not None and deadline_s <= now_s:
                self._expire(passenger)
            else:
                settle(passenger.answered, outcome)
        self._ran.append(_Ran(key, asked, started_s, now_s))

    def _follow(self, ran: _Ran, outcomes: Awaitable[list[Outcome]]) -> None:
        """Sees to what comes of a batch that runs elsewhere after all."""
        running = asyncio.ensure_future(outcomes)
        self._elsewhere[running] = ran.asked
        due = [(each.request.deadline_s, partial(self._expire, each)) for each in ran.asked]
        expiries = [self._clock.call_at(due_s, expire) for due_s, expire in due if due_s is not None]
        running.add_done_callback(partial(self._arrive, ran, expiries))

    def _arrive(self, ran: _Ran, expiries: Sequence[Timer], running: asyncio.Future[list[Outcome]]) -> None:
        del self._elsewhere[running]
        for expiry in expiries:
            expiry.cancel()
        error = asyncio.CancelledError() if running.cancelled() else running.exception()
        if error is None:
            self._tell(ran._replace(ended_s=self._clock.monotonic_s()))
        outcomes = running.result() if error is None else [error] * len(ran.asked)
        for passenger, outcome in zip(ran.asked, outcomes, strict=True):
            settle(passenger.answered, outcome)

    def _expire(self, passenger: Passenger) -> None:
        if not passenger.answered.done():
            self._on_late()
            settle(passenger.answered, expired())

    def _learn(self) -> None:
        """Notes what the batches of this turn took: those who wait for their answers need not wait for that."""
        ran, self._ran = self._ran, []
        for each in ran:
            key, _, started_s, ended_s = each
            seconds = ended_s - started_s
            if seconds > _SLOW_S:
                self._times[key] = BatchTimes()
                self._forget_s[key] = ended_s + _DOUBT_S
            self._times[key].observe(self._tell(each), seconds, ended_s)

    def _tell(self, ran: _Ran) -> int:
        """Tells of a batch that ended, here or elsewhere; its rows."""
        rows = sum([passenger.request.rows for passenger in ran.asked])
        self._on_batch(rows)
        waits_s = [ran.started_s - passenger.came_s for passenger in ran.asked]
        self._on_ran(ran.key, rows, ran.ended_s - ran.started_s, waits_s)
        return rows


def settle(answered: Answered, outcome: Outcome | BaseException) -> None:
    """Answers a request, where its caller has not gone away."""
    if answered.done():
        return
    if isinstance(outcome, BaseException):
        answered.set_exception(outcome)
    else:
        answered.set_result(outcome)


def expired() -> FirstlineError:
    """What a request is told whose deadline passes while it waits or runs."""
    return DeadlineExceededError("The request's deadline passed before it was answered; allow more time.")
